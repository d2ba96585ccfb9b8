"""How far an oracle's answers can be trusted: rounding, repetitions, and rounded digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import Arithmetic

REPETITIONS = 4
"""Answers to each sequence of the repeat test."""


@dataclass(frozen=True)
class NoiseLevel:
    """Errors of answers: at most about ``absolute + unit * size`` each.

    ``size`` is what rounding errors scale with (`AttentionHeads.size`, or before heads are known
    the largest answer times token length).

    Attributes
    ----------
    unit
        Relative error: the unit roundoff of the arithmetic that the answers show, or more where
        repeated answers differ in proportion to the tokens.
    absolute
        Spread of repeated answers, or half a unit of the last decimal digit that is kept, or what
        the user declares.
    repeatable
        Whether the same query had the same answer every time.
    sources
        Where these come from, in words.
    typical, typical_absolute
        Standard error of an answer: ``typical_absolute`` plus ``typical`` times the 2-norm
        of its longest token. From repeated answers, or from how far identities of the class miss;
        0 where nobody measured it.
    """

    unit: float
    absolute: float = 0.0
    repeatable: bool = True
    sources: tuple[str, ...] = ()
    typical: float = 0.0
    typical_absolute: float = 0.0

    def bound(self, size: NDArray[np.float64] | float) -> Any:
        """``absolute + unit * size``."""
        return self.absolute + self.unit * size


def lowest_bits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Value of the last binary digit that is not zero, of each number; zero for zero."""
    mantissa, exponent = np.frexp(np.abs(values))
    whole = (mantissa * 2.0**53).astype(np.int64)
    return np.asarray(np.ldexp((whole & -whole).astype(np.float64), exponent - 53))


def significant_bits(values: NDArray[np.float64]) -> int:
    """Bits of mantissa (1 to 53) that the finite, non-zero values need; 53 without any."""
    numbers = values[np.isfinite(values) & (values != 0)]
    if not numbers.size:
        return 53
    mantissa = (np.frexp(np.abs(numbers))[0] * 2.0**53).astype(np.int64)
    trailing = np.log2((mantissa & -mantissa).astype(np.float64)).astype(int)
    return int(53 - trailing.min())


def shown_arithmetic(values: NDArray[np.float64], declared: Arithmetic) -> Arithmetic:
    """The coarsest arithmetic whose grid holds all answers, never finer than declared.

    Eight different answers at least, otherwise the declared one: fewer can be round by chance.
    """
    if declared is Arithmetic.BALLS or len(np.unique(values[np.isfinite(values)])) < 8:
        return declared
    bits = significant_bits(values)
    for arithmetic, held in ((Arithmetic.BFLOAT16, 8), (Arithmetic.FLOAT32, 24)):
        if bits <= held and arithmetic.unit > declared.unit:
            return arithmetic
    return declared


def kept_decimals(values: NDArray[np.float64], unit: float) -> int | None:
    """Decimals to which all answers are rounded, or None if they are not.

    Only where the last digit stands well above the unit roundoff of the largest answer.
    """
    numbers = values[np.isfinite(values)]
    largest = np.abs(numbers).max(initial=0.0)
    if len(np.unique(numbers)) < 8 or largest == 0:
        return None
    for decimals in range(16):
        if 10.0**-decimals < 64 * unit * largest:
            return None
        if all(round(value, decimals) == value for value in numbers.tolist()):
            return decimals
    return None


def measured_noise(
    arithmetic: Arithmetic,
    repeated: NDArray[np.float64],
    sizes: NDArray[np.float64],
    answers: NDArray[np.float64],
    gain: float,
    declared: float | None = None,
) -> NoiseLevel:
    """Noise from repeated answers, from the digits of all answers, and from the user.

    Parameters
    ----------
    arithmetic
        What the oracle computes in.
    repeated
        Answers to the repeat test, shape ``(sequences, REPETITIONS)``.
    sizes
        Largest 2-norm of a token in each of those sequences, shape ``(sequences,)``, of at least
        two scales.
    answers
        All other answers, to see their digits.
    gain
        Largest answer per 2-norm of a token.
    declared
        The user's bound on every answer's error.
    """
    unit, absolute, sources = arithmetic.unit, 0.0, [f"{arithmetic.value} rounding"]
    decimals = kept_decimals(answers, unit)
    if decimals is not None:
        absolute = 0.5 * 10.0**-decimals
        sources.append(f"answers are rounded to {decimals} decimals")
    spread = repeated.std(axis=1, ddof=1) if repeated.size else np.zeros(0)
    repeatable = not np.any(spread)
    typical, typical_absolute = 0.0, 0.0 if decimals is None else 0.3 * 10.0**-decimals
    if not repeatable:
        small, large = sizes <= np.median(sizes), sizes > np.median(sizes)
        low = float(np.sqrt(np.mean(spread[small] ** 2)))
        high = float(np.sqrt(np.mean(spread[large] ** 2))) if large.any() else low
        # Four standard deviations, and the spread itself is known to some twenty percent.
        absolute, typical_absolute = max(absolute, 5 * low), low
        sources.append(f"repeated answers spread by {max(low, high):.2g}")
        if high > 3 * low:
            typical = high / float(sizes[large].min())
            unit = max(unit, 5 * high / (gain * float(sizes[large].min())))
    if declared is not None:
        absolute = max(absolute, declared)
        sources.append(f"declared error {declared:.3g}")
    return NoiseLevel(unit, absolute, repeatable, tuple(sources), typical, typical_absolute)
