"""Who is whose: heads of two models matched by sketches that no change of basis alters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.noisy import Noisy, whitened
from fiberscope.checkpoints.equality.normalised_heads import energies
from fiberscope.checkpoints.equality.rows import sketch_matrix
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index


def assign_heads(
    a: FoldedAttention, b: FoldedAttention, *, quick: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assignment by bilinear sketches: inside each pair of groups, then of the groups."""
    count, inside = b.query.shape[:2]
    if count == 1 and inside == 1:
        return np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    flat = np.zeros((count * inside, count * inside))
    for first, second in zip(_sketches(a, quick), _sketches(b, quick), strict=True):
        x, y = whitened([first], [second])
        square = (x**2).sum(-1)[None] + (y**2).sum(-1)[:, None]
        # Logarithms, so that a head whose circuits differ in part is still told by the others.
        flat += np.log1p(np.maximum(square - 2 * y @ x.T, 0.0))
    cost = flat.reshape(count, inside, count, inside).transpose(0, 2, 1, 3)
    # (group of b, group of a, head of b, head of a)
    fixed = a.table is not None
    chosen = np.zeros((count, count, inside), dtype=np.int64)
    total = np.zeros((count, count))
    for g in range(count):
        for h in range(count):
            if inside == 1 or fixed:
                columns = np.arange(inside)
            else:
                _, columns = linear_sum_assignment(cost[g, h])
            chosen[g, h] = columns
            total[g, h] = cost[g, h, np.arange(inside), columns].sum()
    _, groups = linear_sum_assignment(total)
    return groups, chosen[np.arange(count), groups]


def _sketches(f: FoldedAttention, quick: bool) -> list[Noisy]:
    """Invariants of every head, parts of shape ``(G m, features)``; dead heads are near zero."""
    rng = np.random.default_rng(20260930)
    count, inside = f.query.shape[:2]
    query, key = _sketch(f.query, quick), _sketch(f.key, quick)
    query, key = with_constant(query, f.query_constant), with_constant(key, f.key_constant)
    key = _repeated(key, inside)
    parts = []
    if f.query_gain is None:
        rotary, rest = f.attention.rotary, unrotated_index(f.attention)
        if len(rest):
            parts.append(_contracted(query.part(np.s_[:, :, rest]), key.part(np.s_[:, :, rest])))
        if rotary is not None:
            planes = np.array(rotary.planes)
            sign = np.where(np.array(rotary.frequencies) < 0, -1.0, 1.0)[:, None]
            # One weight a frequency: planes that share one can be mixed with each other.
            _, number = np.unique(np.abs(rotary.frequencies), return_inverse=True)
            weight = rng.standard_normal(len(planes))[number][:, None]
            q = [query.part(np.s_[:, :, planes[:, i]]) for i in range(2)]
            k = [key.part(np.s_[:, :, planes[:, i]]) for i in range(2)]
            q = [q[0].scaled(weight), q[1].scaled(weight * sign)]
            k[1] = k[1].scaled(sign)
            # Real and imaginary part of sum conj(q) k.
            parts.append(_contracted(q[0], k[0]) + _contracted(q[1], k[1]))
            parts.append(_contracted(q[0], k[1]) + _contracted(q[1], k[0]).scaled(-1.0))
    else:
        # Behind norms of their own only signs and turns of planes act on queries and keys.
        mixed = rng.standard_normal(f.query.shape[2])
        parts += [energies(f, query, mixed), energies(f, key, mixed)]
    value, output = _sketch(f.value, quick), _sketch(f.output, quick)
    parts.append(_contracted(output, _repeated(value, inside)))
    if f.table is not None:
        parts.append(f.table)
    return [part.reshaped(count * inside, -1) for part in parts]


def _sketch(factor: Noisy, quick: bool) -> Noisy:
    """Projections of all rows on a few random columns, or a few of the columns themselves."""
    if isinstance(factor, Stack):
        if quick and factor.rows.glance is not None:
            return factor.rows.glance.reshaped(*factor.lead, -1)
        return factor.sketch
    return factor.turned(sketch_matrix(factor.shape[-1]), -1)


def _repeated(noisy: Noisy, inside: int) -> Noisy:
    """A group's array once for each of its heads: ``(G, r, n) -> (G, m, r, n)``."""
    shape = (noisy.shape[0], inside, *noisy.shape[1:])
    return Noisy(
        np.broadcast_to(noisy.value[:, None], shape),
        np.broadcast_to(noisy.variance[:, None], shape),
    )


def _contracted(first: Noisy, second: Noisy) -> Noisy:
    """Sum over the rows of two factors: ``(G, m, r, i), (G, m, r, j) -> (G, m, i, j)``."""
    left, right = first.value.swapaxes(-1, -2), second.value
    spread = left**2 @ second.variance + first.variance.swapaxes(-1, -2) @ right**2
    return Noisy(left @ right, spread)
