"""The rank of a twin's Jacobian: singular values and their largest gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.twins.twin import Twin

# The cut is sought among singular values below this share of the largest.
_LARGEST_NULL = 1e-10


@dataclass(frozen=True)
class TwinSpectrum:
    """The singular values of a twin's Jacobian and the rank they show.

    Attributes
    ----------
    parameters, observations : int
        Columns and rows of the Jacobian.
    rank, nullity : int
        Singular values above and below the cut; they add up to `parameters`.
    singular_values : ndarray of float64, shape (parameters,)
        In decreasing order; padded by zeros when there are fewer observations.
    gap : float
        Smallest value above the cut over the largest below it; infinite if nothing is below, or if
        all below are exactly zero.
    tolerance : float
        A value inside the gap: the geometric mean of its ends.
    """

    parameters: int
    observations: int
    rank: int
    nullity: int
    singular_values: NDArray[np.float64]
    gap: float
    tolerance: float


def rank_by_gap(singular_values: NDArray[np.float64]) -> tuple[int, float, float]:
    """Rank at the largest ratio of neighbours whose lower one is rounding noise.

    Values below n times the machine epsilon of the largest count as equal: ratios inside rounding
    noise mean nothing. The cut may be at the end (full rank): the noise level then stands for the
    missing lower neighbour.

    Parameters
    ----------
    singular_values : ndarray of float64, shape (n,)
        In decreasing order.

    Returns
    -------
    rank : int
    gap : float
        Ratio across the cut; infinite if nothing, or only zero, lies below.
    tolerance : float
        Geometric mean of the two sides.
    """
    count = singular_values.size
    if count == 0 or singular_values[0] == 0.0:
        return 0, float("inf"), 0.0
    floor = float(np.finfo(np.float64).eps * singular_values[0] * count)
    raised = np.maximum(np.append(singular_values, 0.0), floor)
    ratios = raised[:-1] / raised[1:]
    allowed = raised[1:] <= max(floor, _LARGEST_NULL * float(singular_values[0]))
    rank = int(np.argmax(np.where(allowed, ratios, 0.0))) + 1
    below = float(singular_values[rank]) if rank < count else 0.0
    above = float(singular_values[rank - 1])
    gap = above / below if below > 0 else float("inf")
    return rank, gap, float(np.sqrt(above * max(below, floor)))


def spectrum(twin: Twin) -> TwinSpectrum:
    """All singular values of the twin's Jacobian, and its nullity by the largest gap."""
    reduced: NDArray[np.float64] = twin.jacobian()[0]
    observations = reduced.shape[0]
    # An orthogonal reduction first: it keeps every digit, which the Gram matrix would halve.
    if observations > reduced.shape[1]:
        reduced = np.asarray(np.linalg.qr(reduced, mode="r"))
    values = np.zeros(twin.parameter_count)
    found = np.linalg.svd(reduced, compute_uv=False)
    values[: found.size] = found
    rank, gap, tolerance = rank_by_gap(values)
    return TwinSpectrum(values.size, observations, rank, values.size - rank, values, gap, tolerance)
