"""Weight files of polynomial networks: JSON or npz, rationals kept exact."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.network import PolynomialNetwork

FAMILY = "polynomial"

MOST_DIGITS = 4000
"""Longest number that is read."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class WeightedNetwork:
    """A network with its weights: object arrays of fractions, or float64.

    Attributes
    ----------
    family
        Architecture and activations.
    parameters
        ``W1, ..., WL`` and, with biases, ``b1, ..., bL``.
    exact
        True when every entry is rational as written.
    where
        The file, for messages.
    """

    family: PolynomialNetwork
    parameters: Arrays
    exact: bool
    where: str = ""

    @property
    def architecture(self) -> Architecture:
        """Architecture of the network."""
        return self.family.architecture


def read_weights(path: Path, *, exact: bool = False) -> WeightedNetwork:
    """Read a weight file.

    JSON: ``{"family": "polynomial", "degrees": [2], "activation": "monomial", "weights":
    [[["1", "3/7"], ...], ...], "biases": [...]}`` with one matrix for each layer; ``degree`` for
    all layers instead of ``degrees``, ``activation`` (a polynomial) and ``biases`` are optional.
    Integers and strings such as ``"3/7"`` are rational; one number with a point makes all of
    them float64. npz: arrays ``W1``, ``b1``, ... and ``degree`` or ``degrees`` or ``activation``;
    arrays of integers or strings are rational.

    Parameters
    ----------
    exact
        Refuse float weights.

    Raises
    ------
    InputError
        If the file cannot be read or does not describe a network, with file and place.
    """
    found = _read_npz(path) if path.suffix == ".npz" else _read_json(path)
    if exact and not found.exact:
        raise InputError(
            f"{path} has floating-point weights where rationals are needed: write them as "
            "integers or strings such as '3/7'"
        )
    return found


def _read_json(path: Path) -> WeightedNetwork:
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_int=_whole)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("weights"), list):
        raise InputError(f"{path} has no list 'weights' with one matrix for each layer")
    if data.get("family", FAMILY) != FAMILY:
        raise InputError(f"{path} is of the family {data['family']!r}, not {FAMILY!r}")
    matrices = [
        _entries(matrix, f"{path}, weight matrix {layer}", 2)
        for layer, matrix in enumerate(data["weights"], start=1)
    ]
    biases = data.get("biases")
    if biases is not None:
        if not isinstance(biases, list) or len(biases) != len(matrices):
            raise InputError(f"{path}: 'biases' needs one vector for each of the weight matrices")
        biases = [
            _entries(vector, f"{path}, bias {layer}", 1)
            for layer, vector in enumerate(biases, start=1)
        ]
    degrees = data.get("degrees", data.get("degree"))
    whole = isinstance(degrees, int) and not isinstance(degrees, bool)
    several = isinstance(degrees, list) and all(isinstance(r, int) for r in degrees)
    if degrees is not None and not whole and not several:
        raise InputError(f"{path}: 'degrees' must be a list of whole numbers")
    return _assemble(path, matrices, biases, degrees, data.get("activation", "monomial"))


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits, more than the {MOST_DIGITS} allowed")
    return int(text)


def _read_npz(path: Path) -> WeightedNetwork:
    try:
        with np.load(path, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path} cannot be read as npz: {error}") from None
    layers = 0
    while f"W{layers + 1}" in stored:
        layers += 1
    if not layers:
        raise InputError(f"{path} has no array W1: name the matrices W1, W2, ...")
    matrices = [
        _entries(stored[f"W{layer}"].tolist(), f"{path}, W{layer}", 2)
        for layer in range(1, layers + 1)
    ]
    biases = None
    if any(name.startswith("b") for name in stored):
        if missing := [n for n in range(1, layers + 1) if f"b{n}" not in stored]:
            raise InputError(f"{path} has biases but no array b{missing[0]}")
        biases = [
            _entries(stored[f"b{layer}"].tolist(), f"{path}, b{layer}", 1)
            for layer in range(1, layers + 1)
        ]
    degrees: int | list[int] | None = None
    for name in ("degrees", "degree"):
        if name in stored:
            if stored[name].dtype.kind not in "iu":
                raise InputError(f"{path}: {name} must be whole numbers")
            degrees = stored[name].tolist()
            break
    activation = str(stored["activation"]) if "activation" in stored else "monomial"
    return _assemble(path, matrices, biases, degrees, activation)


