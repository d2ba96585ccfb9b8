"""The one surface that all number systems share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of a number system: it carries ``+ - * / @``, indexing, ``sum``, ``reshape``,
``transpose`` and ``swapaxes`` with NumPy's meaning (NumPy arrays of float64 or of python-flint
numbers, or a wrapper such as :class:`~fiberscope.numbers.dual.Dual`)."""


class NumberSystem(ABC):
    """Arithmetic in which a family's observation can be evaluated.

    A family writes its observation once, with the operators of :data:`Array` and the functions
    below; it then runs in every system that offers the functions it needs. A system without one of
    them (a prime field has no exponential) raises :class:`UnsupportedError`.

    Attributes
    ----------
    name
        Short name, used in reports and in a family's declaration.
    exact
        True when the arithmetic has no rounding (prime fields, power series over them).
    rigorous
        True when every result encloses the true value (exact systems and balls).
    """

    name: str
    exact: bool = False
    rigorous: bool = False

    @abstractmethod
    def array(self, values: Any) -> Array:
        """Convert numbers (integers, fractions, floats, nested lists, arrays).

        Nothing is rounded that the system could represent.
        """

    @abstractmethod
    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Array of zeros."""

    @abstractmethod
    def exp(self, x: Array) -> Array:
        """Exponential, entry by entry."""

    @abstractmethod
    def sqrt(self, x: Array) -> Array:
        """Square root, entry by entry."""

    @abstractmethod
    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Nearest float64 values (midpoints of balls); :class:`UnsupportedError` without any."""


class UnsupportedError(TypeError):
    """The number system has no such operation; the message names both."""
