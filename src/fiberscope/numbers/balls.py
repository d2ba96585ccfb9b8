"""Real balls (python-flint's Arb): every result encloses the true value, at any precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.numbers.system import Array, NumberSystem


def load_flint() -> ModuleType:
    """Import python-flint, or raise :class:`InputError` that says how to install it."""
    try:
        import flint
    except ImportError:
        raise InputError(
            "exact and ball arithmetic need python-flint: pip install 'fiberscope[exact]'"
        ) from None
    module: ModuleType = flint
    return module


@contextmanager
def ball_precision(bits: int) -> Iterator[None]:
    """Work at ``bits`` of precision inside the block.

    Arb's precision is one global of python-flint; this sets it and puts the old value back.
    """
    context = load_flint().ctx
    before = context.prec
    context.prec = bits
    try:
        yield
    finally:
        context.prec = before


class Balls(NumberSystem):
    """NumPy object arrays of ``flint.arb``, at a stated precision.

    Operators round at the precision that is current when they run, so arithmetic belongs inside
    ``with system.precision():``. Conversions never lose anything at first hand: integers, float64
    and dyadic numbers are taken exactly, fractions and decimal strings as the smallest enclosing
    ball.

    Parameters
    ----------
    bits
        Working precision in bits.
    """

    name = "balls"
    rigorous = True

    def __init__(self, bits: int = 128) -> None:
        self.flint = load_flint()
        self.bits = bits

    @contextmanager
    def precision(self) -> Iterator[Balls]:
        """Work at this system's precision inside the block."""
        with ball_precision(self.bits):
            yield self

    def number(self, value: Any) -> Any:
        """One ball from an integer, float, fraction, decimal string or ball."""
        flint = self.flint
        if isinstance(value, flint.arb):
            return value
        if isinstance(value, Fraction):
            return flint.arb(flint.fmpq(value.numerator, value.denominator))
        if isinstance(value, np.generic):
            value = value.item()
        return flint.arb(value)

    def array(self, values: Any) -> NDArray[Any]:
        """Object array of balls, converted at this system's precision."""
        source = np.asarray(values)
        result = np.empty(source.shape, dtype=object)
        flat = result.reshape(-1)
        with ball_precision(self.bits):
            for index, value in enumerate(source.reshape(-1).tolist()):
                flat[index] = self.number(value)
        return result

    def zeros(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Object array of exact zeros."""
        result = np.empty(shape, dtype=object)
        result.fill(self.flint.arb(0))
        return result

    def _each(self, x: Array, method: str) -> NDArray[Any]:
        source = np.asarray(x, dtype=object)
        result = np.empty(source.shape, dtype=object)
        flat = result.reshape(-1)
        for index, value in enumerate(source.reshape(-1)):
            flat[index] = getattr(value, method)()
        return result

    def exp(self, x: Array) -> NDArray[Any]:
        """Exponential, entry by entry."""
        return self._each(x, "exp")

    def sqrt(self, x: Array) -> NDArray[Any]:
        """Square root, entry by entry."""
        return self._each(x, "sqrt")

    def log(self, x: Array) -> NDArray[Any]:
        """Natural logarithm, entry by entry."""
        return self._each(x, "log")

    def log1p(self, x: Array) -> NDArray[Any]:
        """``log(1 + x)`` entry by entry, accurate for small ``x``."""
        return self._each(x, "log1p")

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Midpoints, rounded to float64 (values beyond its range become zero or infinity)."""
        source = np.asarray(x, dtype=object)
        flat = [float(value.mid()) for value in source.reshape(-1)]
        return np.array(flat, dtype=np.float64).reshape(source.shape)

    def matrix(self, x: Array) -> Any:
        """``flint.arb_mat`` of a two-dimensional object array."""
        rows, columns = np.shape(x)
        return self.flint.arb_mat(rows, columns, np.asarray(x, dtype=object).reshape(-1).tolist())

    def from_matrix(self, matrix: Any) -> NDArray[Any]:
        """Two-dimensional object array of an ``arb_mat``."""
        result = np.empty(matrix.nrows() * matrix.ncols(), dtype=object)
        result[:] = matrix.entries()
        return result.reshape(matrix.nrows(), matrix.ncols())
