"""Heads that attend alike: only the sum of what they write is seen.

Heads with equal query/key products have equal attention patterns on every input, so the function
sees ``sum_h O_h V_h`` over them (Ong, "No equivariant architecture covers all equivariant
attention", Theorem 7, for the reduced form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.inspection.finding import Exceptional
from fiberscope.checkpoints.ledger.effective import product_coordinates

PROBES = 4
"""Random vectors on either side of a product; equal products agree on all of them, and products
that agree on all of them by accident have probability zero."""


@dataclass(frozen=True)
class Heads:
    """The factors of one attention as the function sees them.

    Attributes
    ----------
    query
        Maps of the normalised vector (and the constant), ``(G, m, r, inputs)``; ``key`` likewise,
        ``(G, r, inputs)``.
    value, output
        ``(G, s, d)`` and ``(G, m, s, d)``, without what nobody sees.
    inputs
        Width of the stream, independent inputs of a value, independent outputs of a head.
    seen_constant
        Whether the values' constant reaches the stream and no bias takes it over.
    """

    attention: Attention
    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]
    output: NDArray[np.float64]
    inputs: tuple[int, int, int]
    seen_constant: bool


def equal_heads(heads: Heads) -> tuple[list[Exceptional], set[int]]:
    """Sets of heads with one query/key product, and the groups that they cover completely.

    The extra dimension of heads with keys of their own counts everything special about them
    (silent or rank-deficient ones included), so that nothing else need be said of these groups.
    """
    a = heads.attention
    sketch, scale = _sketches(heads)
    found: list[Exceptional] = []
    taken: set[int] = set()
    for head in range(len(sketch)):
        if head in taken:
            continue
        distance = np.linalg.norm(sketch - sketch[head], axis=1)
        limit = 64 * np.finfo(float).eps * np.maximum(scale, scale[head])
        alike = [other for other in np.flatnonzero(distance <= limit).tolist() if other >= head]
        if len(alike) > 1:
            taken |= set(alike)
            found.append(_finding(heads, np.array(alike)))
    return found, taken if a.heads_per_group == 1 else set()


def _sketches(heads: Heads) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
    """One vector a head that determines its product, and the size rounding is measured by."""
    a, query, key, width = heads.attention, heads.query, heads.key, heads.inputs[0]
    rng = np.random.default_rng(0)
    left = query @ rng.standard_normal((query.shape[-1], PROBES))
    probes = rng.standard_normal((key.shape[-1], PROBES))
    right = key @ probes
    # An unrotated key row's constant has no effect.
    plain = key[..., :width] @ probes[:width]
    planes = np.array(a.rotary.planes if a.rotary else ()).reshape(-1, 2).astype(np.int64)
    rest = np.setdiff1d(np.arange(a.key_width), planes.reshape(-1))
    turned = left[:, :, planes[:, 0]] - 1j * left[:, :, planes[:, 1]]
    facing = right[:, planes[:, 0]] + 1j * right[:, planes[:, 1]]
    pairs = turned[..., :, None] * facing[:, None, :, None, :]
    flat = np.einsum("gmrp,grq->gmpq", left[:, :, rest], plain[:, rest])
    count = a.groups * a.heads_per_group
    sketch = np.concatenate([pairs.reshape(count, -1), flat.reshape(count, -1)], axis=1)
    size = np.linalg.norm(left, axis=(2, 3)) * np.linalg.norm(right, axis=(1, 2))[:, None]
    return sketch, size.reshape(-1)


def _rank(matrix: NDArray[np.float64]) -> int:
    return int(np.linalg.matrix_rank(matrix))


def _finding(heads: Heads, alike: NDArray[np.int64]) -> Exceptional:
    a = heads.attention
    groups = np.unique(alike // a.heads_per_group)
    extra: int | None = None
    if not heads.seen_constant:
        if a.heads_per_group == 1 and a.rotary is None:
            extra = _own_keys(heads, alike)
        elif a.heads_per_group == 1:
            extra = _rotary_keys(heads, alike)
        elif len(groups) == 1:
            extra = _one_group(heads, alike)
    return Exceptional(
        "heads that attend alike",
        f"{a.label}, heads {', '.join(map(str, alike.tolist()))}",
        extra,
        "their query/key products are equal, so only the sum of what they write is seen",
        {"groups": groups.tolist(), "heads": alike.tolist()},
    )


def _written(heads: Heads, alike: NDArray[np.int64]) -> tuple[int, int]:
    """Directions seen of values and outputs, and the rank of the heads' value/output products."""
    _, into, out = heads.inputs
    value = heads.value[alike]
    output = heads.output[alike, 0]
    ranks = _rank(value.reshape(-1, value.shape[-1])), _rank(output.reshape(-1, output.shape[-1]))
    seen = into * ranks[1] + out * ranks[0] - ranks[0] * ranks[1]
    # Random probes on both sides keep the rank of the set of products.
    rng = np.random.default_rng(1)
    probes = [rng.standard_normal((array.shape[-1], len(alike))) for array in (value, output)]
    products = (value @ probes[0]).swapaxes(-1, -2) @ (output @ probes[1])
    size = np.linalg.norm(value, axis=(1, 2)) * np.linalg.norm(output, axis=(1, 2))
    products = products.reshape(len(alike), -1) / np.where(size > 0, size, 1.0)[:, None]
    return seen, int(np.linalg.matrix_rank(products, tol=1e-12))


def _own_keys(heads: Heads, alike: NDArray[np.int64]) -> int:
    """Heads with keys and values of their own, without rotary."""
    a, (width, into, out) = heads.attention, heads.inputs
    blind = heads.query.shape[-1] > width
    query_inputs = into + int(blind)
    seen, products = _written(heads, alike)
    ranks = _rank(heads.query[alike[0], 0]), _rank(heads.key[alike[0], :, :width])
    attend = query_inputs * ranks[1] + into * ranks[0] - ranks[0] * ranks[1]
    generic = product_coordinates(a.value_width, into, out)
    generic += product_coordinates(a.key_width, query_inputs, into)
    return len(alike) * generic - seen - products * attend


def _rotary_keys(heads: Heads, alike: NDArray[np.int64]) -> int | None:
    """Rotary heads with keys of their own, where the queries and keys themselves are generic."""
    a, (_, into, out) = heads.attention, heads.inputs
    seen, products = _written(heads, alike)
    if products < len(alike):
        return None
    return len(alike) * product_coordinates(a.value_width, into, out) - seen


def _one_group(heads: Heads, alike: NDArray[np.int64]) -> int | None:
    """Heads of one group share keys and values: of their output maps only the sum is seen."""
    a, (_, into, out) = heads.attention, heads.inputs
    group = int(alike[0]) // a.heads_per_group
    members = alike % a.heads_per_group
    value, output = heads.value[group], heads.output[group]
    if _rank(value) < min(a.value_width, into):
        return None
    if any(_rank(head) < min(a.value_width, out) for head in output):
        return None
    whole = product_coordinates(a.value_width, into, a.heads_per_group * out)
    less = a.heads_per_group - len(members) + 1
    return whole - product_coordinates(a.value_width, into, less * out)
