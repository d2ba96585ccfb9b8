"""Heads that add nothing, and the partners of zero factors: what cannot matter is set to zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.folded_parts import FoldedAttention, held
from fiberscope.checkpoints.equality.noisy import FAINT, Noisy, joined
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.stack import Stack

COARSE = 1e-5
"""Relative rounding between that of float32 and that of 16 bits."""


def with_constant(rows: Noisy | Rows, constant: Noisy | None) -> Noisy:
    """Rows with their constant as one more entry."""
    rows = held(rows)
    if constant is None:
        return rows
    return joined([rows, constant.reshaped(*constant.shape, 1)], -1)


def reordered(
    f: FoldedAttention, groups: NDArray[np.int64], heads: NDArray[np.int64]
) -> FoldedAttention:
    """The same heads in another order: groups ``(G,)``, and query heads of each ``(G, m)``."""
    pick = (groups[:, None], heads)

    def inner(noisy: Noisy | None) -> Noisy | None:
        return None if noisy is None else noisy.part(pick)

    def outer(noisy: Noisy | None) -> Noisy | None:
        return None if noisy is None else noisy.part(groups)

    query, output = inner(f.query), inner(f.output)
    key, value = outer(f.key), outer(f.value)
    assert query is not None and output is not None and key is not None and value is not None
    return FoldedAttention(
        f.attention,
        query,
        key,
        value,
        output,
        inner(f.query_constant),
        outer(f.key_constant),
        f.query_gain,
        f.key_gain,
        inner(f.table),
    )


def silenced(f: FoldedAttention) -> FoldedAttention:
    """Zero what cannot matter: a head that adds nothing, and the partner of a zero query or key.

    Zero as far as rounding tells. Constant values are part of the step's constant already.
    """
    query, key, value, output = f.query, f.key, f.value, f.output
    q0, k0 = f.query_constant, f.key_constant
    adds, asks, offers = _live(f)
    if asks.all() and adds.all():
        return f

    def keep(noisy: Noisy, live: NDArray[np.bool_]) -> Noisy:
        mask = live.reshape(*live.shape, *([1] * (len(noisy.shape) - live.ndim)))
        return Noisy(np.where(mask, noisy.value, 0.0), np.where(mask, noisy.variance, 0.0))

    return FoldedAttention(
        f.attention,
        keep(query, asks),
        keep(key, offers),
        keep(value, np.asarray(adds.any(axis=1))),
        keep(output, adds),
        None if q0 is None else keep(q0, asks),
        None if k0 is None else keep(k0, offers),
        f.query_gain,
        f.key_gain,
        None if f.table is None else keep(f.table, adds),
    )


Masks = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


def _live(f: FoldedAttention, *, exactly: bool = False) -> Masks:
    """Heads that add something ``(G, m)``, whose queries and whose keys ``(G,)`` matter."""

    def some_row(noisy: Noisy, constant: Noisy | None = None) -> NDArray[np.bool_]:
        if not exactly and isinstance(noisy, Stack) and (sure := noisy.speaks).all():
            return sure
        noisy = with_constant(noisy, constant)
        if exactly:
            return np.asarray(noisy.value.any(axis=(-1, -2)))
        return _some_row(noisy)

    adds = some_row(f.output) & some_row(f.value)[:, None]
    asks = some_row(f.query, f.query_constant) & adds
    offers = some_row(f.key, f.key_constant) & np.asarray(asks.any(axis=1))
    return adds, asks & offers[:, None], offers


def hides_silence(a: FoldedAttention, b: FoldedAttention) -> bool:
    """Whether only rounding makes heads silent in one model that speak in the other."""
    counts = [[int(mask.sum()) for mask in _live(f)] for f in (a, b)]
    if counts[0] == counts[1]:
        return False
    exact = [[int(mask.sum()) for mask in _live(f, exactly=True)] for f in (a, b)]
    return counts != exact or _flushed(a, b) or _flushed(b, a)


def is_coarse(f: FoldedAttention) -> bool:
    """Whether the rounding of values or outputs is that of 16 bits."""
    return any(
        float(x.variance.sum()) > COARSE**2 * float(np.square(x.value).sum())
        for x in (f.value, f.output)
    )


def _flushed(a: FoldedAttention, b: FoldedAttention) -> bool:
    """Whether a factor that is zero in ``a`` may be one of ``b``, too small for ``a``'s storage."""
    for zero, other in (
        (a.value, b.value),
        (a.output, b.output),
        (a.query, b.query),
        (a.key, b.key),
    ):
        silent = ~zero.value.reshape(len(zero.value), -1).any(axis=1)
        if not silent.any():
            continue
        spread = zero.variance.reshape(len(zero.value), -1).sum(axis=1)[silent].max()
        size = np.square(other.value).reshape(len(other.value), -1).sum(axis=1)
        if ((size > 0) & (size <= FAINT**2 * spread)).any():
            return True
    return False


def _some_row(noisy: Noisy) -> NDArray[np.bool_]:
    """Whether some row of every factor is not zero."""
    return np.asarray((~noisy.is_faint).any(axis=-1))


def without_silent_groups(f: FoldedAttention) -> FoldedAttention:
    """Leave out groups that add nothing, for models with different numbers of them."""
    live = np.flatnonzero(silenced(f).output.value.any(axis=(1, 2, 3)))
    heads = np.broadcast_to(np.arange(f.query.shape[1]), (len(live), f.query.shape[1]))
    return reordered(f, live, heads)
