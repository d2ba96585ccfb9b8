"""The rank of a matrix in floating point: its singular values and their largest gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.verdict import to_plain

CLEAR_GAP = 1e3
"""A cut is decided when the values on its two sides differ by this factor or more."""

LARGEST_NULL = 1e-10
"""Values above this share of the largest are never taken for zero."""


@dataclass(frozen=True)
class RankVerdict:
    """A numerical rank and what it rests on.

    Attributes
    ----------
    value
        Number of singular values above the cut.
    nullity
        Columns minus rank.
    singular_values
        In decreasing order, shape ``(min(rows, columns),)``.
    gap
        Smallest value above the cut over the largest below it; infinite when nothing, or only
        exact zeros, lie below.
    tolerance
        Rounding level ``eps * max(rows, columns) * sigma_1``.
    decided
        True when the gap, with values below the tolerance raised to it, is at least
        :data:`CLEAR_GAP`.
    """

    value: int
    nullity: int
    singular_values: NDArray[np.float64]
    gap: float
    tolerance: float
    decided: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


def rank_of(matrix: NDArray[Any]) -> RankVerdict:
    """Rank of a real matrix at the largest gap of its singular values.

    Ratios of neighbours are compared after raising everything below the rounding level
    ``eps * max(rows, columns) * sigma_1`` to that level, so ratios inside noise and exact zeros
    count for nothing; the cut may be at the end (full rank). Columns are taken as they are:
    scaling them to unit length would turn a column that is zero up to rounding into a direction.

    Parameters
    ----------
    matrix
        float64 array of shape ``(rows, columns)``; either may be zero.

    Raises
    ------
    InputError
        If it is not a matrix, or has NaN or infinite entries.
    """
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2:
        raise InputError(f"A rank needs a matrix, but the array has shape {array.shape}.")
    if not np.isfinite(array).all():
        raise InputError(
            f"The matrix of shape {array.shape} has NaN or infinite entries, so it has no rank; "
            "evaluate it where it is finite."
        )
    rows, columns = array.shape
    if not array.any():
        values = np.zeros(min(rows, columns))
        return RankVerdict(0, columns, values, float("inf"), 0.0, True)
    tall = array if rows >= columns else array.T
    if tall.shape[0] > 2 * tall.shape[1]:
        # An orthogonal reduction keeps every digit; a Gram matrix would lose half of them.
        tall = np.asarray(np.linalg.qr(tall, mode="r"))
    values = np.linalg.svd(tall, compute_uv=False).astype(np.float64)
    largest = float(values[0])
    tolerance = float(np.finfo(np.float64).eps) * max(rows, columns) * largest
    raised = np.maximum(np.append(values, 0.0), tolerance)
    ratios = raised[:-1] / raised[1:]
    may_be_zero = raised[1:] <= max(tolerance, LARGEST_NULL * largest)
    rank = int(np.argmax(np.where(may_be_zero, ratios, 0.0))) + 1
    below = float(values[rank]) if rank < values.size else 0.0
    return RankVerdict(
        value=rank,
        nullity=columns - rank,
        singular_values=values,
        gap=float(values[rank - 1]) / below if below > 0 else float("inf"),
        tolerance=tolerance,
        decided=bool(ratios[rank - 1] >= CLEAR_GAP),
    )
