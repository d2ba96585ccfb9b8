"""A token size at which attention is neither flat nor saturated, found without knowing anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import NotOfThisFormError
from fiberscope.queries.session import Purpose, QuerySession

_EXPONENTS = tuple(range(-8, 5))
_LENGTH = 9


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
    """

    size: float
    largest: float
    active: bool
    backed_off: bool
    answers: NDArray[np.float64]


def find_token_scale(
    session: QuerySession, rng: np.random.Generator, token_bound: float | None = None
) -> TokenScale:
    """Ask one sequence ``X`` at sizes ``4^k`` and see where ``f(s X) / s`` leaves its limit.

    For scores near zero ``f(s X) / s`` is the mean, for large ones the hard choice; in between it
    moves. Thirteen queries. Sizes with an answer that is not finite are left out.

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
    answers = session.ask(sent, Purpose.CLASS_TESTS)
    finite = np.isfinite(answers)
    if not finite.any():
        raise NotOfThisFormError("finite", "every answer is a finite number", np.inf, 0.0)
    # An answer above a gap of infinities would be luck.
    below = finite & (np.cumsum(~finite) == 0) if finite[0] else finite
    kept, values = sizes[below], answers[below] / sizes[below]
    largest = float(kept[-1]) if not finite.all() or token_bound is not None else np.inf
    moved = np.abs(values - values[0])
    reference = max(moved.max(initial=0.0), 0.0)
    active = bool(reference > 30 * session.arithmetic.unit * np.abs(values).max(initial=0.0))
    if not active:
        size = float(min(1.0, kept[-1]))
    else:
        size = float(kept[int(np.argmax(moved > 0.25 * reference))])
    return TokenScale(size, largest, active, not bool(finite.all()), answers)
