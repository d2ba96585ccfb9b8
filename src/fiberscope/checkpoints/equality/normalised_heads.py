"""Queries and keys behind their own norms: what may move there, and how to undo it.

A norm over a head's rows leaves no change of basis, but the gains behind it act row by row, so

* a row of all queries (or of the keys) and its gain may change sign together;
* a plane may turn by quarter turns, queries and keys alike, its two gains exchanged;
* where both gains of a plane are equal for queries and for keys, it may turn by any angle;
* a row without position may change sign in queries and keys together.

After the first is undone (gains positive), the plane's turn is fitted to the second model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index


def with_positive_gains(f: FoldedAttention) -> FoldedAttention:
    """Move the signs of the gains into the rows of queries and keys."""
    assert f.query_gain is not None and f.key_gain is not None
    signs = [np.where(gain.value < 0, -1.0, 1.0) for gain in (f.query_gain, f.key_gain)]
    return replace(
        f,
        query=f.query.scaled(signs[0][:, None]),
        key=f.key.scaled(signs[1][:, None]),
        query_constant=None if f.query_constant is None else f.query_constant.scaled(signs[0]),
        key_constant=None if f.key_constant is None else f.key_constant.scaled(signs[1]),
        query_gain=f.query_gain.scaled(signs[0]),
        key_gain=f.key_gain.scaled(signs[1]),
    )


def turned_to(a: FoldedAttention, b: FoldedAttention) -> FoldedAttention:
    """Turn the planes and the other rows of ``a`` to those of ``b``; both have positive gains."""
    width = b.query.shape[2]
    turn = np.zeros((width, width))
    cross = _cross(a, b)
    for row in unrotated_index(b.attention):
        turn[row, row] = -1.0 if cross[row, row] < 0 else 1.0
    for first, second in b.attention.rotary.planes if b.attention.rotary else ():
        plane = np.array([first, second])
        block = cross[np.ix_(plane, plane)]
        # The turn by t maximises cos(t) (c00 + c11) + sin(t) (c10 - c01).
        even, odd = block[0, 0] + block[1, 1], block[1, 0] - block[0, 1]
        size = np.hypot(even, odd)
        cosine, sine = (even / size, odd / size) if size else (1.0, 0.0)
        if not _may_turn(a, plane):
            steps = np.round(np.arctan2(sine, cosine) / (np.pi / 2))
            cosine, sine = np.round(np.cos(steps * np.pi / 2)), np.round(np.sin(steps * np.pi / 2))
        turn[np.ix_(plane, plane)] = [[cosine, -sine], [sine, cosine]]
    order = np.abs(turn).argmax(axis=1)
    return replace(
        a,
        query=a.query.turned(turn, 2),
        key=a.key.turned(turn, 1),
        query_constant=_vector(a.query_constant, turn),
        key_constant=_vector(a.key_constant, turn),
        query_gain=None if a.query_gain is None else a.query_gain.take(order, 0),
        key_gain=None if a.key_gain is None else a.key_gain.take(order, 0),
    )


def _vector(constant: Noisy | None, turn: Array) -> Noisy | None:
    return None if constant is None else constant.turned(turn, -1)


def _cross(a: FoldedAttention, b: FoldedAttention) -> Array:
    """Products of rows of ``b`` with rows of ``a``, summed over heads, for queries and keys."""
    total = np.einsum("gmri,gmsi->rs", b.query.value, a.query.value)
    total += np.einsum("gri,gsi->rs", b.key.value, a.key.value)
    for one, other in ((a.query_constant, b.query_constant), (a.key_constant, b.key_constant)):
        if one is not None and other is not None:
            rows = one.shape[-1]
            total += other.value.reshape(-1, rows).T @ one.value.reshape(-1, rows)
    return np.asarray(total)


def _may_turn(f: FoldedAttention, plane: NDArray[np.int64]) -> bool:
    """Whether both gains of a plane are equal, for queries and for keys."""
    assert f.query_gain is not None and f.key_gain is not None
    return bool(np.ptp(f.query_gain.value[plane]) == 0 and np.ptp(f.key_gain.value[plane]) == 0)


def energies(f: FoldedAttention, rows: Noisy, weight: Array) -> Noisy:
    """What no turn of a plane and no sign of a row changes, per head.

    Parameters
    ----------
    rows
        Sketched queries or keys, shape ``(G, m, r, features)``.
    weight
        One factor a plane, then one a row without position, shape ``(r,)`` at least.

    Returns
    -------
    Noisy
        Weighted sums of squares, shape ``(G, m, 1, features)``.
    """
    factors = np.zeros(rows.shape[2])
    planes = f.attention.rotary.planes if f.attention.rotary else ()
    for number, plane in enumerate(planes):
        factors[list(plane)] = weight[number]
    for number, row in enumerate(unrotated_index(f.attention)):
        factors[row] = weight[len(planes) + number]
    squares = factors @ np.square(rows.value)
    spread = np.square(factors) @ (4 * np.square(rows.value) * rows.variance)
    return Noisy(squares[..., None, :], spread[..., None, :])
