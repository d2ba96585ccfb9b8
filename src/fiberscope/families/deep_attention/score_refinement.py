"""Newton's method for scores from outputs on inputs of size one, and its enclosure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.ball_jacobian import ball_jacobian
from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    effective_architecture,
    effective_columns,
)
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.probes import GUARD
from fiberscope.numbers.balls import Balls


def float_log(value: Any) -> float:
    """Logarithm of a nonnegative ball's midpoint, also below float64's range."""
    return float("-inf") if value == 0 else float(value.mid().log())


class ScoreRefinement(ABC):
    """Refine and enclose scores that are known approximately.

    Parameters
    ----------
    width, normalizers, tokens
        The network.
    asked
        Decimal digits wanted.
    bits
        Working precision.
    rng
        Draws the inputs.
    """

    def __init__(
        self,
        width: int,
        normalizers: Sequence[Normalizer],
        tokens: int,
        asked: int,
        bits: int,
        rng: np.random.Generator,
    ) -> None:
        self.width, self.tokens, self.asked, self.bits = width, tokens, asked, bits
        self.normalizers, self.rng = tuple(normalizers), rng
        self.depth = len(self.normalizers)
        self.system = Balls(bits)
        self.arb = self.system.flint.arb

    @abstractmethod
    def ask(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Output tokens of the unknown network as balls, shape ``(tokens, p)``."""

    @property
    def digits(self) -> int:
        """Decimal digits of the working precision."""
        return ceil(self.bits * log10(2))

    def unfit(self, reason: str) -> str:
        """Sentence for an oracle that the recovery cannot explain."""
        return (
            f"{reason}: the oracle is not a network of this depth, width and normalizers, its "
            f"values are not good to {self.digits} digits, or a score is zero, skew or far from "
            "size one"
        )

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Scores that fit no network overflow the normalizers; say so instead."""
        try:
            yield
        except InputError:
            raise InputError(self.unfit("the scores read off lie out of range")) from None

    def power(self, exponent: int) -> Any:
        """``2^-exponent``, exact."""
        return self.arb(2) ** (-exponent)

    def refine(
        self, readout: NDArray[Any], scores: list[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], Any]:
        """Newton's method on fresh inputs of size one, then an interval Newton enclosure.

        Returns enclosures of the scores and the radius of the box in which they are unique.
        """
        count = 2 + ceil(2 * self.depth * self.width**2 / readout.shape[0])
        inputs = [self.fresh() for _ in range(count)]
        observed = np.concatenate([self.ask(x).reshape(-1) for x in inputs])
        stacked = np.stack(inputs)
        target = self.power(ceil(3.33 * self.asked) + GUARD)
        inverse = None
        for _ in range(40):
            values, jacobian = self._values_and_jacobian(readout, scores, stacked)
            transposed = jacobian.mid().transpose()
            inverse = (transposed * jacobian.mid()).inv().mid() * transposed
            gap = self.system.matrix((observed - values).reshape(-1, 1))
            step = (inverse * gap).entries()
            scores = [
                self.middle(m + s)
                for m, s in zip(scores, self._parts([x.mid() for x in step]), strict=True)
            ]
            # Steps shrink quadratically until the precision stops them.
            if all(abs(x.mid()) < target * target or abs(x.mid()) < x.rad() for x in step):
                break
        return self._enclose(readout, scores, stacked, observed, inverse)

    def fresh(self) -> NDArray[Any]:
        """Tokens with entries that are multiples of 1/8 between -1 and 1."""
        drawn = self.rng.integers(-8, 9, (self.tokens, self.width))
        return self.system.array(drawn) / 8

    def middle(self, values: NDArray[Any]) -> NDArray[Any]:
        """Exact midpoints."""
        flat = np.empty(values.size, dtype=object)
        flat[:] = [value.mid() for value in values.reshape(-1)]
        return flat.reshape(values.shape)

    def _values_and_jacobian(
        self, readout: NDArray[Any], scores: Sequence[NDArray[Any]], inputs: NDArray[Any]
    ) -> tuple[NDArray[Any], Any]:
        """Outputs of a network on the inputs, and their Jacobian in the scores (``arb_mat``)."""
        architecture, parameters = effective_architecture(
            EffectiveParameters(readout, tuple(scores)),
            self.normalizers,
            self.tokens,
            convert=self.system.array,
        )
        with self.fitting():
            values = forward(architecture, parameters, inputs, self.system).reshape(-1)
            table = ball_jacobian(architecture, parameters, inputs, self.system).tolist()
        columns = effective_columns(architecture)[readout.size :]
        return values, self.system.flint.arb_mat([[row[c] for c in columns] for row in table])

    def _parts(self, entries: Sequence[Any]) -> list[NDArray[Any]]:
        flat = np.empty(len(entries), dtype=object)
        flat[:] = list(entries)
        return list(flat.reshape(self.depth, self.width, self.width))

    def _enclose(
        self,
        readout: NDArray[Any],
        scores: list[NDArray[Any]],
        inputs: NDArray[Any],
        observed: NDArray[Any],
        inverse: Any,
    ) -> tuple[list[NDArray[Any]], Any]:
        """Krawczyk's test in growing boxes around the refined scores.

        With an approximate left inverse ``Y`` of the Jacobian, ``c + Y (y - F(c)) + (1 - Y F'(box))
        (box - c)`` inside the box encloses the only scores in the box that give the answers ``y``.
        """
        flint = self.system.flint
        values, _ = self._values_and_jacobian(readout, scores, inputs)
        newton = inverse * self.system.matrix((observed - values).reshape(-1, 1))
        size = newton.nrows()
        radius = 4 * max((x.abs_upper() for x in newton.entries()), key=float_log)
        radius = radius.upper() + self.power(2 * self.bits)
        identity = flint.arb_mat(size, size)
        for i in range(size):
            identity[i, i] = 1
        for _ in range(8):
            box = [self._widened(m, radius) for m in scores]
            _, wide = self._values_and_jacobian(readout, box, inputs)
            spread = flint.arb_mat([[flint.arb(0, radius)]] * size)
            image = (newton + (identity - inverse * wide) * spread).entries()
            if all(x.abs_upper() < radius for x in image):
                return [m + x for m, x in zip(scores, self._parts(image), strict=True)], radius
            radius = (16 * radius).upper()
        raise InputError(self.unfit("interval Newton does not confirm the recovered scores"))

    def _widened(self, middle: NDArray[Any], radius: Any) -> NDArray[Any]:
        flat = np.empty(middle.size, dtype=object)
        flat[:] = [self.arb(x, radius) for x in middle.reshape(-1)]
        return flat.reshape(middle.shape)
