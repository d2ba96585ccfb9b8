"""The deciding statistic: residuals in units of the rounding they should show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
CHUNK = 1 << 18
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
    uncertainty
        Largest relative rounding uncertainty of a row, of either model.
    """

    name: str
    rms: float
    largest: float
    count: int
    relative: float
    independent: float | None = None
    uncertainty: float = 0.0

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
        return _same_rms(freedom)


@cache
def _same_rms(freedom: float) -> float:
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
    tally = Tally(rotated, computed, condition, leverage)
    for found, expected in parts:
        tally.add(found, expected)
    return tally.result(name, independent)


@dataclass(frozen=True)
class Piece:
    """What some rows contribute, row by row, shape ``(n,)``.

    Attributes
    ----------
    width
        Numbers in a row.
    total, likely, largest
        Sum of the squared residuals in units of what is allowed, its expectation, and the largest.
    apart, norm
        Squared norms of the residuals and of what was found.
    share
        Squared relative rounding, of the model where it is larger.
    """

    width: int
    total: Array
    likely: Array
    largest: Array
    apart: Array
    norm: Array
    share: Array

    def some(self, index: slice) -> Piece:
        """Some of the rows."""
        return Piece(self.width, *(getattr(self, name)[index] for name in _PER_ROW))


_PER_ROW = ("total", "likely", "largest", "apart", "norm", "share")
Number = NDArray[np.floating[Any]]


def measured(
    residual: Number,
    variance: Number,
    sizes: tuple[Array, Array],
    spreads: tuple[Array, Array],
    floor: Array,
    *,
    rotated: bool,
    leverage: float = 0.0,
) -> Piece:
    """Residuals of rows against what is allowed; both arrays are used up.

    Parameters
    ----------
    residual, variance
        Shape ``(n, d)``, in float64 or float32; what is allowed is of the order of one, in float32.
    sizes, spreads
        Squared norms and summed variances of the rows of both models, ``(n,)``.
    floor
        Allowed besides, ``(n,)``.
    rotated, leverage
        As in :func:`statistic`.
    """
    width, kind = residual.shape[-1], residual.dtype
    row = (spreads[0] + spreads[1]) / width
    squared = residual
    squared *= squared
    apart = np.add.reduce(squared, axis=-1)
    plain = not rotated and not leverage
    if rotated:
        allowed = np.maximum(variance, row.astype(kind)[:, None])
    else:
        allowed = variance if plain else variance.copy()
    # Where a fit passes rounding on, the allowance is generous; what is expected is known.
    allowed += (floor + leverage * row).astype(kind)[:, None]
    possible = bool(allowed.min(initial=1.0) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        squared /= allowed
        if not possible:
            squared[np.isnan(squared)] = 0.0  # equal numbers without rounding
        if plain:
            likely = np.full(len(row), float(width))
        else:
            variance *= kind.type(1 - leverage / 2)
            variance += floor.astype(kind)[:, None]
            variance /= allowed
            if not possible:
                variance[~(allowed > 0)] = 1.0
            likely = np.add.reduce(variance, axis=-1)
    parts = np.add.reduce(squared, axis=-1), likely, squared.max(axis=-1, initial=0.0), apart
    total, likely, largest, apart = (np.asarray(part, dtype=np.float64) for part in parts)
    share = np.maximum(_share(spreads[0], sizes[0]), _share(spreads[1], sizes[1]))
    return Piece(width, total, likely, largest, apart, sizes[0], share)


def _share(spread: Array, size: Array) -> Array:
    """Rounding of rows relative to their sizes, both squared."""
    return np.where(size > 0, spread / np.where(size > 0, size, 1.0), 0.0)


@dataclass
class Tally:
    """Adds up residuals; see :func:`statistic` for its settings."""

    rotated: bool = False
    computed: bool = True
    condition: float = 1.0
    leverage: float = 0.0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """Rounding of float64 that is allowed, relative to a row."""
        return float(allowance(self.condition)) if self.computed else 0.0

    def add(self, found: Noisy, expected: Noisy) -> None:
        """Add rows."""
        for value, spread, other, passed in _cached(found, expected):
            sizes = np.vecdot(value, value), np.vecdot(other, other)
            spreads = np.add.reduce(spread, axis=-1), np.add.reduce(passed, axis=-1)
            floor = self.factor**2 / value.shape[-1] * np.maximum(*sizes)
            self.pieces.append(
                measured(
                    value - other,
                    spread + passed,
                    sizes,
                    spreads,
                    floor,
                    rotated=self.rotated,
                    leverage=self.leverage,
                )
            )

    def result(self, name: str, independent: float | None = None) -> Statistic:
        """The statistic of all that was added."""
        return statistic_of_pieces(name, self.pieces, independent)


def allowance(condition: Any) -> Any:
    """Rounding of float64 that is allowed, relative to a row, behind a fit of this condition."""
    return FLOOR * EPSILON * np.clip(condition, 1.0, LARGEST_CONDITION)


def statistic_of_pieces(
    name: str, pieces: list[Piece], independent: float | None = None
) -> Statistic:
    """The statistic of rows that were measured."""
    count = sum(piece.width * len(piece.total) for piece in pieces)
    if not count:
        return Statistic(name, 0.0, 0.0, 0, 0.0)
    total, likely, apart, norm = (
        sum(float(getattr(piece, key).sum()) for piece in pieces)
        for key in ("total", "likely", "apart", "norm")
    )
    largest, share = (
        max(float(getattr(piece, key).max(initial=0.0)) for piece in pieces)
        for key in ("largest", "share")
    )
    return Statistic(
        name,
        float(np.sqrt(total / max(likely, 0.1 * count))),
        float(np.sqrt(largest)),
        count,
        float(np.sqrt(apart / norm)) if norm else float(apart > 0),
        independent,
        float(np.sqrt(share)),
    )


def _cached(found: Noisy, expected: Noisy) -> Iterator[list[Array]]:
    """Values and variances of both, a few rows at a time: the temporaries stay in the cache."""
    if not found.value.size:
        return
    rows = (-1, found.shape[-1])
    arrays = [
        array.reshape(rows)
        for array in (found.value, found.variance, expected.value, expected.variance)
    ]
    step = max(1, CHUNK // rows[1])
    for start in range(0, len(arrays[0]), step):
        yield [array[start : start + step] for array in arrays]


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
        uncertainty=max(part.uncertainty for part in parts),
    )
