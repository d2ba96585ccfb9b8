"""Constants that are small sums of large terms: the rounding of what is stored decides them.

The constant ``b + W n`` that a reader makes of its bias and its norm's bias n is a number of the
function. Where it is far smaller than its terms, as it can be behind a large shift of n or gains of
very different sizes, the rounding of W, b and n moves it by more than its own rounding, and no
form that is computed from them can say what it is. Such constants are counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.places import Places

Array = NDArray[np.float64]

CANCELLING = "constants that cancel"
DEVIATIONS = 4.0
"""Standard deviations of rounding that a constant is taken to have moved by."""
UNCERTAIN, FINEST, COARSEST = 2.0**12, 1e-9, 0.1
"""Spacings of the largest number of a tensor by which others may be uncertain, but at least the
second and at most the third part of it: 5e-4 in float32, 1e-9 in float64."""


def tolerated(spacing: float) -> float:
    """Part of the largest number of a tensor by which others may be uncertain."""
    return min(max(UNCERTAIN * spacing, FINEST), COARSEST)


def deviation_of_sum(squares: Array, spacing: float) -> Array:
    """Standard deviation of sums whose terms have these squares, each rounded independently.

    A number x that is rounded at a relative spacing e has the standard deviation
    ``e |x| / sqrt(12)``; of a product both factors are rounded, so its square counts twice.
    """
    return np.asarray(spacing * np.sqrt(squares / 12.0))


def note_cancelling(
    places: Places,
    layer: int | None,
    where: str,
    constants: Array,
    deviations: Array | float,
    spacing: float,
) -> None:
    """Count constants of one tensor that rounding moves by more than is :func:`tolerated`."""
    largest = float(np.abs(constants).max(initial=0.0))
    if largest == 0.0:
        return
    lost = DEVIATIONS * np.asarray(deviations) > tolerated(spacing) * largest
    units = np.flatnonzero(np.broadcast_to(lost, constants.shape))
    places.add(CANCELLING, layer, where, units.tolist())
