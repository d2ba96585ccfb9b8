"""Factors of heads that are read when they are needed: matrices with more axes than two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.equality.rows import SKETCH, Rows

Index = NDArray[np.int64]


class Stack(Noisy):
    """Rows on several leading axes, such as ``(groups, heads, rows, d)``.

    It is used like the :class:`Noisy` that it stands for; indexing the leading axes reads nothing.
    """

    def __init__(self, rows: Rows, lead: tuple[int, ...]) -> None:
        self.rows, self.lead = rows, lead

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return (*self.lead, self.rows.shape[1])

    @once
    def _held(self) -> Noisy:
        return self.held()

    @property
    def value(self) -> Array:  # type: ignore[override]
        """Values, once read kept in memory."""
        return self._held.value

    @property
    def variance(self) -> Array:  # type: ignore[override]
        """Variances, once read kept in memory."""
        return self._held.variance

    def held(self) -> Noisy:
        """All numbers, for this once."""
        return self.rows.part(np.s_[:]).reshaped(*self.shape)

    def part(self, index: Any) -> Noisy:
        """Any indexing of the leading axes, still unread; else what NumPy makes of the values."""
        if "_held" in self.__dict__ or (isinstance(index, tuple) and len(index) > len(self.lead)):
            return self._held.part(index)
        numbers = np.arange(int(np.prod(self.lead))).reshape(self.lead)[index]
        return Stack(self.rows.chosen(numbers.reshape(-1)), numbers.shape)

    def take(self, index: Any, axis: int) -> Noisy:
        """Entries of one axis in another order."""
        axis %= len(self.shape)
        if axis == len(self.lead):
            return self._held.take(index, axis)
        return self.part((*[slice(None)] * axis, np.asarray(index)))

    def scaled(self, factor: Any) -> Noisy:
        """Elementwise product with exact numbers."""
        if np.ndim(factor) == 0:
            return Stack(self.rows.scaled(float(factor)), self.lead)
        return self._held.scaled(factor)

    @property
    def sketch(self) -> Noisy:
        """Projections of all rows, ``(..., SKETCH)``; their variance is a typical one."""
        count = self.rows.shape[0]
        return Noisy(self.rows.survey[0], self.rows.typical_spread(count)).reshaped(
            *self.lead, SKETCH
        )

    @property
    def speaks(self) -> NDArray[np.bool_]:
        """Whether some row of a factor is surely more than its rounding, shape ``lead[:-1]``."""
        return np.asarray(self.rows.survey[2].reshape(self.lead).any(axis=-1))
