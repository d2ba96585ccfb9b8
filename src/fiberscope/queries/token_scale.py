"""A token size at which attention is neither flat nor saturated, found without knowing anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import kept_decimals, lowest_bits, shown_arithmetic
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import NotOfThisFormError
from fiberscope.queries.session import Purpose, QuerySession

_EXPONENTS = tuple(range(-6, 4))
_LENGTH = 9
SMALLEST = 4.0 ** _EXPONENTS[0]
"""Token size below which nothing is asked."""


@dataclass(frozen=True)
class TokenScale:
    """Where to probe.

    Attributes
    ----------
    size
        2-norm of a token at which scores are of order one; 1 where nothing depends on it.
    largest
        Largest 2-norm at which answers were finite, or the user's bound.
    active
        Whether attention depended on the size at all.
    backed_off
        Whether NaN or infinity made the scale smaller.
    answers
        All answers of the search, shape ``(sizes,)``.
    grain
        Size of an answer, per 2-norm of a token, at which its last binary digit would be the last
        of the arithmetic: larger than answers are where they are differences of larger numbers.
    """

    size: float
    largest: float
    active: bool
    backed_off: bool
    answers: NDArray[np.float64]
    grain: float = 0.0


def find_token_scale(
    session: QuerySession,
    rng: np.random.Generator,
    token_bound: float | None = None,
    declared_noise: float | None = None,
) -> TokenScale:
    """Ask one sequence ``X`` at sizes ``4^k``, twice, and see where ``f(s X) / s`` moves.

    For scores near zero ``f(s X) / s`` is the mean, for large ones the hard choice; in between it
    moves. Twenty queries. Sizes with an answer that is not finite, or lost in the noise, are left
    out.

    Raises
    ------
    NotOfThisFormError
        If no size has a finite answer.
    """
    if session.arithmetic is Arithmetic.BALLS:
        largest = np.inf if token_bound is None else token_bound
        return TokenScale(min(1.0, largest), largest, True, False, np.zeros(0))
    tokens = rng.standard_normal((_LENGTH, session.width))
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    sizes = np.array([4.0**k for k in _EXPONENTS])
    if token_bound is not None:
        sizes = sizes / sizes.max() * min(token_bound * 0.99, sizes.max())
    sent = session.representable(sizes[:, None, None] * tokens)
    twice = np.stack([session.ask(sent, Purpose.CLASS_TESTS, repetition=k) for k in (0, 1)], axis=1)
    finite = np.isfinite(twice).all(axis=1)
    if not finite.any():
        raise NotOfThisFormError("finite", "every answer is a finite number", np.inf, 0.0)
    # An answer above a gap of infinities would be luck.
    below = finite & (np.cumsum(~finite) == 0) if finite[0] else finite
    answers = twice[:, 0]
    largest = np.inf if finite.all() and token_bound is None else float(sizes[below][-1])
    unit = max(
        session.arithmetic.unit, shown_arithmetic(twice.reshape(-1), session.arithmetic).unit
    )
    decimals = kept_decimals(answers, unit)
    absolute = max(
        declared_noise or 0.0,
        3 * float(np.abs(np.diff(twice[below], axis=1)).max(initial=0.0)),
        0.0 if decimals is None else 10.0**-decimals,
    )
    grain = grain_of(answers[below], sizes[below], unit)
    values = answers[below] / sizes[below]
    errors = 30 * unit * np.abs(values).max(initial=0.0) + absolute / sizes[below]
    clear = errors <= 0.2 * (np.abs(values) - errors).max(initial=0.0)
    backed_off = not bool(finite.all())
    if not clear.any():
        size = float(min(1.0, sizes[below][-1]))
        return TokenScale(size, largest, False, backed_off, answers, grain)
    kept, values, errors = sizes[below][clear], values[clear], errors[clear]
    moved = np.abs(values - values[0])
    moved = np.where(moved > 2 * (errors + errors[0]), moved, 0.0)
    active = bool(moved.any())
    size = min(max(1.0, float(kept[0])), float(kept[-1]))
    if active:
        size = float(kept[int(np.argmax(moved > 0.25 * moved.max()))])
    return TokenScale(size, largest, active, backed_off, answers, grain)


def grain_of(answers: NDArray[np.float64], sizes: NDArray[np.float64], unit: float) -> float:
    """See `TokenScale`; 0 where last digits do not grow with the tokens, as rounding errors do."""
    digits = lowest_bits(answers) / sizes
    digits = digits[digits > 0]
    if not digits.size or digits.max() > 2.0**12 * digits.min():
        return 0.0
    return float(np.median(digits)) / (2 * unit)
