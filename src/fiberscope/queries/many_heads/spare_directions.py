r"""Directions beyond a basis: whether heads that a basis of ``z`` determines hold for other ``z``.

A basis of directions has no redundancy in ``z``: whatever it shows is assembled into some ``W_h``.
Two heads that nearly agree show one step, at

    (rho_1 m_1 + rho_2 m_2) / (rho_1 + rho_2),    m_h = W_h^T z,  rho_h = w_h^T z,

which is not linear in ``z``, and a weak head bends the others. At a few more directions the same
fit must find what the assembled heads predict, within the errors of both. By how much more it
misses is an error of the heads as well, and beyond a few times the errors there are no such heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.steps import Fit
from fiberscope.queries.many_heads.sweep import Bilinear

Floats = NDArray[np.float64]

BEYOND = 3.5
"""Root mean square of deviations over their standard errors that refuses."""
BEYOND_IN_FLOAT64 = 5.0
"""The same for answers of more than 40 bits: honest fits of many heads reach 4.6 there."""
_LONG = 2.0**-40
_DRAWN = 16


class SpareError(Exception):
    """Further directions contradict the heads."""


@dataclass(frozen=True)
class Spare:
    """The fit at one further direction, ``rounding`` being the least error of values there."""

    z: Floats
    fit: Fit
    rounding: float


def drawn_direction(w: Floats, rng: np.random.Generator) -> Floats:
    """A random unit vector at which no head is nearly flat: the best of some draws."""
    drawn = rng.normal(size=(_DRAWN, w.shape[1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    if not len(w):
        return np.asarray(drawn[0])
    unit = w / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-300)
    cost = (1 / ((drawn @ unit.T) ** 2 + 1e-12)).sum(axis=1)
    return np.asarray(drawn[int(np.argmin(cost))])


def with_spare_directions(known: Bilinear, spares: list[Spare], unit: float) -> Bilinear:
    """The same heads, their errors at least what further directions show.

    Parameters
    ----------
    unit
        Relative error of an answer.

    Raises
    ------
    SpareError
        If some head is missed by more than :data:`BEYOND` times the errors, or
        :data:`BEYOND_IN_FLOAT64`.
    """
    if not spares or not len(known.w):
        return known
    d = known.w.shape[1]
    W_seen, w_seen, W_due, w_due, W_fit, w_fit = (np.zeros(len(known.w)) for _ in range(6))
    for each in spares:
        predicted, spread = known.steps(each.z), max(each.fit.spread, each.rounding)
        # Errors of W in all directions alike: a share 1/d of their square along any z.
        gain = d / float(each.z @ each.z)
        gaps = np.linalg.norm(each.fit.steps.directions - predicted.directions, axis=1)
        heights = np.abs(each.fit.steps.heights - predicted.heights)
        W_seen += gain * gaps**2
        w_seen += gain * heights**2
        W_fit += gain * (spread * each.fit.direction_errors) ** 2
        w_fit += gain * (spread * each.fit.height_errors) ** 2
    count = len(spares)
    W_due = np.sqrt(W_fit + count * known.W_errors**2)
    w_due = np.sqrt(w_fit + count * known.w_errors**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.concatenate([np.sqrt(W_seen) / W_due, np.sqrt(w_seen) / w_due])
    worst = float(np.nan_to_num(ratios, nan=0.0, posinf=np.inf).max())
    if worst > (BEYOND_IN_FLOAT64 if unit < _LONG else BEYOND):
        raise SpareError(
            f"At further directions some head is missed by {worst:.2g} times the errors: heads "
            "that nearly agree, or weak ones, are taken for one."
        )
    return replace(
        known,
        W_errors=np.maximum(known.W_errors, np.sqrt(np.maximum(W_seen - W_fit, 0.0) / count)),
        w_errors=np.maximum(known.w_errors, np.sqrt(np.maximum(w_seen - w_fit, 0.0) / count)),
    )
