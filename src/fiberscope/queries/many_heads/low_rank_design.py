"""Points for heads of low rank: at each, one head is inside its step and the others are not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.steps import Steps

Floats = NDArray[np.float64]

REACH = 3.0
"""Size of sideways moves: each coordinate that is asked for changes scores by this over ``|m_h|``
times its own change."""
AWAY = 18.0
"""Least score that the other heads should have, beyond what sideways moves do to them."""
EXTRA = 3
"""Points of every head beyond its share."""
_INNER, _OUTER = 1.2, 3.0
_BEYOND = 0.5
_PARALLEL = 0.05
_SAME = 0.99


def separated_points(
    steps: Steps, frames: list[Floats] | None, each: float, rng: np.random.Generator
) -> Floats:
    """``each k + 3`` points inside the step of every head, spread over ``k`` coordinates.

    A point for head ``h`` is ``c + s + t``: ``c`` takes the scores of all other heads to ``+-18``
    or more, at random signs, as far as directions differ; ``s`` is orthogonal to ``m_h``, in rows
    of orthogonal matrices over the head's frame; ``t`` along ``m_h`` sets its own score between
    ``-1.2`` and ``1.2``, at every fourth point ``+-3``, which shows the height.

    Parameters
    ----------
    steps
        Directions of shape ``(H, d)``, so well known that scores at these points are right within
        about one.
    frames
        Orthonormal rows ``(k_h, d)`` that contain ``m_h`` and its changes; None for all
        coordinates. With frames, ``s`` has a part beyond the frame too: changes that leave the
        frame show in residuals.
    each
        Points per head and coordinate; twice as many for heads whose directions are parallel.
    rng
        Draws signs, scores and orthogonal matrices.

    Returns
    -------
    numpy.ndarray
        Shape ``(n, d)``, the points of one head after those of the other.
    """
    d = steps.directions.shape[1]
    lengths = np.linalg.norm(steps.directions, axis=1)
    unit = steps.directions / lengths[:, None]
    apart = np.linalg.pinv(unit, rcond=_PARALLEL)
    cosines = np.abs(unit @ unit.T) - np.eye(steps.count)
    shared = cosines.max(axis=1, initial=0.0) > _SAME
    sheets: dict[int, Floats] = {}
    points = []
    for h in range(steps.count):
        k = d if frames is None else len(frames[h])
        count = int(np.ceil(each * k)) + EXTRA
        if shared[h]:
            # The same points show both heads: more of them, and none twice.
            count *= 2
        if k not in sheets or shared[h]:
            sheets[k] = _sheets(k, count, rng)
        sides = REACH / lengths[h] * np.sqrt(k) * sheets[k][:count]
        if frames is not None:
            sides = sides @ frames[h]
            beyond = rng.normal(size=(count, d))
            beyond -= (beyond @ frames[h].T) @ frames[h]
            sides += _BEYOND * REACH / lengths[h] * beyond
        sides -= np.outer(sides @ unit[h], unit[h])
        others = np.sqrt(np.mean((sides @ steps.directions.T) ** 2, axis=0))
        away = rng.choice([-1.0, 1.0], size=(count, steps.count)) * (AWAY + 2.5 * others)
        away[:, h] = 0
        centres = (away / lengths) @ apart.T
        # Directions that do not differ cannot be told apart here: the fit takes them together.
        centres -= np.outer(centres @ unit[h], unit[h])
        along = rng.uniform(-_INNER, _INNER, size=count)
        along[::4] = rng.choice([-_OUTER, _OUTER], size=len(along[::4]))
        points.append(sides + centres + np.outer(along / lengths[h], unit[h]))
    return np.concatenate(points)


def _sheets(k: int, count: int, rng: np.random.Generator) -> Floats:
    """Rows of random orthogonal matrices: as many points as unknowns then nearly suffice."""
    rows = [np.linalg.qr(rng.normal(size=(k, k)))[0] for _ in range(-(-count // k))]
    return np.concatenate(rows)[:count]
