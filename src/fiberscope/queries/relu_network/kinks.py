"""Neurons from the jumps of the linear function at hinges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.relu_network.lines import Line, find_hinges
from fiberscope.queries.relu_network.result import averages
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

RATIOS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Perturbations relative to the distance from the nearest hinge, until a piece is linear."""
_PARALLEL = 1e-5
_UNIT = 0.05
_VANISHES = 1e-6


@dataclass(frozen=True)
class Kink:
    """``sign |vector^T c|``, up to the sign of the vector.

    Attributes
    ----------
    vector
        ``b``, shape ``(H d,)``.
    sign
        ``+1.0`` or ``-1.0``: whether the slope rises at the kink.
    error
        Estimated error of the vector, 2-norm.
    """

    vector: Floats
    sign: float
    error: float


def kinks_on_line(
    session: QuerySession,
    W: Floats,
    line: Line,
    noise: NoiseLevel,
    neurons: int,
    purpose: Purpose,
    rng: np.random.Generator,
) -> list[Kink] | None:
    """All kinks that one line shows; None if the oracle is not piecewise linear on it."""

    def ask(t: Floats) -> Floats:
        return session.ask(line.tokens(t), purpose)

    ends = averages(W, line.tokens(np.array([0.0, 1.0])))
    base, drift = ends[0], ends[1] - ends[0]
    probe = ask(np.array([-1.0, 0.0, 1.0]))
    gain = float(np.abs(probe).max()) / float(np.linalg.norm(base) + np.linalg.norm(drift))

    def tolerance(t: Floats) -> Floats:
        reach = np.linalg.norm(base) + np.abs(t) * np.linalg.norm(drift)
        return 64 * (noise.absolute + noise.unit * gain * reach * np.sqrt(len(base)))

    hinges = find_hinges(ask, tolerance, neurons)
    if not hinges.pieces:
        return None
    bounds = _bounds(hinges.pieces, hinges.places, hinges.at)
    fits = _piece_fits(session, W, line, bounds, noise, gain, purpose, rng)
    kinks = []
    for place, at in zip(hinges.places, hinges.at, strict=True):
        before, after = fits[place], fits[place + 1]
        if before is None or after is None:
            continue
        jump = after[0] - before[0]
        error = float(np.hypot(before[1], after[1]))
        size = float(np.linalg.norm(jump))
        c = base + at * drift
        # A neuron vanishes where its hinge is, up to the errors of the jump.
        allowed = max(_VANISHES * size, 8 * error) * np.linalg.norm(c)
        if size <= 8 * error or abs(jump @ c) > allowed:
            continue
        kinks.append(Kink(jump, float(np.sign(jump @ drift)), error))
    return kinks


def _bounds(
    pieces: list[tuple[float, float]], places: list[int], at: Floats
) -> list[tuple[float, float]]:
    """Pieces up to the hinges next to them, where these are known."""
    left = {place + 1: float(t) for place, t in zip(places, at, strict=True)}
    right = {place: float(t) for place, t in zip(places, at, strict=True)}
    return [
        (left.get(index, first), right.get(index, last))
        for index, (first, last) in enumerate(pieces)
    ]


def _piece_fits(
    session: QuerySession,
    W: Floats,
    line: Line,
    bounds: list[tuple[float, float]],
    noise: NoiseLevel,
    gain: float,
    purpose: Purpose,
    rng: np.random.Generator,
) -> list[tuple[Floats, float] | None]:
    """``f = l^T c`` in every piece: ``l`` and its error, or None where nothing fits."""
    length, d = line.start.shape
    unknowns = len(W) * d + 1
    count = int(1.3 * unknowns) + 8
    fits: list[tuple[Floats, float] | None] = [None] * len(bounds)
    pending = [index for index, (low, high) in enumerate(bounds) if high > low]
    for ratio in RATIOS:
        sequences = []
        for index in pending:
            low, high = bounds[index]
            middle = 0.5 * (low + high)
            reach = 0.5 * (high - low) * ratio * float(np.linalg.norm(line.move))
            moves = rng.normal(size=(count, length, d)) * reach / np.sqrt(length * d)
            sequences.append(line.tokens(np.array([middle])) + moves)
        if not pending:
            break
        tokens = session.representable(np.concatenate(sequences))
        answers = session.ask(tokens, purpose).reshape(len(pending), count)
        c = averages(W, tokens).reshape(len(pending), count, -1)
        left = []
        for row, index in enumerate(pending):
            fit = _affine(c[row], answers[row], noise, gain)
            if fit is None:
                left.append(index)
            else:
                fits[index] = fit
        pending = left
    return fits


def _affine(c: Floats, f: Floats, noise: NoiseLevel, gain: float) -> tuple[Floats, float] | None:
    centre = c.mean(axis=0)
    design = np.concatenate([c - centre, np.ones((len(c), 1))], axis=1)
    scales = np.linalg.norm(design, axis=0)
    scales = np.where(scales > 0, scales, 1.0)
    solved, _, rank, singular = np.linalg.lstsq(design / scales, f, rcond=1e-13)
    if rank < design.shape[1]:
        return None
    left = f - design @ (solved / scales)
    unit = noise.absolute + noise.unit * gain * float(np.linalg.norm(centre)) * np.sqrt(len(c[0]))
    if np.abs(left).max() > 64 * unit:
        return None
    # Errors of the averages themselves scale alike.
    spread = max(float(np.sqrt(left @ left / (len(f) - design.shape[1]))), _UNIT * unit)
    error = spread / float(singular[-1]) * float(np.linalg.norm(1 / scales[:-1]))
    return solved[:-1] / scales[:-1], error


def merged(kinks: list[Kink]) -> list[Kink]:
    """One kink for every direction: the most precise one."""
    kept: list[Kink] = []
    for kink in sorted(kinks, key=lambda one: one.error / float(np.linalg.norm(one.vector))):
        size = float(np.linalg.norm(kink.vector))
        doubt = max(_PARALLEL, 30 * kink.error / size)
        for other in kept:
            length = float(np.linalg.norm(other.vector))
            cosine = kink.vector @ other.vector / (size * length)
            apart = np.linalg.norm(kink.vector / size - np.sign(cosine) * other.vector / length)
            if apart < doubt:
                break
        else:
            kept.append(kink)
    return kept


def inner_signs(kinks: Floats, outer: Floats, linear: Floats) -> Floats | None:
    """Signs with ``sum_k s_k sign_k b_k`` equal to the linear part, if they are determined."""
    if len(kinks) == 0 or len(kinks) > kinks.shape[1]:
        return None
    scaled = (kinks * outer[:, None]).T
    norms = np.linalg.norm(scaled, axis=0)
    solved, _, _, singular = np.linalg.lstsq(scaled / norms, linear, rcond=None)
    if singular[-1] < 1e-4 * singular[0]:
        return None
    solved = solved / norms
    rest = float(np.linalg.norm(scaled @ np.sign(solved) - linear))
    if np.abs(np.abs(solved) - 1).max() > 1e-3 or rest > 1e-3 * float(np.linalg.norm(norms)):
        return None
    return np.sign(solved)
