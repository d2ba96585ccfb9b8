"""The usual circuits of heads, fitted and measured by compiled loops.

What they leave open, and everything where they cannot be compiled, goes the general way of
:mod:`~fiberscope.checkpoints.equality.circuits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.factors import ALIKE, GOOD_ENOUGH
from fiberscope.checkpoints.equality.loops import loaded
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import EPSILON, FLOOR, Piece
from fiberscope.checkpoints.equality.tiles import REACH, STRONGEST, Side, common_unit

NEGLIGIBLE = 1e4
"""Condition up to which what a fit makes of the rounding of float64 does not count in float32."""
Pair = tuple[Noisy, Noisy]
Constants = tuple[Noisy | None, Noisy | None]


@dataclass
class Settled:
    """Circuits of all groups, ``(G, ...)``.

    Attributes
    ----------
    done
        Which groups are settled; what else is here of the others means nothing.
    matrix
        Changes of basis, ``(G, r, r)``.
    pieces
        What is left of the rows of both factors, group by group, ``(G, 2)``.
    uncertainty
        Relative uncertainty of the products.
    """

    done: NDArray[np.bool_]
    matrix: Array
    pieces: list[tuple[Piece, Piece]]
    uncertainty: Array


def settled_heads(
    plain: Pair,
    dual: Pair,
    constants: tuple[Constants, Constants] = ((None, None), (None, None)),
    *,
    rotated: bool,
) -> Settled | None:
    """Fit ``M`` and ``M^-H`` to factors of all groups; None where the loops cannot.

    Parameters
    ----------
    plain, dual
        Factors of the first and second model, ``(G, r, n)`` or, heads of a group side by side,
        ``(G, m, r, n)``.
    constants
        One more entry for every row of either factor, without the last axis.
    rotated
        As in :func:`~fiberscope.checkpoints.equality.statistic.statistic`.
    """
    sides, units = [], []
    for pair, more in zip((plain, dual), constants, strict=True):
        found = _sides(pair)
        if found is None or (more[0] is None) != (more[1] is None):
            return None
        unit, size = common_unit(found, pair[0].shape[-1])
        if not unit:
            return None
        units.append((unit, size))
        for side, constant in zip(found, more, strict=True):
            last = np.zeros((2, 0))
            if constant is not None:
                variance = constant.variance.reshape(-1) * unit**2
                if not variance.max(initial=0.0) < STRONGEST:
                    return None
                last = np.stack([constant.value.reshape(-1), variance])
            sides.append((side, side.in_units(unit), last))
    shape = plain[1].shape
    inside = [1 if len(pair[0].shape) == 3 else pair[0].shape[1] for pair in (plain, dual)]
    lengths = [
        m * (pair[1].shape[-1] + (more[1] is not None))
        for m, pair, more in zip(inside, (plain, dual), constants, strict=True)
    ]
    compiled = loaded("head_kernels")
    count, r = shape[0], shape[-2]
    leverage = 2 * r / sum(lengths)
    enough = GOOD_ENOUGH * max(1, r * (sum(lengths) - r))
    limits = [leverage, enough, ALIKE, FLOOR * EPSILON]
    limits += [NEGLIGIBLE, STRONGEST**0.5, REACH, 1 / REACH]
    matrix, back = np.empty((count, r, r)), np.empty((count, r, r))
    left, shares, done = np.empty((count, 2, r, 6)), np.zeros(count), np.zeros(count, np.bool_)
    compiled.circuits(
        tuple(
            (*side.stored(), side.columns, side.by, in_units, side.settings)
            for side, in_units, _ in sides
        ),
        tuple(last for _, _, last in sides),
        np.array(inside),
        np.array([unit for unit, _ in units] + [size for _, size in units]),
        np.array(limits, dtype=np.float64),
        rotated,
        matrix,
        back,
        left,
        shares,
        done,
    )
    pieces = [(Piece(lengths[0], *group[0].T), Piece(lengths[1], *group[1].T)) for group in left]
    return Settled(done, matrix, pieces, np.sqrt(shares))


def _sides(pair: Sequence[Noisy]) -> list[Side] | None:
    sides = []
    for factor in pair:
        side = Side.of(factor.rows) if isinstance(factor, Stack) else None
        if side is None:
            return None
        sides.append(side)
    return sides
