"""Queries and keys behind their own norms: what may move there, and how to undo it.

A norm over a head's rows leaves no change of basis, but the gains behind it act row by row, so

* a row of all queries (or of the keys) and its gain may change sign together;
* a plane may turn by a quarter in all groups, queries and keys alike, its two gains exchanged;
* a plane may turn by a half in any group, or by any angle where both of its gains are equal for
  queries and for keys;
* a row without position may change sign in the queries and keys of any group.

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


def turned_to(a: FoldedAttention, b: FoldedAttention) -> tuple[FoldedAttention, Array]:
    """Turn the planes and the other rows of ``a`` to those of ``b``; both have positive gains.

    Returns
    -------
    FoldedAttention
        The first model's heads, turned.
    ndarray
        What its rows were multiplied with, shape ``(G, r, r)``.
    """
    count, width = b.query.shape[0], b.query.shape[2]
    turn = np.zeros((count, width, width))
    order = np.arange(width)
    cross = _cross(a, b)
    for row in unrotated_index(b.attention):
        turn[:, row, row] = np.where(cross[:, row, row] < 0, -1.0, 1.0)
    for first, second in b.attention.rotary.planes if b.attention.rotary else ():
        plane = np.array([first, second])
        block = cross[:, plane[:, None], plane]
        # The turn by t maximises cos(t) (c00 + c11) + sin(t) (c10 - c01).
        even, odd = block[:, 0, 0] + block[:, 1, 1], block[:, 1, 0] - block[:, 0, 1]
        if _may_turn(a, plane):
            size = np.hypot(even, odd)
            live = size > 0
            cosine = np.where(live, even / np.where(live, size, 1.0), 1.0)
            sine = np.where(live, odd / np.where(live, size, 1.0), 0.0)
        elif np.abs(odd).sum() > np.abs(even).sum():
            cosine, sine = np.zeros(count), np.where(odd < 0, -1.0, 1.0)
            order[plane] = plane[::-1]
        else:
            cosine, sine = np.where(even < 0, -1.0, 1.0), np.zeros(count)
        turn[:, first, first] = turn[:, second, second] = cosine
        turn[:, second, first], turn[:, first, second] = sine, -sine
    result = replace(
        a,
        query=_turned(a.query, turn[:, None]),
        key=_turned(a.key, turn),
        query_constant=_vector(a.query_constant, turn[:, None]),
        key_constant=_vector(a.key_constant, turn),
        query_gain=None if a.query_gain is None else a.query_gain.take(order, 0),
        key_gain=None if a.key_gain is None else a.key_gain.take(order, 0),
    )
    return result, turn


def _turned(rows: Noisy, turn: Array) -> Noisy:
    return Noisy(turn @ rows.value, np.square(turn) @ rows.variance)


def _vector(constant: Noisy | None, turn: Array) -> Noisy | None:
    if constant is None:
        return None
    return _turned(constant.reshaped(*constant.shape, 1), turn).reshaped(*constant.shape)


def _cross(a: FoldedAttention, b: FoldedAttention) -> Array:
    """Products of rows of ``b`` with rows of ``a`` for queries and keys, group by group."""
    total = np.einsum("gmri,gmsi->grs", b.query.value, a.query.value, optimize=True)
    total += b.key.value @ a.key.value.swapaxes(-1, -2)
    for one, other in ((a.query_constant, b.query_constant), (a.key_constant, b.key_constant)):
        if one is not None and other is not None:
            x, y = (noisy.value.reshape(len(total), -1, total.shape[1]) for noisy in (one, other))
            total += y.swapaxes(-1, -2) @ x
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
