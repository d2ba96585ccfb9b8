r"""Sums of steps: the function of the last token that two-token queries show.

For tokens ``y + z`` and ``y`` the answer splits into a known linear part and a part odd in ``y``,

    f([y + z; y]) = u^T y + u^T z / 2 + G(z, y),
    G(z, y) = 1/2 sum_h (w_h^T z) tanh(z^T W_h y / 2).

For a fixed ``z`` this is a sum of steps with directions ``m_h = W_h^T z`` and heights
``rho_h = w_h^T z``. A head ``W`` with values ``v`` and its mirror image ``-W`` with values
``-v`` show the same step, and a head with ``W = 0`` shows none; see :mod:`.mirrors`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 60
_FAR = 2.0


@dataclass(frozen=True)
class Steps:
    """A sum of steps.

    Attributes
    ----------
    directions
        ``m_h``, shape ``(H, d)``.
    heights
        ``rho_h``, shape ``(H,)``.
    constant
        What is left of the linear part: rounding of ``u^T z / 2``.
    """

    directions: Floats
    heights: Floats
    constant: float = 0.0

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.heights)

    def __call__(self, y: Floats) -> Floats:
        """Values at points ``(n, d)``, shape ``(n,)``."""
        return 0.5 * np.tanh(0.5 * (y @ self.directions.T)) @ self.heights + self.constant

    def with_step(self, direction: Floats, height: float) -> Steps:
        """One more step."""
        return Steps(
            np.vstack([self.directions, direction[None]]),
            np.append(self.heights, height),
            self.constant,
        )

    def without(self, which: int) -> Steps:
        """One step less."""
        return Steps(
            np.delete(self.directions, which, axis=0),
            np.delete(self.heights, which),
            self.constant,
        )


@dataclass(frozen=True)
class Fit:
    """Steps fitted to values.

    Attributes
    ----------
    steps
        The least squares solution, as far as the iteration came.
    residuals
        Values minus fit, shape ``(n,)``.
    direction_errors, height_errors
        Standard errors of every ``m_h`` (2-norm) and ``rho_h`` for values with unit errors, shapes
        ``(H,)``; infinite where the values do not determine them.
    """

    steps: Steps
    residuals: Floats
    direction_errors: Floats
    height_errors: Floats

    @property
    def worst(self) -> float:
        """Largest residual."""
        return float(np.abs(self.residuals).max(initial=0.0))

    @property
    def spread(self) -> float:
        """Root mean square of the residuals, for the degrees of freedom that are left."""
        unknowns = self.steps.directions.size + self.steps.count + 1
        freedom = max(1, len(self.residuals) - unknowns)
        return float(np.sqrt(self.residuals @ self.residuals / freedom))


def fit_steps(
    points: Floats, values: Floats, start: Steps, floor: float, rounds: int = _ROUNDS
) -> Fit:
    """Levenberg-Marquardt for a sum of steps, all unknowns together.

    Parameters
    ----------
    points, values
        Shapes ``(n, d)`` and ``(n,)``.
    start
        Where to begin; its number of steps is kept.
    floor
        Size of the errors of the values: below it no progress is looked for.
    """
    steps = start
    residuals = values - steps(points)
    cost = float(residuals @ residuals)
    damping, stalled = 1e-6, 0
    jacobian, scales = _jacobian(points, steps)
    gram = jacobian.T @ jacobian
    for _ in range(rounds):
        gradient = jacobian.T @ residuals
        if not np.isfinite(cost):
            break
        step = _solve(gram, gradient, damping)
        trial = _moved(steps, _trusted(points, steps, step * scales))
        trial_residuals = values - trial(points)
        trial_cost = float(trial_residuals @ trial_residuals)
        if trial_cost < cost:
            gain = 1 - trial_cost / cost
            steps, residuals, cost = trial, trial_residuals, trial_cost
            damping = max(damping * 0.1, 1e-15)
            jacobian, scales = _jacobian(points, steps)
            gram = jacobian.T @ jacobian
            stalled = stalled + 1 if gain < 0.02 else 0
        else:
            damping *= 10.0
            stalled += 1
        settled = cost <= len(values) * floor**2
        if (settled and stalled >= 2) or stalled >= 12 or damping > 1e8 or cost == 0.0:
            break
    return Fit(steps, residuals, *_errors(gram, scales, steps))


def _jacobian(points: Floats, steps: Steps) -> tuple[Floats, Floats]:
    """Derivatives by (directions, heights, constant), columns scaled, and the scales."""
    n, d = points.shape
    half = np.tanh(0.5 * (points @ steps.directions.T))
    slopes = 0.25 * (1 - half**2) * steps.heights
    blocks = (slopes[:, :, None] * points[:, None, :]).reshape(n, steps.count * d)
    jacobian = np.concatenate([blocks, 0.5 * half, np.ones((n, 1))], axis=1)
    norms = np.sqrt(np.einsum("ij,ij->j", jacobian, jacobian))
    scales = 1 / np.where(norms > 0, norms, 1.0)
    return jacobian * scales, scales


def _solve(gram: Floats, gradient: Floats, damping: float) -> Floats:
    from scipy.linalg import cho_factor, cho_solve

    size = len(gradient)
    while True:
        try:
            factor = cho_factor(gram + damping * np.eye(size), check_finite=False)
            return np.asarray(cho_solve(factor, gradient, check_finite=False))
        except np.linalg.LinAlgError:
            damping = max(10 * damping, 1e-14)
            if damping > 1e12:
                return np.zeros(size)


def _moved(steps: Steps, change: Floats) -> Steps:
    split = steps.directions.size
    return Steps(
        steps.directions + change[:split].reshape(steps.directions.shape),
        steps.heights + change[split:-1],
        steps.constant + float(change[-1]),
    )


def _trusted(points: Floats, steps: Steps, change: Floats) -> Floats:
    """Shrink what a head is asked to move beyond a score of two or half its height.

    A weak head is asked to explain what is left of the strong ones until those have settled: the
    farther the move, the less it is believed.
    """
    count, d = steps.directions.shape
    split = count * d
    scores = points @ steps.directions.T
    weights = 1 / np.cosh(0.5 * np.clip(scores, -60, 60)) ** 4 + 1e-300
    moves = points @ change[:split].reshape(count, d).T
    size = np.sqrt((weights * moves**2).sum(axis=0) / weights.sum(axis=0)) / _FAR
    size = np.maximum(size, np.abs(change[split:-1]) / (0.5 * np.abs(steps.heights) + 1e-300))
    factors = 1 / np.maximum(1.0, size) ** 2
    factors = np.append(np.concatenate([np.repeat(factors, d), factors]), 1.0)
    return np.asarray(change * factors)


def _errors(gram: Floats, scales: Floats, steps: Steps) -> tuple[Floats, Floats]:
    count, d = steps.directions.shape
    try:
        inverse = np.linalg.inv(gram)
        variances = np.diag(inverse) * scales**2
        if (variances[:-1] <= 0).any() or not np.isfinite(variances).all():
            raise np.linalg.LinAlgError
    except np.linalg.LinAlgError:
        return np.full(count, np.inf), np.full(count, np.inf)
    split = count * d
    directions = np.sqrt(variances[:split].reshape(count, d).sum(axis=1))
    return directions, np.sqrt(variances[split:-1])
