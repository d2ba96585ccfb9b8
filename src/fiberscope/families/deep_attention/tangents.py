"""Exact kernel directions of the native Jacobian, by kind, in any field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.mixing import independent, mixing_directions
from fiberscope.numbers.fields import Field

KINDS = ("factor", "interface", "unreached", "unseen", "scale", "skew", "mixing")
"""Kinds of exact kernel directions, as reports name them."""


@dataclass(frozen=True)
class KernelTangents:
    """Rows of exact kernel directions, by kind; kinds can overlap.

    Attributes
    ----------
    kinds
        Name of :data:`KINDS` -> rows of shape ``(directions, parameters)``.
    generic
        True when the reached and seen subspaces have the largest dimension that the widths allow,
        so that the ranks of these rows are at most the generic ones.
    """

    kinds: Mapping[str, NDArray[Any]]
    generic: bool

    @property
    def union(self) -> NDArray[Any]:
        """All rows."""
        return np.concatenate(list(self.kinds.values()), axis=0)


def kernel_tangents(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], field: Field
) -> KernelTangents:
    """Directions along which the observation stays the same, at a point.

    With ``P_i`` the products of values:

    - *factor*: ``dQ = Q B, dK = -K B^T`` in every head;
    - *interface* ``i`` (no residual): ``dV_i = G V_i, dV_{i+1} = -V_{i+1} G,
      dQ_{i+1} = -G^T Q_{i+1}, dK_{i+1} = -G^T K_{i+1}``, for every ``G``, or under a LayerNorm for
      the antisymmetric ``G`` with ``G 1 = 0``;
    - *unreached*: for ``y`` orthogonal to everything layer ``i`` can receive, ``dQ_i`` and
      ``dK_i`` in ``y x anything`` and ``dV_i`` in ``anything x y^T``;
    - *unseen*: for ``v`` that no later layer reads, ``dV_i`` in ``v x anything``;
    - *scale*: ``dQ = Q, dV = -V`` in every head of an unnormalized network, with values fixed
      ``dQ_i = Q_i, dQ_{i+1} = -3 Q_{i+1}`` in all heads (no residual); ``dV_i = V_i`` in all heads
      before a LayerNorm without residual;
    - *skew* (unnormalized, for a single token, or unmasked after a single head of rank one): all
      tokens are multiples of one vector there, so a later score is seen through its symmetric part
      on what it can receive;
    - *mixing* (unnormalized, several heads):
      :func:`~fiberscope.families.deep_attention.mixing.mixing_directions`.

    Each is a tangent of an exact symmetry, so it lies in the kernel at every point.
    """
    space = architecture.space
    windows = dict(space.slices())
    collected: dict[str, list[NDArray[Any]]] = {kind: [] for kind in KINDS}
    dtype = next(iter(parameters.values())).dtype if parameters else np.dtype(np.float64)

    def row(parts: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        vector = _zeros((space.size,), dtype)
        for name, part in parts.items():
            vector[windows[name]] += part.reshape(-1)
        return field.reduce(vector)

    def single(name: str, index: tuple[int, ...] | Any, value: Any) -> NDArray[Any]:
        part = _zeros(space.shapes[name], dtype)
        part[index] = value
        return part

    depth = architecture.depth
    for layer in range(1, depth + 1):
        q, k = parameters[f"Q{layer}"], parameters[f"K{layer}"]
        rank = architecture.ranks[layer - 1]
        for head in range(architecture.heads[layer - 1]):
            for i in range(rank):
                for j in range(rank):
                    dq = single(f"Q{layer}", (head, slice(None), j), q[head][:, i])
                    dk = single(f"K{layer}", (head, slice(None), i), -k[head][:, j])
                    collected["factor"].append(row({f"Q{layer}": dq, f"K{layer}": dk}))
            if not architecture.normalized and architecture.trainable_values:
                v = parameters[f"V{layer}"]
                parts = {
                    f"Q{layer}": single(f"Q{layer}", head, q[head]),
                    f"V{layer}": single(f"V{layer}", head, -v[head]),
                }
                collected["scale"].append(row(parts))
    generic = True
    if _fixed_scales(architecture):
        for layer in range(1, depth):
            q, after = parameters[f"Q{layer}"], parameters[f"Q{layer + 1}"]
            collected["scale"].append(row({f"Q{layer}": q, f"Q{layer + 1}": -3 * after}))
    if architecture.trainable_values:
        for layer in range(1, depth if not architecture.residual else 1):
            width = architecture.widths[layer]
            for generator in _interface_generators(architecture, width):
                parts = _interface(parameters, layer, generator)
                collected["interface"].append(row(parts))
            if architecture.layer_norm:
                collected["scale"].append(row({f"V{layer}": parameters[f"V{layer}"]}))
        reached, generic = unreached_bases(architecture, parameters, field)
        for layer, basis in reached.items():
            heads = range(architecture.heads[layer - 1])
            for y in basis.T:
                for head in heads:
                    for c in range(architecture.ranks[layer - 1]):
                        for name in (f"Q{layer}", f"K{layer}"):
                            part = single(name, (head, slice(None), c), y)
                            collected["unreached"].append(row({name: part}))
                    for a in range(architecture.widths[layer]):
                        part = single(f"V{layer}", (head, a), y)
                        collected["unreached"].append(row({f"V{layer}": part}))
        seen, generic_seen = unseen_bases(architecture, parameters, field)
        generic = generic and generic_seen
        for layer, basis in seen.items():
            for v in basis.T:
                for head in range(architecture.heads[layer - 1]):
                    for c in range(architecture.widths[layer - 1]):
                        part = single(f"V{layer}", (head, slice(None), c), v)
                        collected["unseen"].append(row({f"V{layer}": part}))
    for layer in _after_collinear(architecture):
        reach = reach_bases(architecture, parameters, field)[layer]
        for head in range(architecture.heads[layer - 1]):
            basis, as_expected = _skew(
                parameters[f"Q{layer}"][head], parameters[f"K{layer}"][head], reach, field
            )
            generic = generic and as_expected
            half = architecture.widths[layer - 1] * architecture.ranks[layer - 1]
            shape = parameters[f"Q{layer}"].shape[1:]
            for column in basis.T:
                parts = {
                    f"Q{layer}": single(f"Q{layer}", head, column[:half].reshape(shape)),
                    f"K{layer}": single(f"K{layer}", head, column[half:].reshape(shape)),
                }
                collected["skew"].append(row(parts))
    if not architecture.normalized and not architecture.layer_norm:
        reaches = reach_bases(architecture, parameters, field)
        reads = read_rows(architecture, parameters, field)
        collinear = _after_collinear(architecture)
        for layer in range(1, depth + 1):
            if architecture.heads[layer - 1] > 1:
                directions = mixing_directions(
                    architecture,
                    layer,
                    parameters,
                    reaches[layer],
                    reads[layer],
                    field,
                    collinear=layer in collinear,
                )
                collected["mixing"] += [row(parts) for parts in directions]
    empty = np.zeros((0, space.size), dtype=dtype)
    kinds = {kind: np.stack(rows) if rows else empty for kind, rows in collected.items()}
    return KernelTangents(kinds, generic)


def _fixed_scales(architecture: Architecture) -> bool:
    """Whether scaling a layer's tokens can be undone by the next layer's scores alone."""
    return not (
        architecture.normalized
        or architecture.trainable_values
        or architecture.residual
        or architecture.layer_norm
    )


def reached_width(architecture: Architecture, layer: int) -> int:
    """Generic dimension of the span of the tokens that leave ``layer`` (``0`` is the input)."""
    width = architecture.widths[0]
    for i in range(1, layer + 1):
        if not architecture.residual:
            heads = architecture.heads[i - 1]
            if not architecture.normalized and width == 1:
                heads = 1
            width = min(architecture.widths[i], heads * width)
        if architecture.layer_norm:
            width = min(width, architecture.widths[i] - 1)
    return width


def seen_width(architecture: Architecture, layer: int) -> int:
    """Generic dimension of what the layers after ``layer`` read of its output."""
    if architecture.layer_norm:
        return architecture.widths[layer] - 1
    if architecture.residual:
        return architecture.widths[layer]
    seen = architecture.widths[architecture.depth]
    for i in range(architecture.depth, layer, -1):
        read = architecture.heads[i - 1] * (seen + 2 * architecture.ranks[i - 1])
        seen = min(architecture.widths[i - 1], read)
    return seen


Generator = tuple[tuple[int, int, int], ...]
"""A sparse square matrix: entries ``(row, column, value)``."""


def _interface_generators(architecture: Architecture, width: int) -> list[Generator]:
    """All of gl(width); under a LayerNorm the rotations that keep the vector of ones."""
    if not architecture.layer_norm:
        return [((i, j, 1),) for i in range(width) for j in range(width)]
    rotations: list[Generator] = []
    last = width - 1
    for i in range(last):
        for j in range(i + 1, last):
            # a b^T - b a^T with a = e_i - e_last, b = e_j - e_last.
            cycle = ((i, j), (j, last), (last, i))
            rotations.append(
                (*((x, y, 1) for x, y in cycle), *((y, x, -1) for x, y in cycle)),
            )
    return rotations


def _interface(
    parameters: Mapping[str, NDArray[Any]], layer: int, generator: Generator
) -> dict[str, NDArray[Any]]:
    """``dV_i = G V_i`` and what undoes it in layer ``i + 1``."""
    after = layer + 1
    names = (f"V{layer}", f"V{after}", f"Q{after}", f"K{after}")
    parts = {name: _zeros(parameters[name].shape, parameters[name].dtype) for name in names}
    for i, j, value in generator:
        parts[names[0]][:, i, :] += value * parameters[names[0]][:, j, :]
        parts[names[1]][:, :, j] -= value * parameters[names[1]][:, :, i]
        for name in names[2:]:
            parts[name][:, j, :] -= value * parameters[name][:, i, :]
    return parts


def reach_bases(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], field: Field
) -> dict[int, NDArray[Any]]:
    """Per layer, columns that span all tokens that it can receive."""
    dtype = next(iter(parameters.values())).dtype
    reach = _identity(architecture.widths[0], dtype)
    result = {1: reach}
    for layer in range(1, architecture.depth):
        width = architecture.widths[layer]
        if architecture.residual or not architecture.trainable_values:
            reach = _identity(width, dtype)
        else:
            value = parameters[f"V{layer}"]
            if not architecture.normalized and reached_width(architecture, layer - 1) == 1:
                reach = _one_direction(parameters, layer, independent(reach, field), field)
            else:
                reach = np.concatenate([field.reduce(part @ reach) for part in value], axis=1)
        if architecture.layer_norm:
            # A LayerNorm keeps the span of its centred inputs; times the width, without fractions.
            ones = np.ones((width, width), dtype=np.int64)
            reach = field.reduce((width * _identity(width, dtype) - ones) @ reach)
        result[layer + 1] = reach
    return result


def _one_direction(
    parameters: Mapping[str, NDArray[Any]], layer: int, reach: NDArray[Any], field: Field
) -> NDArray[Any]:
    """Where an unnormalized layer sends multiples of one vector: its heads add up there."""
    q, k, v = (parameters[f"{kind}{layer}"] for kind in "QKV")
    total = 0 * field.reduce(v[0] @ reach)
    for head in range(q.shape[0]):
        score = field.reduce(field.reduce(reach.T @ q[head]) @ field.reduce(reach.T @ k[head]).T)
        total = field.reduce(total + field.reduce(v[head] @ reach) @ score)
    return total


def unreached_bases(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], field: Field
) -> tuple[dict[int, NDArray[Any]], bool]:
    """Per layer, columns ``y`` orthogonal to all tokens that it can receive."""
    generic = True
    result: dict[int, NDArray[Any]] = {}
    for layer, reach in reach_bases(architecture, parameters, field).items():
        if layer == 1:
            continue
        y = field.nullspace(reach.T)
        expected = reached_width(architecture, layer - 1)
        generic = generic and architecture.widths[layer - 1] - y.shape[1] == expected
        if y.shape[1]:
            result[layer] = y
    return result, generic


def _after_collinear(architecture: Architecture) -> list[int]:
    """Layers of an unnormalized network whose tokens are all multiples of one vector."""
    if architecture.normalized or architecture.layer_norm:
        return []
    if architecture.tokens == 1:
        return list(range(1, architecture.depth + 1))
    if architecture.causal or architecture.residual:
        return []
    pairs = zip(architecture.ranks, architecture.heads, strict=True)
    first = next((i for i, pair in enumerate(pairs, start=1) if pair == (1, 1)), None)
    return [] if first is None else list(range(first + 1, architecture.depth + 1))


def _skew(
    query: NDArray[Any], key: NDArray[Any], reach: NDArray[Any], field: Field
) -> tuple[NDArray[Any], bool]:
    """Columns ``(dQ, dK)`` with ``sym(R^T (dQ K^T + Q dK^T) R) = 0``, and whether generically so.

    Symmetric parts of products of rank ``r`` on ``delta`` dimensions are the symmetric matrices of
    rank ``m = min(2 r, delta)``, a set of dimension ``m delta - m (m - 1) / 2``.
    """
    width, rank = query.shape
    q, k = field.reduce(reach.T @ query), field.reduce(reach.T @ key)
    columns = []
    for other in (k, q):
        for i in range(width):
            for c in range(rank):
                moved = np.outer(reach[i], other[:, c])
                columns.append(field.reduce(moved + moved.T).reshape(-1))
    matrix = np.stack(columns, axis=1)
    basis = field.nullspace(matrix)
    delta = width - field.nullspace(reach.T).shape[1]
    m = min(2 * rank, delta)
    return basis, 2 * width * rank - basis.shape[1] == m * delta - m * (m - 1) // 2


def unseen_bases(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], field: Field
) -> tuple[dict[int, NDArray[Any]], bool]:
    """Per layer, columns ``v`` of its output space that no later layer reads."""
    depth = architecture.depth
    dtype = next(iter(parameters.values())).dtype
    if architecture.layer_norm:
        # Only the constant vector leaves a normalised token alone, whatever reads it.
        ones = {i: _identity(architecture.widths[i], dtype) for i in range(1, depth)}
        return {i: e.sum(axis=1, keepdims=True) for i, e in ones.items()}, True
    if architecture.residual:
        return {}, True
    generic = True
    result: dict[int, NDArray[Any]] = {}
    rows = read_rows(architecture, parameters, field)
    for layer in range(1, depth):
        v = field.nullspace(rows[layer])
        generic = generic and architecture.widths[layer] - v.shape[1] == seen_width(
            architecture, layer
        )
        if v.shape[1]:
            result[layer] = v
    return result, generic


def read_rows(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], field: Field
) -> dict[int, NDArray[Any]]:
    """Per layer, rows that span the functionals through which later layers see its output."""
    depth = architecture.depth
    dtype = next(iter(parameters.values())).dtype
    reads = _identity(architecture.widths[depth], dtype)
    result = {depth: reads}
    for layer in range(depth - 1, 0, -1):
        after = layer + 1
        if architecture.residual or not architecture.trainable_values:
            reads = _identity(architecture.widths[layer], dtype)
        else:
            rows = [field.reduce(reads @ part) for part in parameters[f"V{after}"]]
            for name in (f"Q{after}", f"K{after}"):
                rows += [part.T for part in parameters[name]]
            reads = np.concatenate(rows, axis=0)
        result[layer] = reads
    return result


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    zeros = np.zeros(shape, dtype=dtype)
    if dtype.kind == "O":
        zeros.fill(Fraction(0))
    return zeros


def _identity(width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    identity = _zeros((width, width), dtype)
    np.fill_diagonal(identity, Fraction(1) if dtype.kind == "O" else 1)
    return identity
