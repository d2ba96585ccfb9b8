"""The statistic of two stored matrices, straight from the stored numbers.

What :func:`~fiberscope.checkpoints.equality.statistic.statistic_of_parts` does with variances in
float64, element by element, is done here in few passes over large pieces. Values and residuals are
float64. Variances and squared residuals, of which three digits matter, are float32 in units of the
rounding of the piece; where such units do not fit all its rows, float64 takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.noisy import SHORT, Array, Noisy, coarseness
from fiberscope.checkpoints.equality.rows import Rows, pieces, taken
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import (
    Piece,
    Statistic,
    Tally,
    measured,
    statistic_of_pieces,
)
from fiberscope.checkpoints.processes import results

Single = NDArray[np.float32]
_EXPONENT = np.uint32(0x7F80_0000)
FAINTEST, STRONGEST = 1e-34, 1e30
"""Squares between which float32 has all its digits."""


def statistic_of_rows(
    name: str,
    found: Rows,
    expected: Rows,
    constants: tuple[Noisy | None, Noisy | None] = (None, None),
    *,
    rotated: bool,
    computed: bool = True,
    processes: int = 1,
) -> Statistic:
    """:func:`statistic_of_parts` of two matrices of one shape that are folded as they are read.

    Parameters
    ----------
    found, expected, rotated, computed
        As there; nothing was fitted, so there is no leverage and no condition.
    constants
        One more entry for every row of both, ``(n,)``.
    processes
        How many may share the work.
    """
    one, other = _Side.of(found, constants[0]), _Side.of(expected, constants[1])

    def part(indices: Sequence[slice]) -> list[Piece]:
        tally = Tally(rotated=rotated, computed=computed)
        for index in indices:
            piece = None
            if computed and one is not None and other is not None:
                piece = _short(one, other, index, tally.factor, rotated)
            if piece is None:
                tally.add(_whole(found, constants[0], index), _whole(expected, constants[1], index))
            else:
                tally.pieces.append(piece)
        return tally.pieces

    indices = list(pieces(found.shape))
    share = max(1, -(-len(indices) // max(1, processes)))
    tasks = [partial(part, indices[at : at + share]) for at in range(0, len(indices), share)]
    measured_rows = [piece for some in results(tasks, processes) for piece in some]
    return statistic_of_pieces(name, measured_rows)


def _whole(rows: Rows, constant: Noisy | None, index: slice) -> Noisy:
    part = rows.part(index)
    return with_constant(part, None if constant is None else constant.part(index))


@dataclass
class _Side:
    """One matrix with what its columns are multiplied by.

    Attributes
    ----------
    gain
        Of the values, per column.
    spacing, passed
        Roots of the variance that a power of two and a stored number bring, per column: rounding
        of the number itself and of its gain.
    shifted
        Variance of what is added to rows, per column.
    """

    rows: Rows
    constant: Noisy | None
    gain: Array | None
    spacing: Array
    passed: Array | None
    shifted: Array | None

    @classmethod
    def of(cls, rows: Rows, constant: Noisy | None) -> _Side | None:
        """None for matrices that only the general way can handle."""
        name, width = rows.stored.dtype.name, rows.shape[1]
        apart = bool(rows.shifts) or bool(rows.offset)
        if name not in SHORT or rows.mean is not None:
            return None
        if rows.gain is not None and apart:
            return None
        if not all(mask.all() for mask, _ in rows.shifts):
            return None
        if rows.signs is not None and rows.level and (rows.signs != rows.signs[0]).any():
            return None  # signs come after centring
        gain = None if rows.gain is None else rows.gain.value
        if rows.signs is not None:
            gain = rows.signs if gain is None else gain * rows.signs
        if rows.factor != 1.0:
            gain = np.full(width, rows.factor) if gain is None else gain * rows.factor
        # What centring leaves of each variance, besides what it adds to all.
        left = 1 - 2 / width if rows.level else 1.0
        size = np.ones(width) if gain is None else np.abs(gain)
        spacing = np.sqrt(coarseness(rows.stored.dtype)[0] * left) * size
        passed = (
            None if rows.gain is None else np.sqrt(left * rows.gain.variance) * abs(rows.factor)
        )
        shifted = None
        if rows.shifts:
            shifted = left * rows.factor**2 * np.sum([by.variance for _, by in rows.shifts], axis=0)
        return cls(rows, constant, gain, spacing, passed, shifted)

    def stored(self, index: slice) -> Single:
        """Some rows as they are stored, in float32."""
        stored = self.rows.stored[index]
        if self.rows.columns is not None:
            stored = taken(stored, self.rows.columns, 1)
        return stored if stored.dtype == np.float32 else stored.astype(np.float32)

    def values(self, stored: Single) -> tuple[Array, Array, Array]:
        """Folded values but for centring, the means to take off, and squared norms after that."""
        values = np.empty_like(stored, dtype=np.float64)
        values[...] = stored
        if self.rows.offset:
            values += self.rows.offset
        for _, by in self.rows.shifts:
            values += by.value
        if self.gain is not None:
            values *= self.gain
        size = np.vecdot(values, values)
        width = values.shape[1]
        if not self.rows.level:
            return values, np.zeros(len(size)), size
        mean = values @ np.full(width, 1 / width)
        return values, mean, np.maximum(size - width * mean**2, 0.0)

    def variances(self, stored: Single, unit: float) -> tuple[Single, Array]:
        """Variances in units but for what centring adds to a whole row, and their sums."""
        variances = np.empty_like(stored)
        np.bitwise_and(stored.view(np.uint32), _EXPONENT, out=variances.view(np.uint32))
        if self.rows.stored.dtype.name == "float16":
            np.maximum(variances, np.float32(2.0**-14), out=variances)
        variances *= (self.spacing * unit).astype(np.float32)
        variances *= variances
        if self.passed is not None:
            passed = stored * (self.passed * unit).astype(np.float32)
            passed *= passed
            variances += passed
        if self.shifted is not None:
            variances += (self.shifted * unit**2).astype(np.float32)
        ones = np.ones(variances.shape[1], dtype=np.float32)
        return variances, (variances @ ones).astype(np.float64)


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


def _short_factors(first: Stack, second: Stack) -> list[Factor] | None:
    whole = np.s_[:]
    sides = [_Side.of(stack.rows, None) for stack in (first, second)]
    found = []
    for side in sides:
        if side is None:
            return None
        stored = side.stored(whole)
        values, mean, size = side.values(stored)
        if side.rows.level:
            values -= mean[:, None]
        found.append((side, stored, values, size))
    sizes = np.concatenate([size for *_, size in found])
    coarse = max(coarseness(side.rows.stored.dtype)[0] for side, *_ in found)
    top = float(sizes.max(initial=0.0)) * coarse / first.shape[-1]
    # Rows that differ too much in size have no common unit.
    if not 0 < top < np.inf or not sizes.min() > 1e-12 * sizes.max():
        return None
    unit = float(2.0 ** -np.round(np.log2(top) / 2))
    result = []
    for stack, (side, stored, values, size) in zip((first, second), found, strict=True):
        variance, sums = side.variances(stored, unit)
        if side.rows.level:
            width = values.shape[1]
            variance += (sums / (width * (width - 2))).astype(np.float32)[:, None]
        shape = stack.shape
        result.append(
            Factor(values.reshape(shape), size.reshape(shape[:-1]), variance.reshape(shape), unit)
        )
    return result


def _short(
    found: _Side, expected: _Side, index: slice, factor: float, rotated: bool
) -> Piece | None:
    """Measure some rows in float32; None where its range is too small for them."""
    sides = found, expected
    stored = [side.stored(index) for side in sides]
    (apart, mean, size), (other, other_mean, other_size) = (
        side.values(part) for side, part in zip(sides, stored, strict=True)
    )
    width = found.rows.shape[1]
    constants = [None if side.constant is None else side.constant.part(index) for side in sides]
    joined = constants[0] is not None and constants[1] is not None
    sizes = [size, other_size]
    for i, constant in enumerate(constants):
        if constant is not None:
            sizes[i] = sizes[i] + np.square(constant.value)
    largest = np.maximum(*sizes)
    coarse = max(coarseness(side.rows.stored.dtype)[0] for side in sides)
    top = float(largest.max(initial=0.0)) * coarse / width
    if not 0 < top < np.inf:
        return None
    unit = float(2.0 ** -np.round(np.log2(top) / 2))
    floor = (factor * unit) ** 2 / (width + joined) * largest
    if not float(floor.min()) > FAINTEST:
        return None
    # A shift common to a row can be large: it goes before digits are dropped.
    apart -= other
    apart -= (mean - other_mean)[:, None]
    residual = np.empty_like(apart, dtype=np.float32)
    np.multiply(apart, unit, out=residual, casting="same_kind")
    variances = [side.variances(part, unit) for side, part in zip(sides, stored, strict=True)]
    # What centring adds to every number of a row.
    added = [
        sums / (width * (width - 2)) if side.rows.level else np.zeros(len(sums))
        for side, (_, sums) in zip(sides, variances, strict=True)
    ]
    spreads = [sums + width * more for (_, sums), more in zip(variances, added, strict=True)]
    more = added[0] + added[1]
    variance = variances[0][0]
    variance += variances[1][0]
    if constants[0] is not None and constants[1] is not None:
        # One more column, which centring does not touch.
        spreads = [s + c.variance * unit**2 for s, c in zip(spreads, constants, strict=True) if c]
        last = (constants[0].value - constants[1].value) * unit
        own = (constants[0].variance + constants[1].variance) * unit**2 - more
        residual = np.concatenate([residual, last.astype(np.float32)[:, None]], axis=1)
        variance = np.concatenate([variance, own.astype(np.float32)[:, None]], axis=1)
    if not float(variance.max(initial=0.0)) < STRONGEST or not np.isfinite(residual).all():
        return None
    with np.errstate(over="ignore"):
        piece = measured(
            residual,
            variance,
            (sizes[0], sizes[1]),
            (spreads[0], spreads[1]),
            floor,
            rotated=rotated,
            more=more,
        )
    if not np.isfinite(piece.total).all():
        return None
    return replace(piece, apart=piece.apart / unit**2, share=piece.share / unit**2)
