"""From steps on a circle to steps in all directions of the last token, for one ``z``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.circle import Circle
from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.steps import Fit, Steps, fit_steps

Floats = NDArray[np.float64]


def complete_directions(probe: PairProbe, circle: Circle, fit: Fit) -> Fit:
    """``m_h`` in all ``d`` coordinates: moves off the circle at the crossing of every step.

    At the crossing of one step the others are far from theirs; ``2 H (d - 2)`` queries, and again
    with shorter moves where a move left the step.

    Parameters
    ----------
    probe, circle
        Where to ask, and the circle with its samples.
    fit
        Its steps in the plane, directions of shape ``(H, 2)``.
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
    reach = np.full((flat.count, len(others)), 2.0) / np.linalg.norm(inside, axis=1)[:, None]
    slopes = np.zeros((flat.count, len(others)))
    points, values = [circle.points], [circle.values]
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
        rise = (answers[: len(heads)] - answers[len(heads) :]) / flat.heights[heads]
        score = 2 * np.arctanh(np.clip(rise, -0.98, 0.98))
        slopes[heads, axes] = score / reach[heads, axes]
        pending = np.zeros(slopes.shape, dtype=bool)
        pending[heads, axes] = np.abs(rise) > 0.95
        reach = np.where(pending, reach / 5, reach)
    start = Steps(inside + slopes @ others, flat.heights, flat.constant)
    everything, answers = np.concatenate(points), np.concatenate(values)
    score = float(np.abs(everything @ start.directions.T).max())
    return fit_steps(everything, answers, start, probe.floor(z, start.heights, score))
