"""Random elements of one symmetry, with a wanted condition number or size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.moves.exceptional import SubsetLinear
from fiberscope.errors import InputError
from fiberscope.parameters import Parameters
from fiberscope.symmetry import (
    Element,
    GeneralLinear,
    OrthogonalCommutant,
    RotaryCommutant,
    SignFlip,
    Symmetry,
    Translation,
)
from fiberscope.symmetry.scaling import Scaling

_TRIES = 20
_LARGEST_RATIO = 3.0
_SMALLEST_REFERENCE = 0.1


def draw_element(symmetry: Symmetry, rng: np.random.Generator, condition: float | None) -> Element:
    """Draw an element of a group that does not depend on the weights.

    Parameters
    ----------
    condition
        Condition number of every drawn matrix and ratio of the largest to the smallest factor, at
        least 1; None leaves it to the group (at most 4). Rotations, permutations and signs have
        condition 1 whatever is asked, and one factor alone (or one plane) is drawn between
        ``condition**-0.5`` and ``condition**0.5``.

    Notes
    -----
    A matrix ``M = Q P`` (polar) becomes ``Q P^t`` with ``t`` such that the condition is as wanted:
    powers of ``P`` commute with whatever ``M`` commutes with, so this stays in the group.
    """
    element = symmetry.random(rng)
    if condition is None or isinstance(symmetry, SignFlip | OrthogonalCommutant):
        return element
    if isinstance(symmetry, Scaling):
        logs = _spread(np.log(np.abs(element)), condition, rng)
        return np.sign(element) * np.exp(logs)
    if isinstance(symmetry, GeneralLinear | SubsetLinear):
        left, values, right = np.linalg.svd(element)
        logs = np.log(values)
        if logs.ndim == 1:
            return (left * np.exp(_spread(logs, condition, rng))) @ right
        spread = np.stack([_spread(copy, condition, rng) for copy in logs])
        drawn = (left * np.exp(spread)[:, None, :]) @ right
        return symmetry.nearest(drawn) if isinstance(symmetry, RotaryCommutant) else drawn
    return element


def _spread(
    logs: NDArray[np.float64], condition: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Stretch logarithms so that the ends are ``-log(condition)/2`` and ``log(condition)/2``."""
    half = np.log(condition) / 2
    low, high = logs.min(initial=np.inf), logs.max(initial=-np.inf)
    if not high - low > 1e-9:
        return np.full_like(logs, rng.uniform(-half, half))
    return np.asarray((logs - (high + low) / 2) * (2 * half / (high - low)))


def draw_shift(
    symmetry: Translation,
    parameters: dict[str, NDArray[Any]],
    rng: np.random.Generator,
    typical: float,
) -> Element | None:
    """Draw a shift as large as the weights it moves.

    The root mean square of every increment is at most about that of the tensor it goes to, and
    that of one of them equal to it; tensors that are (almost) zero count as a tenth of
    ``typical``. Larger shifts would drown the weights in what cancels again, and a 16-bit format
    would lose them.

    Parameters
    ----------
    parameters
        The tensors it touches and reads, where they are now.
    typical
        Root mean square of the weights around.

    Returns
    -------
    element or None
        None where no shift of this kind is finite or can be undone at these weights (a direction
        1/gain at a zero gain; a constant that divides and is zero).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(_TRIES):
            shift = symmetry.random(rng)
            ratio = _ratio(symmetry, parameters, shift, typical)
            if not np.isfinite(ratio) or ratio == 0:
                return None
            shift = shift / ratio
            # Linear shifts have ratio one now; the others are drawn again until they are tame.
            if _ratio(symmetry, parameters, shift, typical) > _LARGEST_RATIO:
                continue
            if _can_be_undone(symmetry, parameters, shift, typical):
                return shift
    return None


def _rms(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0


def _ratio(symmetry: Translation, parameters: Parameters, shift: Element, typical: float) -> float:
    worst = 0.0
    try:
        increments = symmetry.increments(dict(parameters), shift)
    except InputError:  # The shift divides by what it makes zero.
        return float("inf")
    for view, increment in increments:
        window = view.window(np.asarray(parameters[view.tensor]))
        reference = max(_rms(window), _SMALLEST_REFERENCE * typical)
        size = _rms(np.asarray(increment))
        if not np.isfinite(size):
            return float("inf")
        worst = max(worst, size / reference)
    return worst


def _can_be_undone(
    symmetry: Translation, parameters: Parameters, shift: Element, typical: float
) -> bool:
    """Whether the opposite shift leads back; it does unless it divides by what has become zero."""
    private = {name: np.array(parameters[name]) for name in symmetry.touches}
    there = {**parameters, **private}
    try:
        symmetry.apply(shift, there)
        symmetry.apply(symmetry.inverse(shift), there)
    except InputError:
        return False
    return all(
        float(np.abs(there[name] - parameters[name]).max(initial=0.0))
        <= 1e-6 * max(typical, float(np.abs(parameters[name]).max(initial=0.0)))
        for name in symmetry.touches
    )
