"""Answers of an oracle, checked: their shape, their digits, and identities of every network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.score_refinement import ScoreRefinement, float_log

Oracle = Callable[[NDArray[Any], int], Any]
"""``oracle(inputs, bits)``: tokens of shape ``(tokens, d)`` as exact balls (``flint.arb``) to
outputs ``(tokens, p)`` as balls, fractions, integers or decimal strings good to ``bits`` bits."""

ROUNDING_DIGITS = 10
"""Values that agree to this many digits, and not beyond, are taken for rounded ones."""


class CheckedOracle(ScoreRefinement):
    """Ask an oracle, and refuse what no serial single-head network gives.

    Parameters
    ----------
    oracle
        See :data:`Oracle`.
    width, normalizers, tokens, asked, bits, rng
        See :class:`ScoreRefinement`.
    """

    def __init__(
        self,
        oracle: Oracle,
        width: int,
        normalizers: Sequence[Normalizer],
        tokens: int,
        asked: int,
        bits: int,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(width, normalizers, tokens, asked, bits, rng)
        self.oracle, self.evaluations = oracle, 0
        self.outputs: int | None = None
        # What a difference is small against: inputs are of size one, so outputs are as large as L.
        self.size = self.arb(1)

    def ask(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Output tokens as balls, shape ``(tokens, p)``."""
        self.evaluations += 1
        try:
            answer = np.asarray(self.oracle(inputs, self.bits))
        except InputError:
            raise
        except Exception as error:  # the oracle is foreign code: anything can come out of it
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"the oracle failed on inputs of shape {inputs.shape} (tokens, width) with "
                f"{type(error).__name__}: {reason or 'no message'}; give an oracle of that shape"
            ) from None
        if answer.dtype.kind == "f":
            raise InputError(
                f"the oracle returns float64 values (16 digits), but {self.digits} digits are "
                "needed: return exact numbers, decimal strings or flint.arb balls"
            )
        if answer.ndim != 2 or answer.shape[0] != self.tokens:
            raise InputError(
                f"the oracle returned shape {answer.shape} for {self.tokens} tokens: expected "
                f"({self.tokens}, outputs)"
            )
        if self.outputs is None:
            self.outputs = answer.shape[1]
        if answer.shape[1] != self.outputs or self.outputs == 0:
            raise InputError(
                f"the oracle returned {answer.shape[1]} outputs a token after {self.outputs}: "
                "return the same positive number for every input"
            )
        try:
            balls = self.system.array(answer)
        except (TypeError, ValueError):
            raise InputError(
                "the oracle must return integers, fractions, decimal strings or flint.arb balls"
            ) from None
        if not all(value.is_finite() for value in balls.reshape(-1)):
            raise InputError("the oracle returned a value that is not finite")
        return balls

    def check_form(self, readout: NDArray[Any]) -> None:
        """Refuse what no network of this form gives: cheap identities, before any division.

        Equal tokens go to ``L m``, all of them, and reordered tokens to reordered outputs.
        """
        mean = self.system.array(self.rng.integers(1, 9, self.width)) / 8
        self.size = max((abs(x) for x in readout.reshape(-1)), key=float_log)
        # Both signs: a constant function agrees with L m where the entries of m add up to one.
        for m in (mean, -mean):
            answer = self.ask(np.stack([m] * self.tokens))
            expected = np.stack([readout @ m] * self.tokens)
            self.compare(answer, expected, "equal tokens do not go to L m")
        inputs = self.fresh()
        self.compare(
            self.ask(inputs[::-1].copy()),
            self.ask(inputs)[::-1],
            "reordered tokens do not go to reordered outputs",
        )

    def compare(self, left: NDArray[Any], right: NDArray[Any], how: str) -> Any:
        """Largest possible deviation; refuse values that provably differ.

        A difference far below the values looks like rounding of the oracle, a larger one like
        another function.
        """
        flat = (left - right).reshape(-1)
        if all(x.contains(0) for x in flat):
            return max((x.abs_upper() for x in flat), key=float_log)
        worst = max((abs(x) for x in flat), key=float_log)
        have = int((float_log(self.size) - float_log(worst)) / log(10))
        have = min(have, self.digits - 1)
        if have >= ROUNDING_DIGITS:
            raise InputError(
                f"the oracle's values are good to about {have} digits, but {self.digits} digits "
                f"are needed for {self.asked} digits of every entry: {how}, the difference is "
                f"{decimal_bound(worst)}"
            )
        raise InputError(
            "the oracle is not a network of this depth, width and normalizers without residual "
            f"connection or mask: {how}, the difference is {decimal_bound(worst)}"
        )


def decimal_bound(value: Any) -> str:
    """Upper bound as a decimal string of a few digits (it can be far below float64's range)."""
    text: str = (value.upper() * 1.01).upper().str(3, radius=False)
    return text
