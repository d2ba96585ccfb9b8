r"""Fit steps whose directions move in given frames, many unknowns at a time.

The same least squares as :func:`.steps.fit_steps`, for thousands of unknowns: Gauss-Newton, whose
linear problems are solved by conjugate gradients. Every point shows one head, so that each head's
own block of the normal equations, factored once for a set of points, is nearly the whole matrix.
Heads that points show together share a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.steps import Fit, Steps

Floats = NDArray[np.float64]

_ROUNDS = 25
_INNER_ROUNDS = 80
_INNER = (1e-6, 1e-4)
_SEEN = 1e-7
_HALVINGS = 6
_FAR = 1.5
_TOGETHER = 0.1
_STRONG = 1e-3
_RIDGE = 1e-12


@dataclass(frozen=True)
class FramedFit(Fit):
    """Steps fitted in frames: fewer unknowns than entries of the directions."""

    unknowns: int = 0

    @property
    def spread(self) -> float:
        """Root mean square of the residuals, for the degrees of freedom that are left."""
        freedom = max(1, len(self.residuals) - self.unknowns)
        return float(np.sqrt(self.residuals @ self.residuals / freedom))


class FramedProblem:
    """A set of points, and factors for any values at them.

    Parameters
    ----------
    points
        Shape ``(n, d)``.
    frames
        Orthonormal rows ``(k_h, d)`` in which each direction may change; None for all coordinates.
    base
        Steps near those that will be fitted.
    """

    def __init__(self, points: Floats, frames: list[Floats] | None, base: Steps) -> None:
        self.points, self.frames = points, frames
        count = base.count
        self.features = [points if frames is None else points @ frame.T for frame in frames or []]
        if frames is None:
            self.features = [points] * count
        self.ends = np.cumsum([0, *(each.shape[1] for each in self.features)])
        self.unknowns = int(self.ends[-1]) + count + 1
        scores = points @ base.directions.T
        self.largest_score = float(np.abs(scores).max(initial=0.0))
        half = np.tanh(0.5 * scores)
        slopes = 0.25 * (1 - half**2) * base.heights
        self.owner = np.argmax(1 - half**2, axis=1)
        self.steepness = np.abs(slopes[np.arange(len(points)), self.owner])
        self.blocks = [
            (heads, self._inverse(heads, slopes)) for heads in _together(1 - half**2, count)
        ]
        self.direction_errors, self.height_errors = self._errors(half, slopes)

    def _inverse(self, heads: list[int], slopes: Floats) -> Floats:
        """Inverse of the normal equations of some directions, at the points that show them."""
        from scipy.linalg import cho_factor, cho_solve

        weights = np.abs(slopes[:, heads])
        strong = (weights > _STRONG * weights.max(axis=0)).any(axis=1)
        parts = [slopes[strong, h : h + 1] * self.features[h][strong] for h in heads]
        block = np.concatenate(parts, axis=1)
        gram = block.T @ block
        diagonal = np.diag(gram).copy()
        gram[np.diag_indices_from(gram)] += _RIDGE * np.where(diagonal > 0, diagonal, 1.0)
        try:
            factor = cho_factor(gram, check_finite=False)
        except np.linalg.LinAlgError:
            gram[np.diag_indices_from(gram)] += 1e-6 * diagonal.max() + 1e-300
            factor = cho_factor(gram, check_finite=False)
        # Multiplied many times: a product is faster than two triangular solutions.
        return np.asarray(cho_solve(factor, np.eye(len(gram)), check_finite=False))

    def _errors(self, half: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """Standard errors of directions and heights for values with unit errors."""
        count = slopes.shape[1]
        linear = _Linear(self, half, slopes, np.ones(len(half)))
        inverse = linear.inverse
        directions = np.zeros(count)
        for heads, block in self.blocks:
            variances = np.diag(block)
            at = 0
            for h in heads:
                here = slice(self.ends[h], self.ends[h + 1])
                width = self.ends[h + 1] - self.ends[h]
                border = linear.solved[here]
                more = np.einsum("ij,jk,ik->", border, inverse, border)
                directions[h] = np.sqrt(variances[at : at + width].sum() + max(more, 0.0))
                at += width
        return directions, np.sqrt(np.maximum(np.diag(inverse)[:-1], 0.0))

    def fit(self, values: Floats, start: Steps, floor: float) -> FramedFit:
        """Least squares from a start near the solution.

        Parameters
        ----------
        values
            At the points, shape ``(n,)``.
        start
            Where to begin; its directions change within the frames.
        floor
            Size of the errors of values: below it no progress is looked for.
        """
        steps, weights = start, np.ones(len(values))
        scores = self.points @ steps.directions.T
        left = values - _values(scores, steps)
        cost, stalled = float(left @ left), 0
        for _ in range(_ROUNDS):
            if not np.isfinite(cost) or cost == 0.0:
                break
            half = np.tanh(0.5 * scores)
            slopes = 0.25 * (1 - half**2) * steps.heights
            weights = self._weights(slopes)
            change = self._solve(half, slopes, left, weights)
            change = self._trusted(scores, steps, change)
            for _ in range(_HALVINGS):
                trial = self._moved(steps, change)
                trial_scores = self.points @ trial.directions.T
                trial_left = values - _values(trial_scores, trial)
                trial_cost = float(trial_left @ trial_left)
                if trial_cost < cost:
                    break
                change = 0.5 * change
            else:
                break
            stalled = stalled + 1 if trial_cost > 0.8 * cost else 0
            steps, scores, left, cost = trial, trial_scores, trial_left, trial_cost
            if stalled and (cost <= len(values) * floor**2 or stalled >= 3):
                break
        growth = np.ones(steps.count)
        for h in range(steps.count):
            own = weights[self.owner == h]
            growth[h] = max(1.0, float(np.sqrt(np.mean(own**2)))) if len(own) else 1.0
        return FramedFit(
            steps,
            left,
            self.direction_errors * growth,
            self.height_errors * growth,
            self.unknowns,
        )

    def _weights(self, slopes: Floats) -> Floats:
        """Weights that keep the normal equations near those of the base.

        There are nearly as many unknowns as points, so that weights hardly matter.
        """
        now = np.abs(slopes[np.arange(len(slopes)), self.owner])
        return np.asarray(np.clip(self.steepness / np.maximum(now, 1e-300), 0.2, 5.0))

    def _moved(self, steps: Steps, change: Floats) -> Steps:
        count, end = steps.count, self.ends[-1]
        moves = change[:end].reshape(count, -1) if self.frames is None else None
        if moves is None:
            assert self.frames is not None
            moves = np.array(
                [change[self.ends[h] : self.ends[h + 1]] @ self.frames[h] for h in range(count)]
            )
        return Steps(
            steps.directions + moves,
            steps.heights + change[end:-1],
            steps.constant + float(change[-1]),
        )

    def _moves(self, change: Floats) -> Floats:
        """What a change of directions does to all scores, shape ``(n, H)``."""
        if self.frames is None:
            return self.points @ change[: self.ends[-1]].reshape(len(self.features), -1).T
        parts = [
            feature @ change[self.ends[h] : self.ends[h + 1]]
            for h, feature in enumerate(self.features)
        ]
        return np.stack(parts, axis=1)

    def _solve(self, half: Floats, slopes: Floats, left: Floats, weights: Floats) -> Floats:
        """Linear weighted least squares by preconditioned conjugate gradients."""
        linear = _Linear(self, half, slopes, weights)
        # No more digits than the next linear problem has use for.
        size = float(np.sqrt(np.mean(left**2))) / max(float(np.abs(slopes).max()), 1e-300)
        enough = float(np.clip(size, *_INNER)) ** 2
        x = np.zeros(self.unknowns)
        r = linear.backward(weights * left)
        z = linear.precondition(r)
        p, rho = z, float(r @ z)
        first = rho
        for _ in range(_INNER_ROUNDS):
            if not rho > 0:
                break
            moved = linear.forward(p)
            alpha = rho / float(moved @ moved)
            x = x + alpha * p
            r = r - alpha * linear.backward(moved)
            z = linear.precondition(r)
            before, rho = rho, float(r @ z)
            if rho < enough * first:
                break
            p = z + rho / before * p
        return x

    def directions_solved(self, r: Floats) -> Floats:
        """Inverse of the blocks of all directions, applied to rows ``(unknowns, ..)``."""
        solved = np.empty_like(r)
        for heads, block in self.blocks:
            places = np.concatenate([np.arange(self.ends[h], self.ends[h + 1]) for h in heads])
            solved[places] = block @ r[places]
        return solved

    def _trusted(self, scores: Floats, steps: Steps, change: Floats) -> Floats:
        """Shrink what a head is asked to move beyond a score of 1.5 or half its height."""
        weights = 1 / np.cosh(0.5 * np.clip(scores, -60, 60)) ** 4 + 1e-300
        moves = self._moves(change)
        size = np.sqrt((weights * moves**2).sum(axis=0) / weights.sum(axis=0)) / _FAR
        end = int(self.ends[-1])
        size = np.maximum(size, np.abs(change[end:-1]) / (0.5 * np.abs(steps.heights) + 1e-300))
        factors = 1 / np.maximum(1.0, size) ** 2
        widths = np.diff(self.ends)
        return change * np.concatenate([np.repeat(factors, widths), factors, [1.0]])


class _Linear:
    """The linear least squares problem of one step, and nearly its inverse.

    The blocks of the directions are those of the base; heights and the constant, which show
    everywhere, are eliminated exactly.
    """

    def __init__(
        self, problem: FramedProblem, half: Floats, slopes: Floats, weights: Floats
    ) -> None:
        self.problem, self.end = problem, int(problem.ends[-1])
        self.sides = np.concatenate([0.5 * half, np.ones((len(half), 1))], axis=1)
        self.sides *= weights[:, None]
        slopes = slopes * weights[:, None]
        # Every head at the points that show it: what is left out slows convergence, no more.
        least = _SEEN * np.abs(slopes).max(axis=0)
        self.rows = [
            np.flatnonzero(np.abs(column) > e) for column, e in zip(slopes.T, least, strict=True)
        ]
        self.parts = [
            slopes[at, h : h + 1] * problem.features[h][at] for h, at in enumerate(self.rows)
        ]
        pairs = zip(self.parts, self.rows, strict=True)
        self.border = np.concatenate([part.T @ self.sides[at] for part, at in pairs])
        self.solved = problem.directions_solved(self.border)
        schur = self.sides.T @ self.sides
        least_pivot = 1e-12 * np.diag(schur).max()
        values, vectors = np.linalg.eigh(schur - self.border.T @ self.solved)
        self.inverse = (vectors / np.maximum(values, least_pivot)) @ vectors.T

    def forward(self, x: Floats) -> Floats:
        """Changes of values."""
        total = self.sides @ x[self.end :]
        ends = self.problem.ends
        for h, at in enumerate(self.rows):
            total[at] += self.parts[h] @ x[ends[h] : ends[h + 1]]
        return np.asarray(total)

    def backward(self, r: Floats) -> Floats:
        """The transpose."""
        moves = [part.T @ r[at] for part, at in zip(self.parts, self.rows, strict=True)]
        return np.concatenate([*moves, self.sides.T @ r])

    def precondition(self, r: Floats) -> Floats:
        """Nearly the inverse of the normal equations."""
        first = self.problem.directions_solved(r[: self.end])
        last = self.inverse @ (r[self.end :] - self.border.T @ first)
        return np.concatenate([first - self.solved @ last, last])


def _values(scores: Floats, steps: Steps) -> Floats:
    return np.asarray(0.5 * np.tanh(0.5 * scores) @ steps.heights + steps.constant)


def _together(activity: Floats, count: int) -> list[list[int]]:
    """Sets of heads that the same points show; ``activity`` has shape ``(n, H)``."""
    label = list(range(count))
    for h in range(count):
        shown = activity[activity[:, h] > 0.3]
        if not len(shown):
            continue
        for k in np.flatnonzero(shown.mean(axis=0) > _TOGETHER).tolist():
            old, new = label[k], label[h]
            label = [new if each == old else each for each in label]
    return [[h for h in range(count) if label[h] == each] for each in sorted(set(label))]
