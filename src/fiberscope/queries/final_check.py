"""The check that every answer passes: fresh queries, longer and at other scales than those used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.oracle import BALL_BITS, Arithmetic
from fiberscope.queries.session import Purpose, QuerySession

LENGTHS = (1, 2, 5, 17, 33)
SCALES = (0.25, 1.0, 3.0)
SMALL = 2.0**-6
"""One more scale where answers differ from call to call, often in proportion to what they are: a
constant added to them shows beside the small ones."""
REPETITIONS = 5
COARSE = 2.0**-12
"""Unit roundoff above which deviations are judged by their root mean square as well."""
TYPICAL_ROUNDING = 10.0
"""Factor on typical rounding there, which grows with scores."""
SHARE = 2.0**-8
"""Root mean square of deviations over that of the answers which passes at most, beside the noise,
whatever the precision that is claimed: an answer that is known more coarsely is not checked."""
QUIET = 2.0**-12
"""Noise, relative to the answers, up to which that is demanded."""
ASKED_AGAIN = 4
"""Answers to each fresh sequence where they differ from call to call."""
STANDARD, OUTLIER = 2.0, 6.0
"""Root mean square of deviations over their standard errors that passes; a ratio counts up to the
second, since sequences at the edge of a hard choice have no normal errors."""
BACK_OFF = 4
"""Times that tokens are quartered where the oracle answers NaN or infinity."""


@dataclass(frozen=True)
class FinalCheck:
    """Agreement with the oracle on sequences that no step of the recovery has seen.

    Attributes
    ----------
    passed
        Whether every deviation is within its threshold (balls: every pair overlaps).
    queries, longest
        Sequences and the longest of them.
    worst
        Largest deviation in units of its threshold.
    deviation, threshold
        The deviation and the threshold there (of the root mean square, if that is worse).
    """

    passed: bool
    queries: int
    longest: int
    worst: float
    deviation: float
    threshold: float


def final_check(
    session: QuerySession,
    predict: Callable[[Sequence[NDArray[Any]]], NDArray[Any]],
    size: Callable[[Sequence[NDArray[Any]]], NDArray[np.float64]],
    noise: NoiseLevel,
    rng: np.random.Generator,
    *,
    token_size: float = 1.0,
    allowance: float = 16.0,
    relative: float = 0.0,
    sensitivity: Callable[[Sequence[NDArray[Any]]], NDArray[np.float64]] | None = None,
    token_bound: float | None = None,
    purpose: Purpose = Purpose.FINAL_CHECK,
    bits: int = BALL_BITS,
) -> FinalCheck:
    """Ask fresh sequences and compare.

    Gaussian tokens at :data:`SCALES` times ``token_size`` (and :data:`SMALL` where answers differ
    from call to call), :data:`LENGTHS` tokens, each :data:`REPETITIONS` times; half of the long
    ones have a query token of another scale. A deviation passes within
    ``allowance * noise.bound(size) + relative * size``. Where the noise is coarse or differs from
    call to call, such worst cases would pass nearly everything, and typical errors count as well.
    Rounding: the root mean square of all deviations must agree with the typical rounding.
    Declared errors and decimals: typical deviations must not exceed the bounds themselves. Answers
    that differ from call to call: every sequence is asked :data:`ASKED_AGAIN` times, and the mean
    may deviate by :data:`STANDARD` standard errors, of the repeated answers and of the recovered
    weights together, in the root mean square. Where the noise is small beside the answers, typical
    deviations must be within :data:`SHARE` of them, whatever ``relative`` grants.

    Parameters
    ----------
    session
        Where to ask.
    predict
        Answers of what was recovered: sequences to ``(n,)``, balls for a ball oracle.
    size
        What errors scale with at each sequence, ``(n,)``: `AttentionHeads.size`.
    noise
        The oracle's errors.
    rng
        Draws the sequences.
    token_size
        Typical 2-norm of a token: choose it so that scores are of order one.
    allowance
        Factor on the noise.
    relative
        Relative error that the recovery itself claims, for an answer that is coarser than the
        noise (2 to the minus bits).
    sensitivity
        How far answers move, typically, by errors of the size that the recovery claims (three
        standard errors): sequences to ``(n,)``.
    token_bound
        Largest 2-norm that the oracle accepts.
    bits
        Precision for balls.

    Returns
    -------
    FinalCheck
        Not passed also where the oracle answers NaN or infinity although ``predict`` is finite.
    """
    noisy = session.arithmetic is not Arithmetic.BALLS and not noise.repeatable
    scales = (SMALL, *SCALES) if noisy else SCALES
    sequences = fresh_sequences(session, rng, token_size, token_bound, scales)
    truth = session.ask(sequences, purpose, bits=bits)
    if session.arithmetic is not Arithmetic.BALLS:
        for _ in range(BACK_OFF):
            lost = np.flatnonzero(~np.isfinite(truth))
            if not lost.size:
                break
            # Too large for the oracle's exponentials, perhaps: a quarter, until it answers.
            for at in lost.tolist():
                sequences[at] = session.representable(sequences[at] / 4)
            truth[lost] = session.ask([sequences[at] for at in lost], purpose)
    spread = None
    if noisy:
        truth, spread = _asked_again(session, sequences, truth, purpose)
    found = predict(sequences)
    longest = max(len(each) for each in sequences)
    sizes = np.asarray(size(sequences), dtype=np.float64)
    threshold = allowance * noise.bound(sizes) + relative * sizes
    if session.arithmetic is Arithmetic.BALLS:
        overlap = [left.overlaps(right) for left, right in zip(truth, found, strict=True)]
        difference = [abs(a - b).upper() for a, b in zip(truth, found, strict=True)]
        worst = float(max(difference)) if difference else 0.0
        return FinalCheck(
            all(overlap), len(sequences), longest, float(not all(overlap)), worst, 0.0
        )
    with np.errstate(invalid="ignore"):
        answers = np.asarray(found, dtype=np.float64)
        deviation = np.abs(truth - answers)
    deviation = np.where(np.isfinite(deviation), deviation, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(deviation == 0, 0.0, deviation / threshold)
    at = int(np.argmax(ratio))
    worst, shown, allowed = float(ratio[at]), float(deviation[at]), float(threshold[at])
    if sensitivity is None:
        moved = relative * answers
    else:
        moved = np.asarray(sensitivity(sequences), dtype=np.float64)
    typical: list[tuple[float, float]] = []  # ratio and deviation
    mean = _root_mean_square(deviation)
    if spread is not None:
        standard = np.hypot(spread, moved / 3)
        typical.append((_ratio(deviation, standard) / STANDARD, mean))
    elif noise.absolute > 0:
        # Both parts are bounds, which typical deviations reach nowhere near.
        bound = noise.bound(sizes)
        typical.append((_ratio(deviation, bound + moved), mean))
        typical.append((mean / (_root_mean_square(bound) + _root_mean_square(moved)), mean))
    if noise.repeatable and noise.typical + noise.typical_absolute > 0 and noise.unit > COARSE:
        reach = np.array([np.linalg.norm(each, axis=1).max() for each in sequences])
        expected = TYPICAL_ROUNDING * (noise.typical * reach + noise.typical_absolute)
        explained = _root_mean_square(expected) + _root_mean_square(1.5 * moved)
        typical.append((mean / explained, mean))
    size_of_answers = _root_mean_square(np.where(np.isfinite(truth), truth, 0.0))
    if noise.repeatable and noise.unit <= QUIET and noise.absolute <= QUIET * size_of_answers:
        demanded = SHARE * size_of_answers + _root_mean_square(noise.bound(sizes))
        typical.append((mean / demanded if mean else 0.0, mean))
    for found_ratio, seen in typical:
        if found_ratio > worst:
            worst, shown, allowed = found_ratio, seen, seen / found_ratio
    return FinalCheck(worst <= 1, len(sequences), longest, worst, shown, allowed)


def _ratio(deviation: NDArray[np.float64], unit: NDArray[np.float64]) -> float:
    """Root mean square of ``deviation / unit``, each counting up to :data:`OUTLIER`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(deviation == 0, 0.0, deviation / unit)
    return _root_mean_square(np.minimum(ratio, OUTLIER))


