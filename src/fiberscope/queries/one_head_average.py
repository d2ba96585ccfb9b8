r"""One head behind coarse answers: several independent designs, averaged.

Where the errors of single answers leave few digits (bfloat16, a noisy endpoint), the ``d^2`` scores
are measured again in other random bases. Errors of different probes have no reason to agree, so
their mean shrinks like one over the square root of the number of designs, down to the bias of the
logit, which is of second order in the error. The spread between the designs gives the stated bound:
three standard errors. That is an estimate, not a worst case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.one_head import leaning_directions, probe_sizes, random_rotation
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.token_scale import TokenScale

DESIGNS = 16
_CLIP = 0.02
_SEARCH = 10


def averaged_scores(
    session: QuerySession,
    v: NDArray[np.float64],
    scale: TokenScale,
    rng: np.random.Generator,
    noise: NoiseLevel,
    designs: int = DESIGNS,
) -> tuple[NDArray[np.float64], float, float] | None:
    """``W`` as a mean over designs, three standard errors, and the one that noise predicts.

    Parameters
    ----------
    session
        The oracle. The first design counts as recovery, everything else as retries.
    v
        The value vector.
    scale
        Where scores are of order one.
    rng
        Draws the bases.
    noise
        Its typical size predicts the spread.
    designs
        How many; ``d^2`` queries each.

    Returns
    -------
    tuple or None
        None where an answer is not finite.
    """
    d = len(v)
    large, small = probe_sizes(scale)
    tuned = tuned_length(session, v, large, small, rng)
    if tuned is None:
        return None
    small = tuned
    total, predicted = [], 0.0
    for design in range(designs):
        purpose = Purpose.RETRIES if design else Purpose.RECOVERY
        z, y = bases(v, large, small, rng)
        z, y = session.representable(z), session.representable(y)
        found = _measure(session, v, z, y, d, purpose)
        if found is None:
            return None
        total.append(np.linalg.solve(z, np.linalg.solve(y, found.T).T))
        share = 1 / (1 + np.exp(-found))
        reach = np.linalg.norm(z, axis=1) + np.linalg.norm(y, axis=1).max()
        error = (noise.typical * reach + noise.typical_absolute) / np.abs(z @ v)
        predicted += float(np.sum((error[:, None] / (share * (1 - share))) ** 2))
    designs_found = np.array(total)
    spread = designs_found.var(axis=0, ddof=1).sum()
    error = float(np.sqrt(predicted)) / designs / (large * small)
    return designs_found.mean(axis=0), 3 * float(np.sqrt(spread / designs)), error


def tuned_length(
    session: QuerySession,
    v: NDArray[np.float64],
    large: float,
    small: float,
    rng: np.random.Generator,
) -> float | None:
    """Length of ``y`` at which scores are a bit below one; None if an answer is not finite."""
    d = len(v)
    for _ in range(_SEARCH):
        found = _measure(session, v, *bases(v, large, small, rng), min(d, 2), Purpose.RETRIES)
        if found is None:
            return None
        typical = float(np.sqrt(np.mean(found**2)))
        if 0.3 < typical < 1.0:
            break
        # Saturated scores say less than they are; noise adds to small ones.
        step = 1 / 16 if typical > 2.5 else min(0.6 / max(typical, 1e-9), 8.0)
        small = min(small * step, large)
    return small


def bases(
    v: NDArray[np.float64], large: float, small: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows ``z`` that lean towards ``v`` and rows ``y``, randomly turned; shapes ``(d, d)``."""
    d = len(v)
    turn = random_rotation(d, rng)
    # Leaning rows for a turned v, turned back: another basis with the same products.
    rows = leaning_directions(turn @ v) @ turn
    return large * rows, small * random_rotation(d, rng)


def _measure(
    session: QuerySession,
    v: NDArray[np.float64],
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    columns: int,
    purpose: Purpose,
) -> NDArray[np.float64] | None:
    """Scores ``(d, columns)`` of the tokens as sent."""
    d = len(v)
    last = session.representable(np.repeat(y[:columns], d, axis=0))
    first = session.representable(np.tile(z, (columns, 1)) + last)
    answers = session.ask(np.stack([first, last], axis=1), purpose)
    if not np.isfinite(answers).all():
        return None
    height = (first - last) @ v
    # A difference lost in rounding says nothing: a score of zero.
    safe = np.where(height == 0, 1.0, height)
    share = np.where(height == 0, 0.5, (answers - last @ v) / safe)
    share = np.clip(share, _CLIP, 1 - _CLIP)
    return np.log(share / (1 - share)).reshape(columns, d).T
