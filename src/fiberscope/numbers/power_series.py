"""Truncated power series in one variable, over a prime field or over the rational numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.system import Array, NumberSystem, UnsupportedError

JET_PRIME = 33554383
"""A prime just below 2^25, congruent to 3 modulo 4: a product has 50 bits, so that 2^13 of them
add up in int64 without overflow, and square roots are powers."""


class Series:
    """Array of truncated power series: ``sum_k coefficients[k] * t^k`` with ``k < length``.

    Axis 0 of ``coefficients`` counts powers, the other axes are the array's. Over a prime field
    they are int64 residues, over the rational numbers an object array of ``Fraction``.
    """

    # NumPy must leave mixed operations to this class.
    __array_priority__ = 900.0
    __array_ufunc__ = None

    def __init__(self, system: PowerSeries, coefficients: NDArray[Any]) -> None:
        self.system = system
        self.coefficients = coefficients

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of series."""
        return tuple(self.coefficients.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes of the array of series."""
        return self.coefficients.ndim - 1

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The NumPy functions that code for any number system may call on an array."""
        if function is np.shape:
            return self.shape
        if function is np.ndim:
            return self.ndim
        if function is np.broadcast_to and isinstance(args[0], Series):
            shape = tuple(args[1] if len(args) > 1 else kwargs["shape"])
            aligned = _padded(self.coefficients, len(shape))
            return self._new(np.broadcast_to(aligned, (self.coefficients.shape[0], *shape)))
        return NotImplemented

    def _new(self, coefficients: NDArray[Any]) -> Series:
        return Series(self.system, coefficients)

    def _aligned(self, other: Series) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both coefficient arrays with the value axes padded in front to the same number."""
        ndim = max(self.ndim, other.ndim)
        return _padded(self.coefficients, ndim), _padded(other.coefficients, ndim)

    def __neg__(self) -> Series:
        return self._new(self.system.reduce(-self.coefficients))

    def __add__(self, other: Any) -> Series:
        right = self.system.coerce(other)
        if right is None:
            return NotImplemented
        a, b = self._aligned(right)
        return self._new(self.system.reduce(a + b))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Series:
        right = self.system.coerce(other)
        if right is None:
            return NotImplemented
        a, b = self._aligned(right)
        return self._new(self.system.reduce(a - b))

    def __rsub__(self, other: Any) -> Series:
        return (-self) + other

    def __mul__(self, other: Any) -> Series:
        right = self.system.coerce(other)
        if right is None:
            return NotImplemented
        a, b = self._aligned(right)
        return self._new(self.system.convolve(a, b, np.multiply))

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Series:
        right = self.system.coerce(other)
        if right is None:
            return NotImplemented
        return self._new(self.system.convolve(*self._aligned(right), np.matmul))

    def __rmatmul__(self, other: Any) -> Series:
        left = self.system.coerce(other)
        if left is None:
            return NotImplemented
        return self._new(self.system.convolve(*left._aligned(self), np.matmul))

    def __truediv__(self, other: Any) -> Series:
        right = self.system.coerce(other)
        if right is None:
            return NotImplemented
        return self * self.system.reciprocal(right)

    def __rtruediv__(self, other: Any) -> Series:
        return self.system.reciprocal(self) * other

    def __getitem__(self, key: Any) -> Series:
        keys = key if isinstance(key, tuple) else (key,)
        return self._new(self.coefficients[(slice(None), *keys)])

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Series:
        """Sum over axes of the array."""
        axes = axis if isinstance(axis, tuple) else (axis,)
        shifted = tuple(a % self.ndim + 1 for a in axes)
        return self._new(self.system.reduce(self.coefficients.sum(axis=shifted, keepdims=keepdims)))

    def reshape(self, *shape: Any) -> Series:
        """Reshape the array of series."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return self._new(self.coefficients.reshape((self.coefficients.shape[0], *sizes)))

    def transpose(self, *axes: int) -> Series:
        """Permute the axes of the array of series."""
        return self._new(self.coefficients.transpose(0, *(a % self.ndim + 1 for a in axes)))

    def swapaxes(self, first: int, second: int) -> Series:
        """Swap two axes of the array of series."""
        return self._new(self.coefficients.swapaxes(first % self.ndim + 1, second % self.ndim + 1))


def _padded(coefficients: NDArray[Any], ndim: int) -> NDArray[Any]:
    missing = ndim - (coefficients.ndim - 1)
    if missing <= 0:
        return coefficients
    shape = coefficients.shape
    return coefficients.reshape((shape[0], *([1] * missing), *shape[1:]))


class PowerSeries(NumberSystem):
    """Power series truncated after ``length`` terms, exact in every coefficient.

    Parameters
    ----------
    length
        Number of coefficients kept: arithmetic is modulo ``t^length``.
    modulus
        A prime at most 2^25 for coefficients in the prime field (int64, vectorised), or None for
        the rational numbers (``Fraction``, slow).
    """

    name = "power_series"
    exact = True
    rigorous = True

    def __init__(self, length: int, modulus: int | None = JET_PRIME) -> None:
        if length < 1:
            raise ValueError(f"a power series keeps at least one coefficient, not {length}")
        if modulus is not None and not 2 < modulus <= 2**25:
            raise ValueError(f"the modulus must be an odd prime at most 2^25, not {modulus}")
        self.length, self.modulus = length, modulus

    def reduce(self, coefficients: NDArray[Any]) -> NDArray[Any]:
        """Residues in ``[0, modulus)``; nothing over the rational numbers."""
        return coefficients if self.modulus is None else coefficients % self.modulus

    def scalars(self, values: Any) -> NDArray[Any]:
        """Field elements from integers, fractions or floats (taken as exact dyadic numbers)."""
        source = np.asarray(values)
        if self.modulus is not None and np.issubdtype(source.dtype, np.integer):
            return source.astype(np.int64) % self.modulus
        flat = [self._scalar(value) for value in source.reshape(-1).tolist()]
        result = np.empty(len(flat), dtype=object if self.modulus is None else np.int64)
        result[:] = flat
        return result.reshape(source.shape)

    def _scalar(self, value: Any) -> Any:
        fraction = Fraction(value)
        if self.modulus is None:
            return fraction
        if fraction.denominator % self.modulus == 0:
            raise ZeroDivisionError(f"{fraction} has no residue modulo {self.modulus}")
        return fraction.numerator * pow(fraction.denominator, -1, self.modulus) % self.modulus

    def from_coefficients(self, coefficients: Sequence[Any]) -> Series:
        """Series with the given leading coefficients (arrays of one shape), zeros after them."""
        leading = np.stack([self.scalars(part) for part in coefficients[: self.length]])
        full = self._zero((self.length, *leading.shape[1:]))
        full[: leading.shape[0]] = leading
        return Series(self, full)

    def _zero(self, shape: tuple[int, ...]) -> NDArray[Any]:
        if self.modulus is not None:
            return np.zeros(shape, dtype=np.int64)
        zeros = np.empty(shape, dtype=object)
        zeros.fill(Fraction(0))
        return zeros

    def array(self, values: Any) -> Array:
        """Constant series."""
        return values if isinstance(values, Series) else self.from_coefficients([values])

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Array of zero series."""
        return Series(self, self._zero((self.length, *shape)))

    def coerce(self, other: Any) -> Series | None:
        """Take a number or a plain array as a constant; None for what another class handles."""
        if isinstance(other, Series):
            return other
        if isinstance(other, int | Fraction | float | np.generic | np.ndarray):
            return self.from_coefficients([other])
        return None

    def convolve(self, a: NDArray[Any], b: NDArray[Any], product: Any) -> NDArray[Any]:
        """Cauchy product of coefficient arrays under a bilinear product of their entries."""
        # A factor with few nonzero coefficients (a constant, an odd series) costs only those.
        powers_a = [k for k in range(a.shape[0]) if np.any(a[k] != 0)]
        powers_b = [k for k in range(b.shape[0]) if np.any(b[k] != 0)]
        if len(powers_a) > len(powers_b):
            return self._convolve(powers_b, b, a, lambda x, y: product(y, x), product(a[0], b[0]))
        return self._convolve(powers_a, a, b, product, product(a[0], b[0]))

    def _convolve(
        self, powers: list[int], a: NDArray[Any], b: NDArray[Any], product: Any, first: Any
    ) -> NDArray[Any]:
        result = self._zero((self.length, *np.shape(first)))
        for count, power in enumerate(powers):
            result[power:] += product(a[power], b[: self.length - power])
            if count % 32 == 31:
                # int64 holds 2^13 products of residues; inner axes of up to 256 stay safe.
                result = self.reduce(result)
        return self.reduce(result)

    def invert(self, values: NDArray[Any]) -> NDArray[Any]:
        """Reciprocals of field elements; :class:`ZeroDivisionError` where one is zero."""
        if not np.all(values != 0):
            raise ZeroDivisionError("a power series without constant term has no reciprocal")
        if self.modulus is None:
            return 1 / values
        return self._power(values, self.modulus - 2)

    def _power(self, values: NDArray[Any], exponent: int) -> NDArray[Any]:
        result = np.ones_like(values)
        base = values
        while exponent:
            if exponent & 1:
                result = self.reduce(result * base)
            base = self.reduce(base * base)
            exponent >>= 1
        return result

    def reciprocal(self, x: Series) -> Series:
        """``1 / x``, from the recurrence of its coefficients."""
        source = x.coefficients
        leading = self.invert(source[0])
        powers = [k for k in range(1, self.length) if np.any(source[k] != 0)]
        result = self._zero(source.shape)
        result[0] = leading
        for k in range(1, self.length):
            total = sum((source[i] * result[k - i] for i in powers if i <= k), 0)
            result[k] = self.reduce(-leading * self.reduce(np.asarray(total)))
        return Series(self, result)

    def terms(self, x: Series) -> int:
        """Number of Taylor coefficients of ``f`` that reach ``f(x)`` before truncation."""
        present = np.flatnonzero([np.any(part != 0) for part in x.coefficients])
        # x^k starts at k times the first power present.
        return 1 if present.size == 0 else -(-self.length // max(int(present[0]), 1))

    def compose(self, taylor: Sequence[Any], x: Series) -> Series:
        """``sum_k taylor[k] x^k`` for a series without constant term (Horner's rule)."""
        if np.any(x.coefficients[0] != 0):
            raise UnsupportedError(
                "a Taylor series can only be composed with a power series without constant term"
            )
        result = self.zeros(x.shape)
        for coefficient in reversed([self._scalar(c) for c in taylor[: self.terms(x)]]):
            result = result * x + np.asarray(coefficient)
        return result

    def exp(self, x: Array) -> Array:
        """Exponential of series without constant term (``e`` is not in the field)."""
        series = self.array(x)
        taylor = [Fraction(1, factorial(k)) for k in range(self.terms(series))]
        return self.compose(taylor, series)

    def sqrt(self, x: Array) -> Array:
        """Square root whose constant term is a root in the prime field.

        Raises
        ------
        UnsupportedError
            Where the constant term has no root, or over the rational numbers.
        """
        if self.modulus is None or self.modulus % 4 != 3:
            raise UnsupportedError("square roots need a prime field with modulus 3 modulo 4")
        source = self.array(x).coefficients
        root = self._power(source[0], (self.modulus + 1) // 4)
        if np.any(self.reduce(root * root) != source[0]) or np.any(root == 0):
            raise UnsupportedError("a constant term has no invertible square root in the field")
        half = self.invert(self.reduce(2 * root))
        result = self._zero(source.shape)
        result[0] = root
        for k in range(1, self.length):
            total = source[k] - sum((result[i] * result[k - i] for i in range(1, k)), 0)
            result[k] = self.reduce(half * self.reduce(total))
        return Series(self, result)

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Raise: a power series is not one float each."""
        raise UnsupportedError("a power series has no float64 value: take its coefficients")