def _entries(data: Any, where: str, axes: int) -> NDArray[Any]:
    """Object array of fractions (rational entries) and floats, checked for its shape."""
    rows = data if axes == 2 else [data]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise InputError(f"{where} is not a {'matrix' if axes == 2 else 'vector'} of numbers")
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise InputError(f"{where} has rows of different or zero length")
    converted = [[_number(entry, where) for entry in row] for row in rows]
    array = np.empty((len(rows), len(rows[0])), dtype=object)
    array[...] = converted
    return array if axes == 2 else array[0]


def _number(entry: Any, where: str) -> Fraction | float:
    if isinstance(entry, bool) or not isinstance(entry, int | float | str):
        raise InputError(f"{where}: {entry!r} is not a number")
    if isinstance(entry, float):
        if not np.isfinite(entry):
            raise InputError(f"{where}: {entry!r} is not finite")
        return entry
    try:
        if isinstance(entry, str) and len(entry) > 2 * MOST_DIGITS:
            raise ValueError
        # An exponent such as 1e999999999 would be written out digit by digit.
        if isinstance(entry, str) and "e" in entry.lower():
            raise ValueError
        return Fraction(entry)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{where}: {str(entry)[:50]!r} is not a rational number (of at most {MOST_DIGITS} "
            "digits): write for instance '3/7'"
        ) from None


def _assemble(
    path: Path,
    matrices: Sequence[NDArray[Any]],
    biases: Sequence[NDArray[Any]] | None,
    degrees: int | list[int] | None,
    activation: Any,
) -> WeightedNetwork:
    for layer, (first, second) in enumerate(pairwise(matrices), start=1):
        if second.shape[1] != first.shape[0]:
            raise InputError(
                f"{path}: weight matrix {layer + 1} has {second.shape[1]} columns but matrix "
                f"{layer} has {first.shape[0]} rows"
            )
    if not matrices:
        raise InputError(f"{path} has no weight matrix")
    widths = [matrices[0].shape[1], *(matrix.shape[0] for matrix in matrices)]
    if not isinstance(activation, str) or activation.startswith("generic"):
        raise InputError(
            f"{path}: the activation {activation!r} must be 'monomial' or a polynomial such as "
            "'z^3+z'"
        )
    try:
        architecture = Architecture.build(
            widths, degrees, activation=activation, bias=biases is not None
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    arrays: Arrays = {}
    for layer, matrix in enumerate(matrices, start=1):
        arrays[f"W{layer}"] = matrix
        if biases is not None:
            if biases[layer - 1].shape != (matrix.shape[0],):
                raise InputError(
                    f"{path}: bias {layer} has {len(biases[layer - 1])} entries but the matrix "
                    f"{matrix.shape[0]} rows"
                )
            arrays[f"b{layer}"] = biases[layer - 1]
    exact = all(isinstance(v, Fraction) for array in arrays.values() for v in array.reshape(-1))
    if not exact:
        try:
            arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
        except OverflowError:
            raise InputError(
                f"{path}: one weight is beyond float64 while others are floating-point numbers: "
                "make all of them rational"
            ) from None
    return WeightedNetwork(PolynomialNetwork(architecture), arrays, exact, str(path))


def weights_to_json(architecture: Architecture, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data that :func:`read_weights` reads back: fractions as strings, floats as numbers."""

    def plain(array: Any) -> Any:
        if isinstance(array, list):
            return [plain(entry) for entry in array]
        return str(array) if isinstance(array, Fraction) else float(array)

    layers = range(1, architecture.layers + 1)
    data: dict[str, Any] = {"family": FAMILY, "degrees": list(architecture.degrees)}
    data["activation"] = str(architecture.named) if architecture.named else "monomial"
    data["weights"] = [plain(np.asarray(parameters[f"W{layer}"]).tolist()) for layer in layers]
    if architecture.bias:
        data["biases"] = [plain(np.asarray(parameters[f"b{layer}"]).tolist()) for layer in layers]
    return data
