"""Tables of a model, folded a few rows at a time: what is never held as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.noisy import Array, Noisy, rounded

ENTRIES = 1 << 17
"""Entries of a table that are worked on at a time."""


@dataclass(frozen=True)
class Rows:
    """A stored matrix and what is folded into its rows.

    Attributes
    ----------
    stored
        Shape ``(n, d)``, in the stored format.
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
    """

    stored: NDArray[Any]
    offset: float = 0.0
    shifts: tuple[tuple[NDArray[np.bool_], Noisy], ...] = ()
    gain: Noisy | None = None
    level: bool = False
    mean: Noisy | None = None
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the table."""
        return self.stored.shape

    def part(self, index: Any) -> Noisy:
        """Some rows."""
        rows = rounded(self.stored[index], self.offset)
        for mask, by in self.shifts:
            chosen = mask[index][:, None]
            rows.value += np.where(chosen, by.value, 0.0)
            rows.variance += np.where(chosen, by.variance, 0.0)
        if self.gain is not None or self.level:
            rows.fold(self.gain, centred=self.level)
        if self.mean is not None:
            count = len(self.stored)
            rows.variance += (2 * np.finfo(np.float64).eps) ** 2 * np.square(rows.value)
            rows.variance *= 1 - 2 / count
            rows.variance += self.mean.variance
            rows.value -= self.mean.value
        if self.factor != 1.0:
            rows.value *= self.factor
            rows.variance *= self.factor**2
        return rows

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

    def average(self) -> Noisy:
        """Mean over the rows."""
        value, variance = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        for part in self.parts():
            value += part.value.sum(axis=0)
            variance += part.variance.sum(axis=0)
        count = len(self.stored)
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


def pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    """Consecutive rows of a matrix, a few at a time."""
    step = max(1, ENTRIES // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def squares(table: Noisy | Rows) -> Array:
    """Squared norm of every row."""
    if isinstance(table, Noisy):
        return table.size
    return np.concatenate([part.size for part in table.parts()])
