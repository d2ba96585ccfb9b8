"""Heads that attend alike: only the sum of what they write is seen.

Heads with equal query/key products have equal attention patterns on every input, so the function
sees ``sum_h O_h V_h`` over them (Ong, "No equivariant architecture covers all equivariant
attention", Theorem 7, for the reduced form).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.inspection.finding import Exceptional
from fiberscope.checkpoints.ledger.effective import product_coordinates

PROBES = 4
"""Random vectors on either side of a product; equal products agree on all of them, and products
that agree on all of them by accident have probability zero."""


def equal_heads(
    a: Attention,
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    dead: NDArray[np.bool_],
    inputs: tuple[int, int, int],
) -> list[Exceptional]:
    """Sets of heads with one query/key product, with the freedom of what they write.

    Parameters
    ----------
    query
        Queries as maps of the normalised vector (and the constant), ``(G, m, r, inputs)``.
    key
        Keys likewise, ``(G, r, inputs)``.
    dead
        Heads that write nothing, ``(G, m)``: they are left out.
    inputs
        Width of the stream, independent inputs of a value, independent outputs of a head.
    """
    sketch, scale = _sketches(a, query, key, inputs[0])
    heads = np.flatnonzero(~dead.reshape(-1))
    found, taken = [], set()
    for position, head in enumerate(heads):
        if head in taken:
            continue
        distance = np.linalg.norm(sketch[heads[position:]] - sketch[head], axis=1)
        limit = 64 * np.finfo(float).eps * np.maximum(scale[heads[position:]], scale[head])
        alike = heads[position:][distance <= limit]
        if len(alike) > 1:
            taken |= set(alike.tolist())
            found.append(_finding(a, alike, inputs))
    return found


def _sketches(
    a: Attention, query: NDArray[np.float64], key: NDArray[np.float64], width: int
) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
    """One vector a head that determines its product, and the size rounding is measured by."""
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
    heads = a.groups * a.heads_per_group
    sketch = np.concatenate([pairs.reshape(heads, -1), flat.reshape(heads, -1)], axis=1)
    size = np.linalg.norm(left, axis=(2, 3)) * np.linalg.norm(right, axis=(1, 2))[:, None]
    return sketch, size.reshape(-1)


def _finding(a: Attention, alike: NDArray[np.int64], inputs: tuple[int, int, int]) -> Exceptional:
    _, into, out = inputs
    groups, members = np.unique(alike // a.heads_per_group, return_counts=True)
    extra: int | None = None
    if len(groups) == 1:
        # They share the values too: of their output maps only the sum is seen.
        whole = product_coordinates(a.value_width, into, a.heads_per_group * out)
        less = a.heads_per_group - int(members[0]) + 1
        extra = whole - product_coordinates(a.value_width, into, less * out)
    elif a.heads_per_group == 1:
        count = len(alike)
        extra = count * product_coordinates(a.value_width, into, out)
        extra -= product_coordinates(count * a.value_width, into, out)
    return Exceptional(
        "heads that attend alike",
        f"{a.label}, heads {', '.join(map(str, alike.tolist()))}",
        extra,
        "their query/key products are equal, so only the sum of what they write is seen",
        {"heads": alike.tolist()},
    )
