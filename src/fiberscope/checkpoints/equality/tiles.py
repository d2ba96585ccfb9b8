"""The statistic of two stored matrices, straight from the stored numbers.

What :func:`~fiberscope.checkpoints.equality.statistic.statistic_of_parts` does array by array is
done here by compiled loops, for storage beside whose rounding that of float64 is nothing. What the
loops do not know, and everything where they cannot be compiled, goes the general way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.loops import loaded, loops
from fiberscope.checkpoints.equality.noisy import SHORT, Array, Noisy, coarseness, least_power
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.equality.rows import ENTRIES, MANY_ENTRIES, SKETCH, Rows, pieces
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import (
    Piece,
    Statistic,
    Tally,
    statistic_of_pieces,
)
from fiberscope.checkpoints.threads import in_order

FAINTEST, STRONGEST = 1e-34, 1e30
"""Squares between which float32 has all its digits."""
TOGETHER = 0.9
"""Share of rows that follow the row before, from which rows in another order lie together."""
REACH = 1e-12
"""Squared sizes of rows of a factor that have a common unit, relative to typical ones."""


def statistic_of_rows(
    name: str,
    found: Rows,
    expected: Rows,
    constants: tuple[Noisy | None, Noisy | None] = (None, None),
    *,
    rotated: bool,
    computed: bool = True,
    threads: int = 1,
) -> Statistic:
    """:func:`statistic_of_parts` of two matrices of one shape that are folded as they are read.

    Parameters
    ----------
    found, expected, rotated, computed
        As there; nothing was fitted, so there is no leverage and no condition.
    constants
        One more entry for every row of both, ``(n,)``.
    threads
        How many may share the work.
    """
    sides = None
    if computed and (constants[0] is None) == (constants[1] is None):
        sides = Side.of(found), Side.of(expected)

    def part(indices: Sequence[slice]) -> list[Piece]:
        tally = Tally(rotated=rotated, computed=computed)
        for index in indices:
            if sides is not None and sides[0] is not None and sides[1] is not None:
                some = [
                    None if constant is None else constant.part(index) for constant in constants
                ]
                piece = _measured(sides[0], sides[1], index, some, tally.factor, rotated)
                tally.pieces.append(piece)
            else:
                tally.add(_whole(found, constants[0], index), _whole(expected, constants[1], index))
        return tally.pieces

    compiled = sides is not None and sides[0] is not None and sides[1] is not None
    indices = list(pieces(found.shape, MANY_ENTRIES if compiled else ENTRIES))
    share = max(1, -(-len(indices) // max(1, threads)))
    tasks = [partial(part, indices[at : at + share]) for at in range(0, len(indices), share)]
    parts = in_order([(1, task) for task in tasks], len(tasks), threads)
    measured_rows = [piece for some in parts for piece in some]
    return statistic_of_pieces(name, measured_rows)


def _whole(rows: Rows, constant: Noisy | None, index: slice) -> Noisy:
    part = rows.part(index)
    return with_constant(part, None if constant is None else constant.part(index))


@dataclass
class Side:
    """One matrix as the loops want it.

    Attributes
    ----------
    columns, by, settings
        See :func:`fiberscope.checkpoints.equality.residual_kernels.residuals`.
    """

    compiled: ModuleType
    rows: Rows
    columns: NDArray[np.uint64]
    by: Array
    settings: Array

    @classmethod
    def of(cls, rows: Rows) -> Side | None:
        """None for matrices that only the general way can handle."""
        width = rows.shape[1]
        apart = bool(rows.shifts) or bool(rows.offset)
        compiled = loops(math.prod(rows.shape))
        if compiled is None or rows.held.dtype.name not in SHORT or rows.mean is not None:
            return None
        if rows.level and width < 3:
            return None  # a mean of two numbers leaves no variance of their own
        if rows.gain is not None and apart:
            return None
        if not all(mask.all() for mask, _ in rows.shifts):
            return None
        if rows.signs is not None and rows.level and (rows.signs != rows.signs[0]).any():
            return None  # signs come after centring
        by = np.zeros((5, width))
        by[compiled.GAIN] = rows.factor
        if rows.gain is not None:
            by[compiled.GAIN] *= rows.gain.value
        # What centring leaves of each variance, besides what it adds to all.
        left = 1 - 2 / width if rows.level else 1.0
        relative = coarseness(rows.held.dtype)[0]
        by[compiled.SPACING] = np.sqrt(relative * left) * np.abs(by[compiled.GAIN])
        if rows.gain is not None:
            by[compiled.PASSED] = np.sqrt(left * rows.gain.variance) * abs(rows.factor)
        for _, shift in rows.shifts:
            by[compiled.SHIFT] += shift.value
            by[compiled.SHIFTED] += left * rows.factor**2 * shift.variance
        if rows.signs is not None:
            by[compiled.GAIN] *= rows.signs
        columns = np.zeros(0) if rows.columns is None else rows.columns
        settings = np.array([rows.offset, least_power(rows.held.dtype), float(rows.level)])
        return cls(compiled, rows, np.ascontiguousarray(columns, dtype=np.uint64), by, settings)

    def typical_size(self) -> float:
        """Squared norm of a large row among a few, but for centring: a size to take a unit from."""
        some = self.rows.some(np.s_[:: max(1, self.rows.shape[0] // SKETCH)]).astype(np.float64)
        gain = float(np.square(self.by[self.compiled.GAIN]).mean())
        return float(np.vecdot(some, some).max(initial=0.0)) * gain

    def in_units(self, unit: float) -> NDArray[np.float32]:
        """What variances in units are made of, in float32, row by row as in ``by``."""
        result = np.zeros(self.by.shape, dtype=np.float32)
        for row in (self.compiled.SPACING, self.compiled.PASSED):
            result[row] = self.by[row] * unit
        result[self.compiled.SHIFTED] = self.by[self.compiled.SHIFTED] * unit**2
        return result

    def stored(self, index: slice = np.s_[:]) -> tuple[Any, NDArray[np.uint64]]:
        """Some rows as the loops read them: a matrix, and which of its rows (none: all)."""
        rows = self.rows
        none = np.zeros(0, dtype=np.uint64)
        if rows.numbers is None or not self.is_near:
            return self.compiled.matrix(rows.stored[index]), none
        return self.compiled.matrix(rows.held), rows.numbers[index].astype(np.uint64)

    @once
    def is_near(self) -> bool:
        """Whether rows in another order can be read from where they are held.

        Single rows of a matrix that is stored by columns are read faster all at once.
        """
        held, numbers = self.rows.held, self.rows.numbers
        if held.dtype != np.float32 or numbers is None or not len(numbers):
            return False
        together = np.diff(numbers, prepend=-2) == 1
        return held.strides[1] <= held.strides[0] or float(together.mean()) > TOGETHER


def _measured(
    one: Side,
    other: Side,
    index: slice,
    constants: Sequence[Noisy | None],
    factor: float,
    rotated: bool,
) -> Piece:
    """Residuals of some rows."""
    matrices, numbers = zip(one.stored(index), other.stored(index), strict=True)
    count, width = len(range(*index.indices(one.rows.shape[0]))), one.rows.shape[1]
    last = [
        np.zeros((2, count)) if constant is None else np.stack([constant.value, constant.variance])
        for constant in constants
    ]
    joined = constants[0] is not None
    found = np.empty((count, 6))
    loaded("residual_kernels").residuals(
        matrices[0],
        matrices[1],
        numbers[0],
        numbers[1],
        one.columns,
        other.columns,
        one.by,
        other.by,
        last[0],
        last[1],
        np.concatenate([one.settings, other.settings]),
        factor,
        joined,
        rotated,
        found,
    )
    return Piece(width + joined, *found.T)


@dataclass
class Factor:
    """A factor of heads, ``(G, r, n)``, with its variances in units.

    Attributes
    ----------
    value, size
        Values, float64, and the squared norms of their rows ``(G, r)``.
    variance
        Variances times ``unit ** 2``: float32, or float64 where the range of that does not do.
    """

    value: Array
    size: Array
    variance: NDArray[Any]
    unit: float

    @classmethod
    def of(cls, held: Noisy) -> Factor:
        """A factor in float64."""
        return cls(held.value, held.size, held.variance, 1.0)

    def with_constant(self, constant: Noisy | None) -> Factor:
        """One more entry for every row."""
        if constant is None:
            return self
        if self.variance.dtype == np.float32:
            spread = float(constant.variance.max(initial=0.0)) * self.unit**2
            if not spread < STRONGEST:
                # A constant far larger than the rows: float32 has no room for both.
                whole = self.variance / np.float64(self.unit) ** 2
                return Factor(self.value, self.size, whole, 1.0).with_constant(constant)
        last = constant.value[..., None], (constant.variance * self.unit**2)[..., None]
        return Factor(
            np.concatenate([self.value, last[0]], axis=-1),
            self.size + np.square(constant.value),
            np.concatenate([self.variance, last[1].astype(self.variance.dtype)], axis=-1),
            self.unit,
        )

    def side_by_side(self) -> Factor:
        """The heads of a group as one factor: ``(G, m, r, n) -> (G, r, m n)``."""
        count, _, width, _ = self.value.shape
        value, variance = (
            x.transpose(0, 2, 1, 3).reshape(count, width, -1) for x in (self.value, self.variance)
        )
        return Factor(value, self.size.sum(axis=1), variance, self.unit)


def factors(first: Noisy, second: Noisy) -> list[Factor]:
    """A factor of both models, in one unit of rounding."""
    if isinstance(first, Stack) and isinstance(second, Stack):
        found = _short_factors(first, second)
        if found is not None:
            return found
    held = [x.held() if isinstance(x, Stack) else x for x in (first, second)]
    return [Factor.of(x) for x in held]


def common_unit(sides: Sequence[Side], length: int) -> tuple[float, float]:
    """A unit of rounding for rows of both models, and the typical squared norm; 0 where none is."""
    coarse = max(coarseness(side.rows.held.dtype)[0] for side in sides)
    typical = max(side.typical_size() for side in sides)
    top = typical * coarse / length
    if not 0 < top < np.inf:
        return 0.0, typical
    return float(2.0 ** -np.round(np.log2(top) / 2)), typical


def _short_factors(first: Stack, second: Stack) -> list[Factor] | None:
    """None where the loops cannot, or rows differ too much in size for a common unit."""
    sides = []
    for stack in (first, second):
        side = Side.of(stack.rows)
        if side is None:
            return None
        sides.append(side)
    unit, typical = common_unit(sides, first.shape[-1])
    if not unit:
        return None
    result = []
    for stack, side in zip((first, second), sides, strict=True):
        count, width = side.rows.shape
        values, variances = np.empty((count, width)), np.empty((count, width), dtype=np.float32)
        sizes, spreads = np.zeros(count), np.zeros(count)
        loaded("factor_kernels").folded(
            *side.stored(),
            side.columns,
            side.by,
            side.in_units(unit),
            side.settings,
            0,
            0,
            values,
            variances,
            sizes,
            spreads,
        )
        shape = stack.shape
        result.append(
            Factor(values.reshape(shape), sizes.reshape(shape[:-1]), variances.reshape(shape), unit)
        )
    every = np.concatenate([factor.size.reshape(-1) for factor in result])
    # The unit is that of some rows; others may differ as far as float32 has digits for them.
    limits = np.array([REACH, 1 / REACH]) * typical
    if not (every.min() > limits[0] and every.max() < limits[1]):
        return None
    return result