def _asked_again(
    session: QuerySession,
    sequences: Sequence[NDArray[Any]],
    first: NDArray[np.float64],
    purpose: Purpose,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of :data:`ASKED_AGAIN` answers to each sequence, and their standard errors ``(n,)``.

    A few answers tell their own spread badly: it is averaged with that of the other sequences of
    the same size and length, which are neighbours here.
    """
    more = [session.ask(sequences, purpose, repetition=k) for k in range(1, ASKED_AGAIN)]
    answers = np.stack([first, *more])
    variance = answers.var(axis=0, ddof=1)
    groups = variance.reshape(-1, REPETITIONS)
    shared = 0.5 * (groups + groups.mean(axis=1, keepdims=True)).reshape(-1)
    return answers.mean(axis=0), np.sqrt(shared / ASKED_AGAIN)


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values**2)))


def fresh_sequences(
    session: QuerySession,
    rng: np.random.Generator,
    token_size: float,
    token_bound: float | None = None,
    scales: Sequence[float] = SCALES,
) -> list[NDArray[Any]]:
    """Sequences of the final check, on the oracle's grid (small dyadic tokens for balls)."""
    sequences = []
    for scale in scales:
        for length in LENGTHS:
            for repetition in range(REPETITIONS):
                tokens = rng.standard_normal((length, session.width)) / np.sqrt(session.width)
                tokens *= scale * token_size
                if repetition % 2:
                    tokens[-1] *= rng.choice(SCALES)
                if token_bound is not None:
                    norms = np.linalg.norm(tokens, axis=1, keepdims=True)
                    tokens *= np.minimum(1.0, 0.99 * token_bound / np.maximum(norms, 1e-300))
                if session.arithmetic is Arithmetic.BALLS:
                    tokens = np.round(tokens * 2.0**12) / 2.0**12
                sequences.append(session.representable(tokens))
    return sequences
