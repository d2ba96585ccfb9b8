"""Effective parameters: the combined value map and every score in input coordinates, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import (
    Architecture,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.paths import load_arrays, with_heads
from fiberscope.families.deep_attention.tangents import kernel_tangents
from fiberscope.numbers.fields import RationalField

Exact = NDArray[Any]
"""Object array of ``Fraction``."""


@dataclass(frozen=True)
class EffectiveParameters:
    """``L = V_D ... V_1`` and ``M_i = P_{i-1}^T Q_i K_i^T P_{i-1}`` with ``P_i = V_i ... V_1``.

    Attributes
    ----------
    readout
        ``L``, shape ``(d_D, d_0)``, exact.
    scores
        ``M_1, ..., M_D``, each ``(d_0, d_0)``, exact.
    """

    readout: Exact
    scores: tuple[Exact, ...]

    @property
    def width(self) -> int:
        """Input width ``d``."""
        return int(self.readout.shape[1])

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.scores)


def exact(values: Any) -> Exact:
    """Object array of fractions (floats are taken as the dyadic numbers they are)."""
    source = np.asarray(values)
    result = np.empty(source.size, dtype=object)
    result[:] = [Fraction(value) for value in source.reshape(-1).tolist()]
    return result.reshape(source.shape)


def effective_parameters(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]]
) -> EffectiveParameters:
    """Reduce native parameters, exactly; singular and rectangular values are allowed.

    Raises
    ------
    InputError
        For networks whose function is not a function of these products alone: several heads, a
        mask, a residual connection, a LayerNorm, or unnormalized weights.
    """
    if not architecture.plain:
        raise InputError(
            "effective parameters describe serial, single-head, normalized attention without "
            f"mask, residual or norm, not: {architecture.describe()}"
        )
    product = exact(np.eye(architecture.widths[0], dtype=np.int64))
    scores = []
    for layer in range(1, architecture.depth + 1):
        q, k = exact(parameters[f"Q{layer}"][0]), exact(parameters[f"K{layer}"][0])
        scores.append(product.T @ (q @ k.T) @ product)
        if architecture.trainable_values:
            product = exact(parameters[f"V{layer}"][0]) @ product
    return EffectiveParameters(product, tuple(scores))


@dataclass(frozen=True)
class StoredNetwork:
    """What a weights file holds.

    Attributes
    ----------
    effective
        Effective parameters.
    normalizers
        One a layer.
    tokens
        Number of tokens.
    architecture, parameters
        The native network, None where the file holds effective parameters only.
    """

    effective: EffectiveParameters
    normalizers: tuple[Normalizer, ...]
    tokens: int
    architecture: Architecture | None = None
    parameters: Mapping[str, NDArray[np.float64]] | None = None


def native_freedom(network: StoredNetwork) -> dict[str, int] | None:
    """Rank of the exact native directions that keep the function, by kind and together.

    Taken at these very weights, exactly; they move queries, keys and values while ``L`` and every
    score stay. None where the file holds effective parameters only.
    """
    if network.architecture is None or network.parameters is None:
        return None
    field = RationalField()
    point = {name: exact(value) for name, value in network.parameters.items()}
    tangents = kernel_tangents(network.architecture, point, field)
    ranks = {kind: field.rank(rows) for kind, rows in tangents.kinds.items() if rows.shape[0]}
    return {**ranks, "union": field.rank(tangents.union)}


def load_network(file: str, tokens: int, normalizers: Sequence[str | Normalizer]) -> StoredNetwork:
    """Read ``Q1, K1, V1, ...`` (native) or ``L, M1, ...`` (effective) from an npz file.

    ``Qi`` and ``Ki`` have shape ``(d_{i-1}, r_i)``, ``Vi`` ``(d_i, d_{i-1})``, ``L`` ``(p, d)`` and
    ``Mi`` ``(d, d)``; a leading axis of one head is allowed.

    Raises
    ------
    InputError
        If names or shapes do not fit together.
    """
    arrays = load_arrays(file)
    if "L" in arrays:
        return _effective_file(file, arrays, tokens, normalizers)
    depth = sum(name.startswith("Q") for name in arrays)
    names = [f"{kind}{i}" for i in range(1, depth + 1) for kind in "QKV"]
    if depth == 0 or sorted(arrays) != sorted(names):
        raise InputError(
            f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}: give Q1, K1, V1, Q2, ... or "
            "the effective L, M1, M2, ..."
        )
    flat = {}
    for name, value in arrays.items():
        if value.ndim == 3 and value.shape[0] > 1:
            raise InputError(
                f"{file}: {name} has {value.shape[0]} heads, but fibers are classified for one"
            )
        flat[name] = value[0] if value.ndim == 3 else value
        if flat[name].ndim != 2:
            raise InputError(f"{file}: {name} has shape {value.shape}, expected a matrix")
    widths = [flat["V1"].shape[1]] + [flat[f"V{i}"].shape[0] for i in range(1, depth + 1)]
    architecture = deep_attention_architecture(
        widths=widths,
        ranks=[flat[f"Q{i}"].shape[1] for i in range(1, depth + 1)],
        tokens=tokens,
        normalizers=normalizers,
    )
    parameters = {
        name: with_heads(f"{file}: {name}", flat[name], shape)
        for name, shape in architecture.space.shapes.items()
    }
    assert architecture.normalizers is not None
    return StoredNetwork(
        effective_parameters(architecture, parameters),
        architecture.normalizers,
        tokens,
        architecture,
        parameters,
    )


def _effective_file(
    file: str,
    arrays: Mapping[str, NDArray[np.float64]],
    tokens: int,
    normalizers: Sequence[str | Normalizer],
) -> StoredNetwork:
    depth = len(arrays) - 1
    names = ["L", *(f"M{i}" for i in range(1, depth + 1))]
    if sorted(arrays) != sorted(names) or arrays["L"].ndim != 2 or depth < 1:
        raise InputError(f"{file} holds {', '.join(sorted(arrays))}: give L, M1, M2, ...")
    width = arrays["L"].shape[1]
    for name in names[1:]:
        if arrays[name].shape != (width, width):
            raise InputError(
                f"{file}: {name} has shape {arrays[name].shape}, expected {(width, width)}"
            )
    architecture = deep_attention_architecture(
        widths=[width] * depth + [arrays["L"].shape[0]],
        ranks=width,
        tokens=tokens,
        normalizers=normalizers,
    )
    assert architecture.normalizers is not None
    effective = EffectiveParameters(
        exact(arrays["L"]), tuple(exact(arrays[name]) for name in names[1:])
    )
    return StoredNetwork(effective, architecture.normalizers, tokens)


def effective_architecture(
    effective: EffectiveParameters,
    normalizers: Sequence[Normalizer],
    tokens: int,
    *,
    mean_only: bool = False,
    convert: Callable[[Any], NDArray[Any]] = exact,
) -> tuple[Architecture, dict[str, NDArray[Any]]]:
    """A native network with the same function: ``Q_i = M_i, K_i = 1, V_i = 1, V_D = L``.

    Its derivatives in ``Q_i`` and ``V_D`` are those in ``M_i`` and ``L``. ``convert`` makes the
    identity matrices in the numbers of the parameters (fractions by default).
    """
    width, depth = effective.width, effective.depth
    architecture = deep_attention_architecture(
        widths=[width] * depth + [effective.readout.shape[0]],
        ranks=width,
        tokens=tokens,
        normalizers=list(normalizers),
        mean_only=mean_only,
    )
    one = convert(np.eye(width, dtype=np.int64))
    parameters = {}
    for i, score in enumerate(effective.scores, start=1):
        parameters[f"Q{i}"], parameters[f"K{i}"] = score[None], one[None]
        parameters[f"V{i}"] = (effective.readout if i == depth else one)[None]
    return architecture, parameters


def effective_columns(architecture: Architecture) -> list[int]:
    """Columns of the native Jacobian of :func:`effective_architecture` in ``L, M_1, ..., M_D``."""
    windows = dict(architecture.space.slices())
    names = [f"V{architecture.depth}", *(f"Q{i}" for i in range(1, architecture.depth + 1))]
    return [c for name in names for c in range(windows[name].start, windows[name].stop)]
