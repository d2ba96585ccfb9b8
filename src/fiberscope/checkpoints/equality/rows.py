"""Matrices of a model, folded a few rows at a time: what is never held as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.loops import loops
from fiberscope.checkpoints.equality.noisy import (
    FAINT,
    SHORT,
    SUM_ROUNDINGS,
    Array,
    Noisy,
    coarseness,
    joined,
    least_power,
    rounded,
)
from fiberscope.checkpoints.equality.once import once

ENTRIES = 1 << 17
"""Entries of a matrix that are worked on at a time: few enough to stay in the cache, and enough for
threads not to wait for each other."""
MANY_ENTRIES = 1 << 20
"""The same for compiled loops, which read a few rows at a time themselves."""
SKETCH = 8
"""Projections by which rows of two models are recognised."""
SAMPLE = 32
"""Rows whose rounding is looked at where a typical one will do."""


@dataclass(frozen=True)
class Rows:
    """A stored matrix and what is folded into its rows.

    Attributes
    ----------
    held
        Rows as they are stored, in the stored format; ``(n, d)`` but for ``numbers``.
    offset, shifts, gain
        Added to every number, added to the rows of a mask ``(n,)``, and multiplied into every row
        (``(d,)``).
    level
        Whether every row then loses its mean.
    mean
        What every row loses after that, ``(d,)``: the mean over all rows, with the variance that
        centring adds.
    factor
        What the rest is multiplied by.
    columns, signs
        Which stored column stands at every place, and what it is multiplied by in the end,
        ``(d,)``; None: all as they are.
    squares
        At least the squared norm of every stored row, where that is known.
    numbers
        Which of the rows that are held these are, ``(n,)``; None: all as they are.
    """

    held: NDArray[Any]
    offset: float = 0.0
    shifts: tuple[tuple[NDArray[np.bool_], Noisy], ...] = ()
    gain: Noisy | None = None
    level: bool = False
    mean: Noisy | None = None
    factor: float = 1.0
    columns: NDArray[np.int64] | None = None
    signs: Array | None = None
    squares: float | None = None
    numbers: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the table."""
        count, width = self.held.shape
        return count if self.numbers is None else len(self.numbers), width

    @once
    def stored(self) -> NDArray[Any]:
        """Stored numbers of these rows, ``(n, d)``; in another order, a copy that is kept."""
        return self.held if self.numbers is None else taken(self.held, self.numbers, 0)

    def some(self, index: Any) -> NDArray[Any]:
        """Stored numbers of some rows."""
        if self.numbers is None or "stored" in self.__dict__:
            return np.asarray(self.stored[index])
        return taken(self.held, self.numbers[index], 0)

    def part(self, index: Any) -> Noisy:
        """Some rows."""
        stored = self.some(index)
        if self.columns is not None:
            stored = taken(stored, self.columns, 1)
        rows = rounded(stored, self.offset)
        for mask, by in self.shifts:
            chosen = mask[index][:, None]
            rows.value += np.where(chosen, by.value, 0.0)
            rows.variance += np.where(chosen, by.variance, 0.0)
        if self.gain is not None or self.level:
            rows.fold(self.gain, centred=self.level, own=self.held.dtype.itemsize > 4)
        if self.mean is not None:
            count = self.shape[0]
            rows.variance += (2 * np.finfo(np.float64).eps) ** 2 * np.square(rows.value)
            rows.variance *= 1 - 2 / count
            rows.variance += self.mean.variance
            rows.value -= self.mean.value
        if self.factor != 1.0:
            rows.value *= self.factor
            rows.variance *= self.factor**2
        if self.signs is not None:
            rows.value *= self.signs
        return rows

    @once
    def glance(self) -> Noisy | None:
        """A few columns, ``(n, SKETCH)``, if they tell that no row is zero up to rounding.

        Behind a centring they are taken relative to their own mean, which centring leaves alone.
        Their squares, so centred, add up to less than those of the whole row.
        """
        if self.mean is not None or self.shifts or self.offset or not self.shape[0]:
            return None
        if self.held.dtype != np.float32:
            return None
        width = self.shape[1]
        if width < 2 * SKETCH:
            return None
        chosen = np.linspace(0, width - 1, SKETCH).astype(np.int64)
        part = replace(
            self,
            held=taken(self.stored, chosen if self.columns is None else self.columns[chosen], 1),
            numbers=None,
            gain=None if self.gain is None else self.gain.take(chosen, 0),
            signs=None if self.signs is None else self.signs[chosen],
            columns=None,
        ).part(np.s_[:])
        # No row is larger than all rows.
        largest = 1.0 if self.gain is None else float(np.square(self.gain.value).max())
        squares = self.squares
        if squares is None:
            stored = self.stored
            lines = stored if stored.strides[1] <= stored.strides[0] else stored.T
            squares = float(np.vecdot(lines, lines).sum(dtype=np.float64)) * 1.001
        whole = squares * largest
        spread = self._spread_below(np.array([whole]))[0] * self.factor**2
        if not (part.size > 2 * FAINT**2 * spread).all() or not spread > 0:
            return None
        return part

    @once
    def survey(self) -> tuple[Array, Array, NDArray[np.bool_]]:
        """What can be told of every row in one pass over the stored numbers.

        Its projection on the rows of :func:`sketch_matrix`, ``(n, SKETCH)``, its squared norm,
        and whether it is surely more than its rounding (where not, only :meth:`part` tells).
        """
        return self._survey(sketch_matrix(self.shape[1]))

    def _survey(self, matrix: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        assert self.mean is None and not self.shifts
        if self.signs is not None:
            matrix = matrix * self.signs
        if self.columns is not None:
            # Columns need no moving for numbers that do not depend on their order.
            back = np.argsort(self.columns)
            gain = None if self.gain is None else self.gain.take(back, 0)
            plain = replace(self, columns=None, signs=None, gain=gain)
            return plain._survey(matrix[:, back])
        width = self.shape[1]
        weights = np.concatenate([matrix.T, np.ones((width, 1))], axis=1)
        if self.level:
            weights[:, :-1] -= weights[:, :-1].mean(axis=0)
        if self.gain is not None:
            weights *= self.gain.value[:, None]
        found = np.empty((len(self.stored), weights.shape[1]))
        before = np.empty(len(self.stored))
        for index in pieces(self.shape):
            values = np.empty_like(self.stored[index], dtype=np.float64)
            np.add(self.stored[index], self.offset, out=values)
            np.matmul(values, weights, out=found[index])
            if self.gain is not None:
                values *= self.gain.value
            before[index] = np.vecdot(values, values)
        size = before - found[:, -1] ** 2 / width if self.level else before
        surely = size > np.maximum(2 * FAINT**2 * self._spread_below(before), 1e-12 * before)
        return found[:, :-1] * self.factor, size * self.factor**2, surely

    def typical_spread(self, count: int) -> Array:
        """A typical variance of projections in the survey, shape ``(count, SKETCH)``."""
        some = self.part(np.s_[:: max(1, self.shape[0] // SAMPLE)])
        squares = np.square(sketch_matrix(self.shape[1]).T)
        return np.broadcast_to(np.median(some.variance @ squares, axis=0), (count, SKETCH))

    def _spread_below(self, before: Array) -> Array:
        """Bound on the summed variances of rows with these squared norms before centring."""
        relative, least = coarseness(self.held.dtype)
        gain = Noisy.exact(np.ones(1)) if self.gain is None else self.gain
        live = gain.value != 0
        apart = gain.variance[live] / np.square(gain.value[live])
        factor = relative + float(apart.max(initial=0.0)) * (1 + relative)
        own = (2 * np.finfo(np.float64).eps) ** 2
        extra = self.shape[1] * (least * float(np.square(gain.value).max()) + 1e-300)
        if self.offset:
            factor = np.inf  # the spacing is that of the stored number
        return np.asarray((factor + own) * before + extra)

    def parts(self) -> Iterator[Noisy]:
        """All rows, a few at a time."""
        for part in pieces(self.shape):
            yield self.part(part)

    def whole(self) -> Noisy:
        """All rows at once."""
        result = Noisy(np.empty(self.shape), np.empty(self.shape))
        for index in pieces(self.shape):
            part = self.part(index)
            result.value[index], result.variance[index] = part.value, part.variance
        return result

    @once
    def _whole(self) -> Noisy:
        return self.whole()

    @property
    def value(self) -> Array:
        """Values of all rows at once; they stay in memory."""
        return self._whole.value

    @property
    def variance(self) -> Array:
        """Variances of all rows at once; they stay in memory."""
        return self._whole.variance

    def dot(self, vector: Noisy) -> Noisy:
        """Contraction of all rows with a vector, ``(n,)``."""
        if self._is_plain and (compiled := loops(self.stored.size, "sum_kernels")) is not None:
            many = pieces(self.shape, MANY_ENTRIES)
            found = [self._plain_dot(compiled, vector, part) for part in many]
        else:
            found = [part.dot(vector) for part in self.parts()]
        return joined(found, 0)

    @property
    def _is_plain(self) -> bool:
        """Whether the rows are stored numbers of a short format, and nothing else."""
        plain = self.gain is None and not self.level and self.mean is None and not self.shifts
        plain = plain and self.columns is None and self.signs is None and self.factor == 1.0
        return plain and not self.offset and self.held.dtype.name in SHORT

    def _plain_dot(self, compiled: ModuleType, vector: Noisy, index: slice) -> Noisy:
        stored = compiled.matrix(self.stored[index])
        squares = np.square(vector.value)
        # What cancels in the sum leaves the rounding of float64 itself behind.
        passed = vector.variance + (SUM_ROUNDINGS * np.finfo(np.float64).eps) ** 2 * squares
        found = np.empty((2, len(self.stored[index])))
        kind = self.stored.dtype
        weights = coarseness(kind)[0] * squares
        compiled.dotted(
            stored, np.ascontiguousarray(vector.value), weights, passed, least_power(kind), found
        )
        return Noisy(found[0], found[1])

    def combined(self, weights: Noisy) -> Noisy:
        """Sum of all rows, each with a weight ``(n,)``, shape ``(d,)``."""
        if self._is_plain and loops(self.stored.size) is not None:
            return Rows(self.stored.T).dot(weights)
        width = self.shape[1]
        total = Noisy.exact(np.zeros(width))
        squares = np.square(weights.value)
        # What cancels in the sum leaves the rounding of float64 itself behind.
        passed = weights.variance + (SUM_ROUNDINGS * np.finfo(np.float64).eps) ** 2 * squares
        for index in pieces(self.shape):
            part = self.part(index)
            total.value += weights.value[index] @ part.value
            total.variance += squares[index] @ part.variance
            total.variance += passed[index] @ np.square(part.value, out=part.value)
        return total

    def chosen(self, index: NDArray[np.int64]) -> Rows:
        """Some rows, in the given order."""
        start, count = int(index[0]) if len(index) else 0, len(index)
        if np.array_equal(index, np.arange(start, start + count)):
            if count == self.shape[0]:
                return self
            near = np.s_[start : start + count]
            masks = tuple((mask[near], by) for mask, by in self.shifts)
            if self.numbers is None:
                return replace(self, held=self.held[near], shifts=masks)
            return replace(self, numbers=self.numbers[near], shifts=masks)
        masks = tuple((mask[index], by) for mask, by in self.shifts)
        numbers = index if self.numbers is None else self.numbers[index]
        return replace(self, numbers=numbers, shifts=masks)

    def renamed(self, order: NDArray[np.int64], sign: Array) -> Rows:
        """Columns in another order, and with signs."""
        signs = sign if self.signs is None else self.signs[order] * sign
        result = replace(self, signs=None if (signs == 1).all() else signs)
        if (order == np.arange(len(order))).all():
            return result

        def moved(vector: Noisy | None) -> Noisy | None:
            return None if vector is None else vector.take(order, 0)

        return replace(
            result,
            columns=order if self.columns is None else self.columns[order],
            shifts=tuple((mask, by.take(order, 0)) for mask, by in self.shifts),
            gain=moved(self.gain),
            mean=moved(self.mean),
        )

    def average(self) -> Noisy:
        """Mean over the rows."""
        value, variance = total = np.zeros((2, self.shape[1]))
        kind, count = self.stored.dtype, len(self.stored)
        compiled = loops(self.stored.size, "sum_kernels") if self._is_plain else None
        if compiled is not None:
            for index in pieces(self.shape, MANY_ENTRIES):
                part = self.stored[index]
                compiled.added(compiled.matrix(part), least_power(kind), len(part), total)
            variance *= coarseness(kind)[0]
        else:
            for rows in self.parts():
                value += rows.value.sum(axis=0)
                variance += rows.variance.sum(axis=0)
        return Noisy(value / count, variance / count**2)

    def centred(self, axis: int) -> Rows:
        """Less the mean of every row (last axis), or of all rows (first axis)."""
        assert self.mean is None and self.factor == 1.0
        if axis in (-1, 1):
            return replace(self, level=True)
        return replace(self, mean=self.average())

    def scaled(self, factor: float) -> Rows:
        """Multiplied by an exact number."""
        return replace(self, factor=self.factor * factor)


def sketch_matrix(width: int) -> Array:
    """Random projections of vectors of one width, shape ``(SKETCH, width)``."""
    return np.random.default_rng(20260930).standard_normal((SKETCH, width))


def taken(stored: NDArray[Any], index: NDArray[np.int64], axis: int) -> NDArray[Any]:
    """Rows or columns of a matrix in another order, laid out in memory as they were."""
    if stored.ndim == 2 and abs(stored.strides[0]) < abs(stored.strides[1]):
        return np.take(stored.T, index, axis=1 - axis, mode="clip").T
    return np.take(stored, index, axis=axis, mode="clip")


def pieces(shape: tuple[int, ...], entries: int = ENTRIES) -> Iterator[slice]:
    """Consecutive rows of a matrix, a few at a time."""
    step = max(1, entries // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def squares(table: Noisy | Rows) -> Array:
    """Squared norm of every row."""
    if isinstance(table, Noisy):
        return table.size
    return np.concatenate([part.size for part in table.parts()])
