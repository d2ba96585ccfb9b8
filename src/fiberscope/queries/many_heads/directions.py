"""From steps on a circle to steps in all directions of the last token, for one ``z``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.circle import Circle
from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.steps import Fit, Steps, fit_steps

Floats = NDArray[np.float64]

_SHARED = 0.5
"""Crossings between which scores change by less than this are one."""


def complete_directions(probe: PairProbe, circle: Circle, fit: Fit) -> Fit:
    """``m_h`` in all ``d`` coordinates, fitted to the circle and to moves off it."""
    start, points, values = moves_off(probe, circle, fit)
    everything = np.concatenate([circle.points, points])
    answers = np.concatenate([circle.values, values])
    largest = float(np.abs(everything @ start.directions.T).max())
    return fit_steps(everything, answers, start, probe.floor(circle.z, start.heights, largest))


def moves_off(probe: PairProbe, circle: Circle, fit: Fit) -> tuple[Steps, Floats, Floats]:
    """``m_h`` in all ``d`` coordinates: moves off the circle at the crossing of every step.

    At the crossing of one step the others are far from theirs; ``2 H (d - 2)`` queries, and again
    with shorter moves where a move left the step.

    Parameters
    ----------
    probe, circle
        Where to ask, and the circle with its samples.
    fit
        Its steps in the plane, directions of shape ``(H, 2)``.

    Returns
    -------
    tuple
        The steps, and the points ``(n, d)`` and values ``(n,)`` of all moves.
    """
    z, half, d = circle.z, circle.half, len(circle.z)
    frame = np.stack([circle.p, circle.q], axis=1)
    basis, _ = np.linalg.qr(np.concatenate([frame, np.eye(d)], axis=1)[:, : d + 2])
    others = basis[:, 2:d].T
    flat = fit.steps
    # In-plane part: m^T p and m^T q are known.
    inside = np.linalg.solve(frame.T @ frame, flat.directions.T).T @ frame.T
    lengths = np.linalg.norm(flat.directions, axis=1)
    crossings = np.stack([flat.directions[:, 1], -flat.directions[:, 0]], axis=1)
    crossings = (crossings * (circle.radius / lengths[:, None])) @ frame.T
    groups = _groups(flat, circle.radius)
    alone = np.array([len(group) == 1 for group in groups])
    # Steps that share a crossing are parallel, or nearly: they answer to a small move together.
    together = np.array([flat.heights[group] @ lengths[group] for group in groups])
    wide = np.where(alone, 2.0, 0.5)
    reach = np.repeat((wide / np.linalg.norm(inside, axis=1))[:, None], len(others), axis=1)
    slopes = np.zeros((flat.count, len(others)))
    points, values = [np.zeros((0, d))], [np.zeros(0)]
    pending = np.ones(slopes.shape, dtype=bool)
    for _ in range(5):
        heads, axes = np.nonzero(pending)
        if not len(heads):
            break
        moves = reach[heads, axes][:, None] * others[axes]
        plus = probe.points(z, crossings[heads] + moves)
        minus = probe.points(z, crossings[heads] - moves)
        answers = probe.values(z, np.concatenate([plus, minus]), half)
        points.append(np.concatenate([plus, minus]))
        values.append(answers)
        change = answers[: len(heads)] - answers[len(heads) :]
        rise = change / flat.heights[heads]
        single = 2 * np.arctanh(np.clip(rise, -0.98, 0.98))
        joint = 2 * change * lengths[heads] / together[heads]
        score = np.where(alone[heads], single, joint)
        slopes[heads, axes] = score / reach[heads, axes]
        pending = np.zeros(slopes.shape, dtype=bool)
        far = np.where(alone[heads], np.abs(rise) > 0.95, np.abs(joint) > 1.0)
        pending[heads, axes] = far
        reach = np.where(pending, reach / 5, reach)
    start = Steps(inside + slopes @ others, flat.heights, flat.constant)
    return start, np.concatenate(points), np.concatenate(values)


def _groups(flat: Steps, radius: float) -> list[list[int]]:
    """For every step, the steps whose crossings it does not tell from its own."""
    lengths = np.linalg.norm(flat.directions, axis=1)
    unit = flat.directions / lengths[:, None]
    sines = np.abs(unit[:, :1] * unit[:, 1][None] - unit[:, 1:] * unit[:, 0][None])
    scores = sines * np.minimum(lengths[:, None], lengths[None])
    return [np.flatnonzero(row * radius < _SHARED).tolist() for row in scores]
