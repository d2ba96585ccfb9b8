"""Exact rational numbers as a number system: object arrays of fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.system import Array, NumberSystem, UnsupportedError


class Rationals(NumberSystem):
    """NumPy object arrays of ``Fraction``; slow, exact, for weights written as ``3/7``."""

    name = "rationals"
    exact = True
    rigorous = True

    def array(self, values: Any) -> NDArray[Any]:
        """Object array of fractions (every float is one)."""
        array = np.asarray(values, dtype=object)
        return np.vectorize(Fraction, otypes=[object])(array) if array.size else array

    def zeros(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Array of zeros."""
        return np.full(shape, Fraction(0), dtype=object)

    def exp(self, x: Array) -> Array:
        """Raise: the exponential is irrational."""
        raise UnsupportedError(f"{self.name} have no exponential: use float64 or balls")

    def sqrt(self, x: Array) -> Array:
        """Raise: square roots are irrational."""
        raise UnsupportedError(f"{self.name} have no square root: use float64 or balls")

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Nearest float64 values."""
        return np.asarray(x, dtype=np.float64)


RATIONALS = Rationals()
