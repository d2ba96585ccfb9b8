"""What can be asked: token sequences of any length, answered with one number each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError

BALL_BITS = 128
"""Precision that a ball oracle is asked for when nobody says otherwise."""


class Arithmetic(Enum):
    """The numbers in which an oracle reads tokens and computes."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    BALLS = "balls"

    @property
    def unit(self) -> float:
        """Unit roundoff ``2^-53``, ``2^-24`` or ``2^-8``; zero for balls."""
        return {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "balls": 0.0}[
            self.value
        ]

    @property
    def largest(self) -> float:
        """Largest finite number; infinity for balls."""
        exponent = {"float64": 1023, "float32": 127, "bfloat16": 127}.get(self.value)
        return np.inf if exponent is None else 2.0**exponent * (2 - 2 * self.unit)

    def representable(self, tokens: Any) -> NDArray[Any]:
        """The nearest tokens that an oracle of this arithmetic reads without rounding.

        Parameters
        ----------
        tokens
            Array of any shape.

        Returns
        -------
        numpy.ndarray
            float64 whose values lie on the grid of the arithmetic; for balls an object array of
            :class:`fractions.Fraction`, equal to the given integers, fractions or floats.
        """
        if self is Arithmetic.BALLS:
            source = np.asarray(tokens)
            exact = np.empty(source.shape, dtype=object)
            exact.reshape(-1)[:] = [_fraction(value) for value in source.reshape(-1).tolist()]
            return exact
        array = np.asarray(tokens, dtype=np.float64)
        if self is Arithmetic.FLOAT32:
            return array.astype(np.float32).astype(np.float64)
        if self is Arithmetic.BFLOAT16:
            import ml_dtypes

            return array.astype(ml_dtypes.bfloat16).astype(np.float64)
        return array


def _fraction(value: Any) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, int | float):
        return Fraction(value)
    # python-flint's fmpq and fmpz.
    return Fraction(int(getattr(value, "p", value)), int(getattr(value, "q", 1)))


class Oracle(Protocol):
    """A function of token sequences that can be asked, and nothing else known about it.

    Attributes
    ----------
    width
        Entries of a token.
    arithmetic
        What the oracle computes in, and the grid on which tokens are sent.
    identity
        What is asked, in one line that does not change between runs; transcripts store it.
    """

    width: int
    arithmetic: Arithmetic
    identity: str

    def answer(self, sequences: Any, bits: int = BALL_BITS) -> Any:
        """Answer every sequence with one number, in order.

        Parameters
        ----------
        sequences
            List of arrays of shape ``(N, width)`` whose ``N >= 1`` may differ, or one array of
            shape ``(n, N, width)``. The last token asks, all tokens are attended
            to. float64 on the oracle's grid; for balls object arrays of
            :class:`fractions.Fraction`.
        bits
            Working precision of a ball oracle; others ignore it.

        Returns
        -------
        sequence
            One each: floats (NaN and infinity allowed: the scale of the probes then backs off);
            for balls ``flint.arb`` enclosing the true values.
        """


Function = TypeVar("Function", bound=Callable[..., Any])


def ball_oracle(function: Function) -> Function:
    """Declare a function ``(tokens, bits) -> flint.arb`` as a ball oracle.

    ``tokens`` is an object array ``(N, width)`` of :class:`fractions.Fraction`; the answer is a
    ball, or an exact integer or fraction. python-flint's precision is ``bits`` during the call.
    Used as a decorator.
    """
    function.arithmetic = Arithmetic.BALLS  # type: ignore[attr-defined]
    return function


class FunctionOracle:
    """A Python function of one sequence as an oracle.

    Parameters
    ----------
    function
        Called with a float64 array ``(N, width)`` and returning a number; one declared by
        :func:`ball_oracle` is called with fractions and the precision in bits.
    width
        Entries of a token.
    arithmetic
        Default: what the function declares in its attribute ``arithmetic``, else float64.
    identity
        Default: the function's module and name.
    """

    one_at_a_time = True

    def __init__(
        self,
        function: Callable[..., Any],
        width: int,
        arithmetic: Arithmetic | None = None,
        identity: str | None = None,
    ) -> None:
        declared = getattr(function, "arithmetic", Arithmetic.FLOAT64)
        self.function, self.width = function, width
        self.arithmetic = Arithmetic(declared) if arithmetic is None else arithmetic
        name = getattr(function, "__qualname__", type(function).__name__)
        self.identity = identity or f"{getattr(function, '__module__', '')}:{name}"

    def answer(self, sequences: Sequence[NDArray[Any]], bits: int = BALL_BITS) -> list[Any]:
        """Call the function once a sequence.

        Raises
        ------
        InputError
            If the function raises, or returns something that is not one number.
        """
        return [self._one(np.array(tokens), bits) for tokens in sequences]

    def _one(self, tokens: NDArray[Any], bits: int) -> Any:
        balls = self.arithmetic is Arithmetic.BALLS
        try:
            value = self._in_balls(tokens, bits) if balls else self.function(tokens)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # foreign code: anything can come out of it
            reason = " ".join(str(error).split())[:120] or "no message"
            raise InputError(
                f"the oracle raised {type(error).__name__} for a sequence of {len(tokens)} tokens "
                f"of width {self.width}: {reason}; check --width, or give an oracle that accepts "
                "any number of tokens"
            ) from None
        return ball_answer(value, bits) if balls else float_answer(value)

    def _in_balls(self, tokens: NDArray[Any], bits: int) -> Any:
        from fiberscope.numbers.balls import ball_precision

        with ball_precision(bits):
            return self.function(tokens, bits)


def float_answer(value: Any) -> float:
    """One answer as a float; :class:`InputError` if it is not one number."""
    try:
        if value is None or isinstance(value, str | bytes):
            raise TypeError
        array = np.asarray(value, dtype=np.float64)
        if array.size == 1:
            return float(array.reshape(-1)[0])
    except OverflowError:
        return float("inf")  # an integer beyond every float
    except (TypeError, ValueError):
        pass
    raise InputError(
        f"the oracle answered {str(value)[:60]!r} where one number is needed: return a float"
    )


def ball_answer(value: Any, bits: int) -> Any:
    """One answer as a ball; :class:`InputError` for floats, whose errors nobody knows."""
    from fiberscope.numbers.balls import Balls

    system = Balls(bits)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, int | Fraction | system.flint.arb | system.flint.fmpq | system.flint.fmpz):
        return system.array([value])[0]
    raise InputError(
        f"a ball oracle answered {str(value)[:60]!r}: return a flint.arb, an integer or a fraction"
    )
