"""The deciding statistic: residuals in units of the rounding they should show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from fiberscope.checkpoints.equality.noisy import Array, Noisy

EPSILON = float(np.finfo(np.float64).eps)
FLOOR = 32.0
"""Roundings of float64, relative to the row, that the algebra of the comparison may add."""
LARGEST_CONDITION = 1e8
"""A tolerance that grows with a fitted condition is capped: else it would excuse anything."""

SAME_RMS, SAME_MAX = 1.6, 8.0
DIFFERENT_RMS, DIFFERENT_MAX = 3.0, 25.0
CHANCE = 1e-7
CHUNK = 1 << 15
CORRELATED = 4
"""Numbers that count as one: a gain's rounding is common to a column, a mean's to a table."""


@dataclass(frozen=True)
class Statistic:
    """Residuals of one circuit or tensor, in roundings.

    Attributes
    ----------
    name
        The circuit (``layer 3 attention QK, group 1``) or tensor.
    rms, largest
        Root mean square and largest absolute residual; the expected rms is 1 (less where the
        frame or a basis was fitted to the same numbers).
    count
        Number of residuals.
    relative
        Norm of the residual relative to the norm of what it should match.
    independent
        How many of the residuals are independent, where that is known.
    """

    name: str
    rms: float
    largest: float
    count: int
    relative: float
    independent: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether it looks like rounding."""
        return self.rms < self.same_rms and self.largest < SAME_MAX

    @property
    def is_different(self) -> bool:
        """Whether rounding cannot explain it."""
        return self.rms > DIFFERENT_RMS / SAME_RMS * self.same_rms or self.largest > DIFFERENT_MAX

    @property
    def same_rms(self) -> float:
        """The rms that rounding exceeds with probability ``CHANCE`` at most (few numbers vary)."""
        freedom = (
            max(1.0, self.count / CORRELATED) if self.independent is None else self.independent
        )
        return max(SAME_RMS, float(np.sqrt(chi2.isf(CHANCE, freedom) / freedom)))


def statistic(
    name: str,
    found: Noisy,
    expected: Noisy,
    *,
    rotated: bool = False,
    condition: float = 1.0,
    leverage: float = 0.0,
    independent: float | None = None,
    computed: bool = True,
) -> Statistic:
    """Compare what is stored with what a move of the other model would be.

    Parameters
    ----------
    found, expected
        Arrays of one shape; the last axis is a row. Their variances add.
    rotated
        Whether a fitted rotation mixed the elements: then each inherits the row's rounding.
    condition
        Condition of the fitted change of basis; it multiplies the float64 floor only.
    leverage
        Share of a row's rounding that the fit passes on to each of its elements.
    independent
        See :class:`Statistic`.
    computed
        False where stored numbers themselves are compared, which leaves no rounding of float64.
    """
    return statistic_of_parts(
        name,
        [(found, expected)],
        rotated=rotated,
        condition=condition,
        leverage=leverage,
        independent=independent,
        computed=computed,
    )


def statistic_of_parts(
    name: str,
    parts: Iterable[tuple[Noisy, Noisy]],
    *,
    rotated: bool = False,
    condition: float = 1.0,
    leverage: float = 0.0,
    independent: float | None = None,
    computed: bool = True,
) -> Statistic:
    """:func:`statistic` of pairs ``(found, expected)`` whose rows together are one array."""
    factor = FLOOR * EPSILON * min(max(condition, 1.0), LARGEST_CONDITION) if computed else 0.0
    total = expected_total = apart = norm = 0.0
    largest, count = 0.0, 0
    for value, spread, other, passed in _cached(parts):
        count += value.size
        squared = value - other
        squared *= squared
        size, other_size = row_squares(value), row_squares(other)
        variance = spread + passed
        floor = factor**2 / value.shape[-1] * np.maximum(size, other_size)
        row = np.add.reduce(variance, axis=-1, keepdims=True) / value.shape[-1]
        allowed = np.maximum(variance, row) if rotated else variance.copy()
        allowed += floor + leverage * row
        apart += float(np.add.reduce(squared, axis=None))
        norm += float(size.sum())
        possible = allowed.min() > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            z = squared
            z /= allowed
            # The allowance is generous where a fit passes rounding on; what is expected is known.
            share = variance
            share *= 1 - leverage / 2
            share += floor
            share /= allowed
        if not possible:
            z = np.where(np.isnan(z), 0.0, z)  # equal numbers without rounding
            share = np.where(allowed > 0, share, 1.0)
        total += float(np.add.reduce(z, axis=None))
        expected_total += float(np.add.reduce(share, axis=None))
        largest = max(largest, float(z.max()))
    if count == 0:
        return Statistic(name, 0.0, 0.0, 0, 0.0)
    relative = float(np.sqrt(apart / norm)) if norm else float(apart > 0)
    rms = float(np.sqrt(total / max(expected_total, 0.1 * count)))
    return Statistic(name, rms, float(np.sqrt(largest)), count, relative, independent)


def _cached(parts: Iterable[tuple[Noisy, Noisy]]) -> Iterator[list[Array]]:
    """Values and variances of both, a few rows at a time: the temporaries stay in the cache."""
    for found, expected in parts:
        if not found.value.size:
            continue
        rows = (-1, found.shape[-1])
        arrays = [
            array.reshape(rows)
            for array in (found.value, found.variance, expected.value, expected.variance)
        ]
        step = max(1, CHUNK // rows[1])
        for start in range(0, len(arrays[0]), step):
            yield [array[start : start + step] for array in arrays]


def row_squares(values: Array) -> Array:
    """Squared norm of every row, shape ``(n, 1)``."""
    return np.asarray(np.einsum("ij,ij->i", values, values)[:, None])


def together(name: str, parts: list[Statistic]) -> Statistic:
    """One statistic of several arrays of a circuit."""
    count = sum(part.count for part in parts)
    if not count:
        return Statistic(name, 0.0, 0.0, 0, 0.0)
    square = sum(part.rms**2 * part.count for part in parts) / count
    return Statistic(
        name,
        float(np.sqrt(square)),
        max(part.largest for part in parts),
        count,
        max(part.relative for part in parts),
    )
