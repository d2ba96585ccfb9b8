"""Find the steps on a half circle of last tokens: how many, where, how high, how steep.

On ``y = a p + b q`` with ``(a, b)`` on a half circle every step crosses exactly once. The scores
are large there, so that steps are narrow and far from each other.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.steps import Fit, Steps, fit_steps

Floats = NDArray[np.float64]

GRID = 129
SAMPLES = 1500
"""Most samples of one circle."""
STEPS = 24
"""Most steps of one circle."""
_RESOLVED = 0.06
"""Intervals over which the value changes by more than this share are halved."""
_NEAR = 60.0
_STEEPNESSES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.12, 1.3, 1.6, 2.0, 3.0, 6.0)
_INSIDE = 4
_HOPELESS = 0.3
_ACCEPTED = 0.2
"""Residuals up to this share of the bound on errors of values are explained."""


class Circle:
    """One half circle for one direction ``z``.

    Parameters
    ----------
    probe, z, half
        Where to ask, the direction, and ``u^T z / 2``.
    p, q
        Rows of small integers times one number, so that ``a p + b q`` is exact for ``a, b`` on a
        grid; shapes ``(d,)``.
    radius
        ``|(a, b)|``, a power of two.
    """

    def __init__(
        self,
        probe: PairProbe,
        z: Floats,
        half: float,
        p: Floats,
        q: Floats,
        radius: float,
    ) -> None:
        self.probe, self.z, self.half, self.p, self.q = probe, z, half, p, q
        self.radius = radius
        self.angles = np.zeros(0)
        self.plane = np.zeros((0, 2))
        self.values = np.zeros(0)
        self.clustered, self.wild, self.full = 0, False, False

    @staticmethod
    def axes(width: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Integer vectors of norm about one after scaling by a power of two."""
        while True:
            p, q = rng.integers(-3, 4, size=(2, width)).astype(np.float64)
            cosine = p @ q / max(1.0, float(np.linalg.norm(p) * np.linalg.norm(q)))
            if p.any() and q.any() and abs(cosine) < 0.5:
                scale = 2.0 ** np.round(np.log2(np.linalg.norm(p)))
                return p / scale, q / scale

    @property
    def points(self) -> Floats:
        """Points ``y`` asked so far, shape ``(n, d)``."""
        return self.plane[:, :1] * self.p + self.plane[:, 1:] * self.q

    def ask(self, angles: Floats) -> None:
        """Add samples at these angles."""
        if not len(angles):
            return
        spacing = self.probe.grid(float(np.abs(self.z).max()) + 4 * self.radius) * 8
        plane = self.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        plane = np.round(plane / spacing) * spacing
        y = plane[:, :1] * self.p + plane[:, 1:] * self.q
        values = self.probe.values(self.z, y, self.half)
        order = np.argsort(np.concatenate([self.angles, angles]), kind="stable")
        self.angles = np.concatenate([self.angles, angles])[order]
        self.plane = np.concatenate([self.plane, plane])[order]
        self.values = np.concatenate([self.values, values])[order]

    def scan(self) -> None:
        """Equidistant samples, cut open where nothing happens, halved where something does."""
        self.ask(np.pi * (np.arange(GRID) + 0.5) / GRID)
        changes = np.abs(np.diff(np.append(self.values, -self.values[0])))
        spread = float(np.ptp(self.values))
        quiet = np.convolve(np.tile(changes, 3), np.ones(5), "same")[GRID : 2 * GRID]
        cut = int(np.argmin(quiet)) + 1
        # The values are odd: the part before the cut continues after half a turn.
        turned = np.arange(GRID) < cut
        self.angles = np.concatenate([self.angles[~turned], self.angles[turned] + np.pi])
        signs = np.where(turned, -1.0, 1.0)
        self.plane = np.concatenate([self.plane[~turned], -self.plane[turned]])
        self.values = np.concatenate([self.values[~turned], (signs * self.values)[turned]])
        self.refine(None, spread)

    def refine(self, steps: Steps | None, spread: float, rounds: int = 24) -> None:
        """Halve intervals over which what is not explained yet changes much."""
        for _ in range(rounds):
            curve = self.unexplained(steps)
            wide = np.abs(np.diff(curve)) > max(_RESOLVED * spread, self.noise(spread))
            wide &= np.diff(self.angles) > 1e-13
            if not wide.any():
                return
            if len(self.values) + int(wide.sum()) > SAMPLES:
                self.full = True
                return
            middles = 0.5 * (self.angles[1:] + self.angles[:-1])[wide]
            self.ask(middles)

    def noise(self, spread: float) -> float:
        """Changes up to this much say nothing."""
        size = float(np.linalg.norm(self.probe.total) * np.linalg.norm(self.z)) + spread
        return 4 * (self.probe.noise.absolute + self.probe.noise.unit * size)

    def unexplained(self, steps: Steps | None) -> Floats:
        """Values minus those of steps in the plane."""
        return self.values if steps is None else self.values - steps(self.plane)

    def clusters(self, curve: Floats, least: float) -> list[tuple[Floats, float]]:
        """Direction in the plane and height of every run of samples over which a curve changes."""
        moving = np.abs(np.diff(curve)) > least
        edges = np.flatnonzero(np.diff(np.concatenate([[0], moving.astype(int), [0]])))
        found = []
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            part, at = curve[first : last + 1], self.angles[first : last + 1]
            height = float(part[-1] - part[0])
            if abs(height) < least or len(part) < 2:
                continue
            share = np.maximum.accumulate((part - part[0]) / height)
            low, middle, high = np.interp([0.25, 0.5, 0.75], share, at)
            steepness = 2 * np.log(3) / max(high - low, 1e-12)
            normal = np.array([-np.sin(middle), np.cos(middle)])
            found.append((steepness / self.radius * normal, height))
        return found

    def steps(self, limit: int) -> Fit | None:
        """Steps that explain all samples up to their errors, or None.

        Parameters
        ----------
        limit
            Most steps to try.
        """
        self.scan()
        spread = float(np.ptp(self.values))
        found = self.clusters(self.values, max(0.01 * spread, self.noise(spread)))
        self.clustered = len(found)
        self.wild = self.full or len(found) > limit
        if self.wild or not found:
            return None
        start = Steps(np.array([m for m, _ in found]), np.array([h for _, h in found]))
        fit = self.fit(start)
        if fit.worst > _HOPELESS * spread:
            return None
        for _ in range(limit):
            if fit.worst <= _ACCEPTED * self.floor(fit.steps):
                unresolved = self.unresolved(fit.steps)
                if not unresolved:
                    return self.pruned(fit)
                fit = self.resolved(fit.steps, unresolved)
                continue
            better = self.extended(fit, limit)
            if better is None or better.worst > 0.5 * fit.worst:
                return None
            fit = better
        return None

    def fit(self, start: Steps, rounds: int = 40) -> Fit:
        """Least squares over all samples."""
        return fit_steps(self.plane, self.values, start, self.floor(start), rounds)

    def floor(self, steps: Steps) -> float:
        """Errors of values here."""
        score = float(np.abs(steps.directions).max(initial=0.0)) * 2 * self.radius
        return self.probe.floor(self.z, steps.heights, score)

    def unresolved(self, steps: Steps) -> list[int]:
        """Steps that passed between samples: any steep enough one explains the values."""
        inside = np.abs(self.plane @ steps.directions.T) < _INSIDE
        return [int(h) for h in np.flatnonzero(inside.sum(axis=0) < _INSIDE)]

    def resolved(self, steps: Steps, which: list[int]) -> Fit:
        """Samples inside the given steps, and a new fit that starts from what they show."""
        directions, heights = steps.directions.copy(), steps.heights.copy()
        for h in which:
            rest, height = steps.without(h), abs(float(steps.heights[h]))
            # The others' errors are far below a step that stands out at all.
            self.refine(rest, height, rounds=40)
            found = self.clusters(self.unexplained(rest), 0.02 * height)
            near = [one for one in found if abs(abs(one[1]) - height) < 0.2 * height]
            if len(near) == 1:
                directions[h], heights[h] = near[0]
        return self.fit(Steps(directions, heights, steps.constant))

    def extended(self, fit: Fit, limit: int) -> Fit | None:
        """One step more: a weak one seen in what is left, or one that shares a crossing."""
        steps = fit.steps
        if steps.count >= limit:
            return None
        self.refine(steps, float(np.ptp(self.unexplained(steps))), rounds=16)
        if self.full:
            return None
        curve = self.unexplained(steps)
        starts = []
        jumps = self.clusters(curve, 0.05 * float(np.ptp(curve)))
        for direction, height in sorted(jumps, key=lambda jump: -abs(jump[1]))[:3]:
            starts.append(steps.with_step(direction, height))
        at = self.plane[int(np.argmax(np.abs(curve)))]
        lengths = np.linalg.norm(steps.directions, axis=1)
        near = int(np.argmin(np.abs(steps.directions @ at) / lengths))
        starts += self.split(steps, near)
        tried = [self.fit(start, rounds=8) for start in starts]
        tried.sort(key=lambda one: one.spread)
        fits = [self.fit(one.steps) for one in tried[:2]]
        return min(fits, key=lambda one: one.worst) if fits else None

    def split(self, steps: Steps, which: int) -> list[Steps]:
        """Two steps of different steepness at the crossing of one: proportional heads look so.

        For every pair of steepnesses on a grid the heights solve a linear problem; the best pairs.
        """
        rest = steps.without(which)
        direction = steps.directions[which]
        scores = self.plane @ direction
        close = np.abs(scores) < _NEAR
        if close.sum() < 8:
            return []
        values = (self.values - rest(self.plane))[close]
        columns = 0.5 * np.tanh(0.5 * np.outer(scores[close], _STEEPNESSES))
        found = []
        for i, j in itertools.combinations(range(len(_STEEPNESSES)), 2):
            design = np.stack([columns[:, i], columns[:, j], np.ones(len(values))], axis=1)
            heights, *_ = np.linalg.lstsq(design, values, rcond=None)
            left = values - design @ heights
            found.append((float(left @ left), i, j, heights))
        found.sort(key=lambda one: one[0])
        return [
            rest.with_step(direction * _STEEPNESSES[i], float(heights[0])).with_step(
                direction * _STEEPNESSES[j], float(heights[1])
            )
            for _, i, j, heights in found[:3]
        ]

    def pruned(self, fit: Fit) -> Fit | None:
        """Refuse a fit with steps that its own errors do not tell from nothing."""
        spread = max(fit.spread, self.floor(fit.steps) / 4)
        doubtful = np.abs(fit.steps.heights) < 8 * spread * fit.height_errors
        if doubtful.any() or not np.isfinite(fit.direction_errors).all():
            return None
        return fit
