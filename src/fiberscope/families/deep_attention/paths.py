"""Paths towards simultaneous query/key collapse: ``Q_i = t U_i, K_i = t W_i``, values fixed."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import (
    Architecture,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.family import InputBank


@dataclass(frozen=True)
class ContactPath:
    """Native parameters ``Q_i = t U_i, K_i = t W_i, V_i`` as a function of ``t``.

    Attributes
    ----------
    architecture
        The network.
    directions
        ``U_i`` under the name ``Qi``, ``W_i`` under ``Ki`` and the fixed ``V_i`` under ``Vi``,
        float64, integer or ``Fraction`` arrays shaped as ``architecture.space``.
    """

    architecture: Architecture
    directions: Mapping[str, NDArray[Any]]

    def at(self, t: Fraction) -> dict[str, NDArray[Any]]:
        """Exact parameters at ``t``: object arrays of ``Fraction``."""
        return {
            name: _fractions(value) * (Fraction(1) if name.startswith("V") else t)
            for name, value in self.directions.items()
        }

    def at_float64(self, t: Fraction) -> dict[str, NDArray[np.float64]]:
        """Parameters at ``t``, rounded to float64."""
        return {name: value.astype(np.float64) for name, value in self.at(t).items()}

    @property
    def scores(self) -> list[NDArray[Any]]:
        """``B_i = U_i W_i^T`` of every layer, exact, shape ``(heads, d, d)``."""
        depth = self.architecture.depth
        exact = {name: _fractions(value) for name, value in self.directions.items()}
        return [exact[f"Q{i}"] @ exact[f"K{i}"].swapaxes(-1, -2) for i in range(1, depth + 1)]


def _fractions(values: NDArray[Any]) -> NDArray[Any]:
    source = np.asarray(values)
    result = np.empty(source.size, dtype=object)
    result[:] = [Fraction(value) for value in source.reshape(-1).tolist()]
    return result.reshape(source.shape)


def identity_values(architecture: Architecture) -> dict[str, NDArray[Any]]:
    """Values at the identity, divided by the number of heads, as fractions.

    Raises
    ------
    InputError
        If widths differ.
    """
    if len(set(architecture.widths)) > 1:
        widths = ",".join(map(str, architecture.widths))
        raise InputError(f"identity values need equal widths, got {widths}: use generic values")
    if not architecture.trainable_values:
        return {}
    width = architecture.widths[0]
    values = {}
    for layer, heads in enumerate(architecture.heads, start=1):
        one = np.broadcast_to(np.eye(width, dtype=np.int64), (heads, width, width))
        values[f"V{layer}"] = _fractions(one) * Fraction(1, heads)
    return values


def random_path(
    architecture: Architecture, rng: np.random.Generator, values: str = "identity"
) -> ContactPath:
    """Random directions: ``U`` normal of deviation 1/2, ``W = U + 0.15 normal``.

    Parameters
    ----------
    architecture
        The network.
    rng
        Source of the draws.
    values
        ``identity`` (over the number of heads) or ``generic`` (normal, over the root of the
        width).
    """
    if values not in ("identity", "generic"):
        raise InputError(f"values are identity or generic, not {values!r}")
    shapes = architecture.space.shapes
    directions: dict[str, NDArray[Any]] = {}
    for layer in range(1, architecture.depth + 1):
        u = rng.standard_normal(shapes[f"Q{layer}"]) / 2
        directions[f"Q{layer}"] = u
        directions[f"K{layer}"] = u + 0.15 * rng.standard_normal(shapes[f"K{layer}"])
    if values == "identity":
        directions |= identity_values(architecture)
    elif architecture.trainable_values:
        for layer in range(1, architecture.depth + 1):
            shape = shapes[f"V{layer}"]
            directions[f"V{layer}"] = rng.standard_normal(shape) / np.sqrt(shape[2])
    return ContactPath(architecture, {name: directions[name] for name in shapes})


def random_bank(
    architecture: Architecture, size: int, rng: np.random.Generator, scale: float = 0.6
) -> InputBank:
    """Inputs with normal entries of deviation ``scale``, a positive number."""
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"the deviation of random inputs must be positive, got {scale}")
    shape = (size, architecture.tokens, architecture.widths[0])
    return InputBank.of(scale * rng.standard_normal(shape))


def matrix_case() -> tuple[ContactPath, InputBank]:
    """Konda's matrix case: four tokens, width 4, rank 2, three layers, 48 inputs (768 x 96)."""
    text = files("fiberscope.families.deep_attention").joinpath("data/matrix_case.json").read_text()
    content = json.loads(text)
    architecture = deep_attention_architecture(widths=[4] * 4, ranks=2, tokens=4)
    directions: dict[str, NDArray[Any]] = {}
    values = identity_values(architecture)
    for i, (u, w) in enumerate(zip(content["U"], content["W"], strict=True), start=1):
        directions[f"Q{i}"], directions[f"K{i}"] = np.array([u]), np.array([w])
        directions[f"V{i}"] = values[f"V{i}"]
    return ContactPath(architecture, directions), InputBank.of(content["inputs"])


