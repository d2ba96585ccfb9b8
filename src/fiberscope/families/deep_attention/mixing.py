"""Kernel directions by which the heads of an unnormalized layer share one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.numbers.fields import Field

Parts = dict[str, NDArray[Any]]
"""Change of some parameters, by name."""


def mixing_directions(
    architecture: Architecture,
    layer: int,
    parameters: Mapping[str, NDArray[Any]],
    reach: NDArray[Any],
    reads: NDArray[Any],
    field: Field,
    *,
    collinear: bool = False,
) -> list[Parts]:
    """Directions in one unnormalized layer of several heads that keep its map.

    On tokens ``x_a`` in the span ``R`` of what the layer can receive, seen through the functionals
    ``S``, the layer is the tensor ``T = sum_h A_h x V_h``, ``A_h = R^T Q_h K_h^T R``, with ``V_h``
    standing for ``S V_h R``, made symmetric in the two indices that meet ``x_b x_b``. Kept are

    - mixed heads, ``dA_h = sum_g B_hg A_g, dV_g = -sum_h B_hg V_h``, every ``dA_h`` being tangent
      to the matrices of the rank of ``A_h``. That is ``(delta - alpha)^2`` conditions a head on
      ``H`` numbers, with ``delta`` the rank of ``R`` and ``alpha = min(r, delta)``;
    - with a single functional, ``dA_h = sum_g p_hg v_g^T`` with ``p_hg = -p_gh``: antisymmetric in
      the two indices;
    - where ``T`` has fewer entries than the heads have freedom, everything that keeps ``T``;
    - with values fixed, everything that keeps ``sum_h A_h``.

    Each is in the kernel at every point. They are returned only if their number is the least that
    counting allows, so that it is the generic one.

    Parameters
    ----------
    architecture, layer, parameters, field
        The unnormalized network, the layer from 1, and a point of the field.
    reach, reads
        Columns spanning ``R``, and rows spanning ``S``.
    collinear
        Whether all tokens are multiples of one vector, so that ``T`` is symmetric in all indices
        of the input.
    """
    onto = independent(reach, field)
    rows = independent(reads.T, field).T
    query, key = parameters[f"Q{layer}"], parameters[f"K{layer}"]
    q = field.reduce(onto.T @ query)
    k = field.reduce(onto.T @ key)
    heads, delta = architecture.heads[layer - 1], onto.shape[1]
    rank = architecture.ranks[layer - 1]
    alpha = min(rank, delta)
    if not architecture.trainable_values:
        m = min(heads * alpha, delta)
        matrix = np.concatenate(_score_columns(onto, q, k, field), axis=1)
        return _as_parts(matrix, m * (2 * delta - m), layer, query.shape, field)
    value = parameters[f"V{layer}"]
    v = field.reduce(field.reduce(rows @ value) @ onto)
    seen = rows.shape[0]
    entries = seen * (comb(delta + 2, 3) if collinear else delta * delta * (delta + 1) // 2)
    each, defect = alpha * (2 * delta - alpha), (delta - alpha) ** 2
    if collinear:
        # Only symmetric parts count: symmetric matrices of rank min(2 r, delta).
        m = min(2 * rank, delta)
        each, defect = m * delta - m * (m - 1) // 2, comb(delta - m + 1, 2)
    pairs = list(combinations(range(heads), 2)) if seen == 1 else []
    free = heads * max(1, heads - defect)
    if pairs:
        free = max(heads, heads**2 + delta * len(pairs) - heads * defect)
    if entries <= heads * (each + seen * delta) - free:
        blocks = [*_score_columns(onto, q, k, field), _value_columns(onto, rows, value.shape)]
        matrix = _tensor_derivative(blocks, q, k, v, collinear, field)
        return _as_parts(matrix, entries, layer, query.shape, field, value.shape)
    if free == heads:
        return []
    system = _mixing_system(_score_columns(onto, q, k, field), q, k, v, pairs, collinear, field)
    nullity = heads * (2 * query.shape[1] * rank - each) + free
    return _mixed(layer, parameters, system, nullity, field)


def independent(columns: NDArray[Any], field: Field) -> NDArray[Any]:
    """Return independent columns with the same span, as the annihilator of the annihilator."""
    return field.nullspace(field.nullspace(columns.T).T)


def _score_columns(
    onto: NDArray[Any], q: NDArray[Any], k: NDArray[Any], field: Field
) -> list[NDArray[Any]]:
    """Per head, ``dQ, dK -> vec(dA)``: shape ``(delta^2, 2 d r)``."""
    blocks = []
    for head in range(q.shape[0]):
        by_query = onto[:, None, :, None] * k[head].T[None, :, None, :]
        by_key = q[head].T[None, :, :, None] * onto[:, None, None, :]
        both = np.stack([by_query, by_key]).reshape(-1, onto.shape[1] ** 2)
        blocks.append(field.reduce(both).T)
    return blocks


def _value_columns(onto: NDArray[Any], rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """``dV -> vec(S dV R)`` of one head: shape ``(seen delta, d' d)``."""
    moved = rows.T[:, None, :, None] * onto[None, :, None, :]
    flat: NDArray[Any] = moved.reshape(shape[1] * shape[2], -1).T
    return flat


def _tensor_derivative(
    blocks: list[NDArray[Any]],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    collinear: bool,
    field: Field,
) -> NDArray[Any]:
    """Columns of ``dT``: first all queries and keys, head by head, then all values."""
    *scores, values = blocks
    heads, seen, delta = v.shape
    a = field.reduce(q @ k.swapaxes(-1, -2))
    columns = []
    for head in range(heads):
        d_a = field.reduce(scores[head]).T.reshape(-1, 1, delta, delta, 1)
        columns.append(field.reduce(d_a * v[head].reshape(1, seen, 1, 1, delta)))
    d_v = field.reduce(values).T.reshape(-1, seen, 1, 1, delta)
    for head in range(heads):
        columns.append(field.reduce(d_v * a[head].reshape(1, 1, delta, delta, 1)))
    tensor = np.concatenate(columns)
    tensor = tensor + tensor.swapaxes(-1, -2)
    if collinear:
        # The sum over the place of the first index completes the symmetrisation.
        tensor = tensor + tensor.swapaxes(2, 3) + tensor.swapaxes(2, 4)
    flat: NDArray[Any] = field.reduce(tensor).reshape(tensor.shape[0], -1).T
    return flat


def _as_parts(
    matrix: NDArray[Any],
    rank: int,
    layer: int,
    shape: tuple[int, ...],
    field: Field,
    value_shape: tuple[int, ...] | None = None,
) -> list[Parts]:
    """Null vectors by name, if the rank is the largest that is possible."""
    basis = field.nullspace(matrix)
    if matrix.shape[1] - basis.shape[1] != rank:
        return []
    return [_named(column, layer, shape, value_shape) for column in basis.T]


def _named(
    column: NDArray[Any],
    layer: int,
    shape: tuple[int, ...],
    value_shape: tuple[int, ...] | None,
) -> Parts:
    heads, width, rank = shape
    size = heads * 2 * width * rank
    scores = column[:size].reshape(heads, 2, width, rank)
    parts = {f"Q{layer}": scores[:, 0], f"K{layer}": scores[:, 1]}
    if value_shape is not None:
        parts[f"V{layer}"] = column[size:].reshape(value_shape)
    return parts


def _mixing_system(
    scores: list[NDArray[Any]],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    pairs: list[tuple[int, int]],
    collinear: bool,
    field: Field,
) -> NDArray[Any]:
    """Equations ``dA_h(dQ_h, dK_h) = sum_g B_hg A_g + sum_g p_hg v_g^T``, head by head.

    Unknowns are ``dQ_h, dK_h`` of every head, then ``B``, then ``p`` of every pair. Where tokens
    are collinear, symmetric parts only must agree.
    """
    heads, delta = q.shape[0], q.shape[1]
    a = field.reduce(q @ k.swapaxes(-1, -2))
    each, square = scores[0].shape[1], delta**2
    matrix = _zeros((heads * square, heads * (each + heads) + len(pairs) * delta), a.dtype)
    for h in range(heads):
        window = slice(h * square, (h + 1) * square)
        matrix[window, h * each : (h + 1) * each] = scores[h]
        start = heads * each + h * heads
        matrix[window, start : start + heads] = -a.reshape(heads, square).T
    for index, (g, h) in enumerate(pairs):
        for i in range(delta):
            column = heads * (each + heads) + index * delta + i
            for head, sign, other in ((g, -1, h), (h, 1, g)):
                first = head * square + i * delta
                matrix[first : first + delta, column] = sign * v[other, 0]
    if collinear:
        blocks = matrix.reshape(heads, delta, delta, -1)
        matrix = (blocks + blocks.swapaxes(1, 2)).reshape(matrix.shape)
    return field.reduce(matrix)


def _mixed(
    layer: int,
    parameters: Mapping[str, NDArray[Any]],
    system: NDArray[Any],
    nullity: int,
    field: Field,
) -> list[Parts]:
    """Solutions of the mixing system with ``dV_g = -sum_h B_hg V_h``."""
    query, value = parameters[f"Q{layer}"], parameters[f"V{layer}"]
    heads = query.shape[0]
    basis = field.nullspace(system)
    if basis.shape[1] != nullity:
        return []
    start = 2 * query.size
    found = []
    for column in basis.T:
        weights = column[start : start + heads**2].reshape(heads, heads)
        change = _zeros(value.shape, value.dtype)
        for h in range(heads):
            for g in range(heads):
                change[g] = field.reduce(change[g] - weights[h, g] * value[h])
        found.append({**_named(column, layer, query.shape, None), f"V{layer}": change})
    return found


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    zeros = np.zeros(shape, dtype=dtype)
    if dtype.kind == "O":
        zeros.fill(Fraction(0))
    return zeros
