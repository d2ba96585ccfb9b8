"""Measure the steps of every head for a basis of directions ``z``: ``z^T W_h`` and ``z^T w_h``.

For each ``z`` all heads are fitted together (see :mod:`.steps`) to points at which one head is
between its ends and the others mostly are not. Nothing requires the others to be saturated, so
more heads than dimensions and parallel directions are no special case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.steps import Fit, Steps, fit_steps
from fiberscope.queries.session import Purpose

Floats = NDArray[np.float64]

REACH = 6.0
"""Typical score of the other heads at a point for one head."""
_INNER, _OUTER = 1.2, 3.0
_CANDIDATES = 32
_MOVES = (0.3, 0.1, 0.03, 0.01)
EXPLAINED = 0.2
"""Residuals up to this share of the bound on errors of values are explained."""


class SweepError(Exception):
    """No fit explains the values at some direction."""


@dataclass(frozen=True)
class Bilinear:
    """Heads as two-token queries determine them, up to a common sign of ``(W_h, w_h)``.

    Attributes
    ----------
    W, w
        Shapes ``(H, d, d)`` and ``(H, d)``.
    W_errors, w_errors
        Estimated errors, Frobenius and 2-norm, shapes ``(H,)``.
    worst
        Largest residual of any fit relative to the bound on errors of values there.
    """

    W: Floats
    w: Floats
    W_errors: Floats
    w_errors: Floats
    worst: float

    def steps(self, z: Floats) -> Steps:
        """What a direction ``z`` shows."""
        return Steps(np.einsum("i,hij->hj", z, self.W), self.w @ z)


def design_points(steps: Steps, each: float, rng: np.random.Generator) -> Floats:
    """Points near every head's middle, spread in all directions: shape ``(n, d)``.

    Parameters
    ----------
    steps
        What is known of the heads.
    each
        Points per head and dimension.
    rng
        Draws orthonormal directions.
    """
    d = steps.directions.shape[1]
    total = int(np.ceil(each * d)) + 2
    points = []
    for direction in steps.directions:
        length = float(np.linalg.norm(direction))
        bases = [_rotation(d, rng) for _ in range(-(-total // d))]
        sides = np.concatenate(bases)[:total]
        sides = sides - np.outer(sides @ direction, direction) / length**2
        norms = np.linalg.norm(sides, axis=1, keepdims=True)
        sides = sides / np.where(norms > 1e-9, norms, 1.0) * REACH * np.sqrt(max(1, d - 1)) / length
        along = rng.uniform(-_INNER, _INNER, size=total)
        along[::4] = rng.choice([-_OUTER, _OUTER], size=len(along[::4]))
        if d == 1:
            sides = 0 * sides
        points.append(sides + np.outer(along, direction) / length**2)
    return np.concatenate(points)


def measure(
    probe: PairProbe, z: Floats, guess: Steps, each: tuple[float, ...], rng: np.random.Generator
) -> tuple[Fit, float]:
    """Fit all heads at one direction; the fit and its worst residual over the bound on errors.

    Parameters
    ----------
    probe, z
        Where to ask, on the grid.
    guess
        Heads so well known that scores at designed points are right within about one.
    each
        Points per head and dimension of every round; each round is designed from the last fit.
    """
    half = probe.half(z)
    points, values = np.zeros((0, len(z))), np.zeros(0)
    fit: Fit | None = None
    for share in each:
        y = probe.points(z, design_points(guess, share, rng))
        points = np.concatenate([points, y])
        values = np.concatenate([values, probe.values(z, y, half)])
        score = float(np.abs(points @ guess.directions.T).max())
        floor = probe.floor(z, guess.heights, score)
        fit = fit_steps(points, values, guess, 0.01 * floor)
        guess = fit.steps
    assert fit is not None
    return fit, fit.worst / probe.floor(z, guess.heights, score)


def typical_size(steps: Steps, z: Floats) -> float:
    """2-norm of ``z`` at which designed points are about a quarter as long."""
    d = len(z)
    gain = float(np.median(np.linalg.norm(steps.directions, axis=1))) / float(np.linalg.norm(z))
    return float(2.0 ** np.round(np.log2(np.sqrt(4 * REACH * np.sqrt(d) / gain))))


def coarse_sweep(
    probe: PairProbe, z: Floats, steps: Steps, each: float, rng: np.random.Generator
) -> Bilinear:
    """All directions from one: moves by a fraction of ``z``, along which scores move by about one.

    Parameters
    ----------
    probe
        Where to ask.
    z, steps
        The direction whose steps are known, at any scale.
    each
        Points per head and dimension.
    """
    d = len(z)
    size = typical_size(steps, z)
    factor = size / float(np.linalg.norm(z))
    base = Steps(steps.directions * factor, steps.heights * factor)
    frame = _rotation_from(z, rng)
    rows, fits, worst, purpose = [], [], 0.0, probe.purpose
    for i in range(d):
        for share in _MOVES:
            probe.purpose = purpose if share == _MOVES[0] else Purpose.RETRIES
            move = frame[i] * (size * share / REACH if i else 0.0)
            here = probe.direction(z * factor + move, size)
            fit, ratio = measure(probe, here, base, (each,), rng)
            probe.purpose = purpose
            if ratio <= EXPLAINED:
                break
        else:
            raise SweepError
        if i == 0:
            base = fit.steps
        rows.append(here)
        fits.append(fit)
        worst = max(worst, ratio)
    return assemble(np.array(rows), fits, worst)


def fine_sweep(
    probe: PairProbe,
    known: Bilinear,
    size: float,
    each: tuple[float, ...],
    rng: np.random.Generator,
) -> Bilinear:
    """An orthogonal basis of full length, chosen so that no head is weak at any of it."""
    rows, fits, worst = [], [], 0.0
    for row in balanced_basis(known.w, rng):
        z = probe.direction(row * size, size)
        fit, ratio = measure(probe, z, known.steps(z), each, rng)
        if ratio > EXPLAINED:
            raise SweepError
        rows.append(z)
        fits.append(fit)
        worst = max(worst, ratio)
    return assemble(np.array(rows), fits, worst)


def assemble(rows: Floats, fits: list[Fit], worst: float) -> Bilinear:
    """``W_h`` and ``w_h`` from ``z_i^T W_h`` and ``z_i^T w_h`` at independent rows ``z_i``."""
    directions = np.array([fit.steps.directions for fit in fits])
    heights = np.array([fit.steps.heights for fit in fits])
    inverse = np.linalg.inv(rows)
    W = np.linalg.solve(rows, directions.transpose(1, 0, 2))
    w = np.linalg.solve(rows, heights).T
    spread = np.array([fit.spread for fit in fits])[:, None]
    gains = np.sqrt((inverse**2).sum(axis=0))[:, None]
    direction_errors = np.array([fit.direction_errors for fit in fits]) * spread * gains
    height_errors = np.array([fit.height_errors for fit in fits]) * spread * gains
    return Bilinear(
        W,
        w,
        np.sqrt((direction_errors**2).sum(axis=0)),
        np.sqrt((height_errors**2).sum(axis=0)),
        worst,
    )


def balanced_basis(w: Floats, rng: np.random.Generator) -> Floats:
    """Orthonormal rows ``z_i`` with a small ``sum_i,h |w_h|^2 / (z_i^T w_h)^2``.

    The error of a head's ``W`` grows with exactly that sum. Random plane rotations, each by the
    best of some angles.
    """
    d = w.shape[1]
    basis = _rotation(d, rng)
    if d == 1 or not len(w):
        return basis
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    angles = np.pi * np.arange(_CANDIDATES) / _CANDIDATES
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    shares = basis @ unit.T
    for _ in range(4):
        for i, j in rng.permuted(np.stack(np.triu_indices(d, 1), axis=1), axis=0):
            if i == j:
                continue
            first = cosines * shares[i] + sines * shares[j]
            second = cosines * shares[j] - sines * shares[i]
            cost = (1 / (first**2 + 1e-12) + 1 / (second**2 + 1e-12)).sum(axis=1)
            best = int(np.argmin(cost))
            c, s = float(cosines[best, 0]), float(sines[best, 0])
            basis[[i, j]] = c * basis[i] + s * basis[j], c * basis[j] - s * basis[i]
            shares[[i, j]] = first[best], second[best]
    rotation, triangle = np.linalg.qr(basis.T)
    return np.asarray((rotation * np.sign(np.diag(triangle))).T)


def _rotation(d: int, rng: np.random.Generator) -> Floats:
    rotation, triangle = np.linalg.qr(rng.normal(size=(d, d)))
    return np.asarray(rotation * np.sign(np.diag(triangle)))


def _rotation_from(z: Floats, rng: np.random.Generator) -> Floats:
    """Orthonormal rows, the first along ``z``."""
    d = len(z)
    columns = np.concatenate([z[:, None], rng.normal(size=(d, d - 1))], axis=1)
    return np.asarray(np.linalg.qr(columns)[0].T)