def scalar_case() -> tuple[ContactPath, InputBank]:
    """Konda's scalar case: four layers of width one, fixed values, the output mean on four inputs.

    Inputs ``(1 + z, 1 - z)`` with ``z = 0.45, 0.65, 0.85, 1.05``, directions all one. The decimal
    inputs are taken as float64 numbers.
    """
    architecture = deep_attention_architecture(
        widths=[1] * 5, ranks=1, tokens=2, trainable_values=False, mean_only=True
    )
    ones = {name: np.ones(shape) for name, shape in architecture.space.shapes.items()}
    z = np.array([Fraction(45 + 20 * j, 100) for j in range(4)], dtype=np.float64)
    return ContactPath(architecture, ones), InputBank.of(
        np.stack([1 + z, 1 - z], axis=1)[..., None]
    )


def load_arrays(file: str) -> dict[str, NDArray[np.float64]]:
    """Read all arrays of an npz file as float64, refusing pickled objects.

    Raises
    ------
    InputError
        If the file is missing, not an npz file, or holds anything but finite numbers.
    """
    try:
        with Path(file).open("rb") as handle:
            stored = np.load(handle, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise InputError(
                    f"{file} is not an npz file but a single array: write named arrays with "
                    "numpy.savez"
                )
            with stored:
                arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file") from None
    except (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error):
        # NumPy's own words advise loading pickles, which can run code: leave them out.
        raise InputError(
            f"{file} is not an npz file of numeric arrays that can be read: write it with "
            "numpy.savez"
        ) from None
    for name, value in arrays.items():
        if value.dtype.kind not in "iuf" or not np.all(np.isfinite(value)):
            raise InputError(f"{file}: {name} must hold finite real numbers")
    return {name: value.astype(np.float64) for name, value in arrays.items()}


def with_heads(name: str, value: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[Any]:
    """Array in the architecture's shape; the head axis may be left out where there is one head."""
    given = value.shape
    if value.ndim == 2 and shape[0] == 1:
        value = value[None]
    if value.shape != shape:
        expected = shape[1:] if len(given) == 2 else shape
        raise InputError(f"{name} has shape {given}, expected {expected}")
    return value


def load_path(architecture: Architecture, file: str, values: str = "identity") -> ContactPath:
    """Read ``U1, W1, ...`` and, for generic values, ``V1, ...`` from an npz file."""
    stored = load_arrays(file)
    directions: dict[str, NDArray[Any]] = {}
    fixed = identity_values(architecture) if values == "identity" else {}
    for name, shape in architecture.space.shapes.items():
        kept = {"Q": "U", "K": "W", "V": "V"}[name[0]] + name[1:]
        if name in fixed and kept not in stored:
            directions[name] = fixed[name]
        elif kept not in stored:
            raise InputError(f"{file}: {kept} of shape {shape} is missing")
        else:
            directions[name] = with_heads(f"{file}: {kept}", stored[kept], shape)
    return ContactPath(architecture, directions)


def load_bank(architecture: Architecture, file: str) -> InputBank:
    """Read inputs ``X`` of shape ``(inputs, tokens, width)`` from an npz file."""
    stored = load_arrays(file)
    if "X" not in stored:
        raise InputError(f"{file}: the inputs X of shape (inputs, tokens, width) are missing")
    bank = InputBank.of(stored["X"])
    wanted = (architecture.tokens, architecture.widths[0])
    if bank.inputs.shape[1:] != wanted:
        raise InputError(f"{file}: X has shape {bank.inputs.shape}, expected (inputs, *{wanted})")
    return bank
