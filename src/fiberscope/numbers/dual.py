"""Dual numbers over any number system: values with many tangents at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.system import Array, NumberSystem, UnsupportedError


@dataclass(frozen=True, eq=False)
class Dual:
    """``value + sum_p tangent[p] epsilon_p`` with all ``epsilon_p epsilon_q = 0``.

    ``value`` has any shape; ``tangent`` has one more axis in front, counting directions. Both are
    arrays of the base system, so float64, balls and prime fields share this code.
    """

    value: Array
    tangent: Array

    # NumPy must leave mixed operations to this class.
    __array_priority__ = 1000.0
    __array_ufunc__ = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """Number of axes of the value."""
        return len(self.shape)

    def _along(self, ndim: int) -> Array:
        """Tangent with its value axes padded in front to ``ndim``, ready to broadcast."""
        missing = ndim - self.ndim
        if missing <= 0:
            return self.tangent
        shape = self.tangent.shape
        return self.tangent.reshape((shape[0], *([1] * missing), *shape[1:]))

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.tangent)

    def __add__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            ndim = max(self.ndim, other.ndim)
            return Dual(self.value + other.value, self._along(ndim) + other._along(ndim))
        value = self.value + other
        tangent = self._along(len(value.shape))
        if tangent.shape[1:] != value.shape:
            tangent = tangent + (value - value)
        return Dual(value, tangent)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dual:
        return self + (-other)

    def __rsub__(self, other: Any) -> Dual:
        return (-self) + other

    def __mul__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            ndim = max(self.ndim, other.ndim)
            tangent = self._along(ndim) * other.value + other._along(ndim) * self.value
            return Dual(self.value * other.value, tangent)
        value = self.value * other
        return Dual(value, self._along(len(value.shape)) * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            quotient = self.value / other.value
            ndim = max(self.ndim, other.ndim)
            tangent = (self._along(ndim) - other._along(ndim) * quotient) / other.value
            return Dual(quotient, tangent)
        value = self.value / other
        return Dual(value, self._along(len(value.shape)) / other)

    def __rtruediv__(self, other: Any) -> Dual:
        value = other / self.value
        tangent = self._along(len(value.shape)) * (-value / self.value)
        return Dual(value, tangent)

    def __matmul__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            ndim = max(self.ndim, other.ndim)
            tangent = self._along(ndim) @ other.value + self.value @ other._along(ndim)
            return Dual(self.value @ other.value, tangent)
        value = self.value @ other
        return Dual(value, self._along(len(np.shape(other))) @ other)

    def __rmatmul__(self, other: Any) -> Dual:
        value = other @ self.value
        return Dual(value, other @ self._along(len(np.shape(other))))

    def __getitem__(self, key: Any) -> Dual:
        keys = key if isinstance(key, tuple) else (key,)
        return Dual(self.value[keys], self.tangent[(slice(None), *keys)])

    def _axes(self, axis: int | tuple[int, ...]) -> tuple[int, ...]:
        axes = axis if isinstance(axis, tuple) else (axis,)
        return tuple(a % self.ndim for a in axes)

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Dual:
        """Sum over axes of the value."""
        axes = self._axes(axis)
        return Dual(
            self.value.sum(axis=axes, keepdims=keepdims),
            self.tangent.sum(axis=tuple(a + 1 for a in axes), keepdims=keepdims),
        )

    def reshape(self, *shape: Any) -> Dual:
        """Reshape the value; the directions stay in front."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        value = self.value.reshape(sizes)
        return Dual(value, self.tangent.reshape((self.tangent.shape[0], *value.shape)))

    def transpose(self, *axes: int) -> Dual:
        """Permute the axes of the value."""
        return Dual(
            self.value.transpose(*axes),
            self.tangent.transpose(0, *(a % self.ndim + 1 for a in axes)),
        )

    def swapaxes(self, first: int, second: int) -> Dual:
        """Swap two axes of the value."""
        first, second = first % self.ndim, second % self.ndim
        return Dual(
            self.value.swapaxes(first, second), self.tangent.swapaxes(first + 1, second + 1)
        )


class DualNumbers(NumberSystem):
    """Dual numbers over ``base``: evaluating in them gives the value and exact derivatives."""

    def __init__(self, base: NumberSystem) -> None:
        self.base = base
        self.name = f"dual({base.name})"
        self.exact, self.rigorous = base.exact, base.rigorous

    def array(self, values: Any) -> Array:
        """Constants: arrays of the base system (they mix with :class:`Dual` by operators)."""
        return values if isinstance(values, Dual) else self.base.array(values)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Constant zeros of the base system."""
        return self.base.zeros(shape)

    def variables(self, vector: Array, directions: Array | None = None) -> Dual:
        """Vector of shape ``(n,)`` with tangents ``directions`` of shape ``(p, n)``.

        Without ``directions`` the tangents are the coordinate directions, ``p = n``.
        """
        if directions is None:
            directions = self.base.array(np.eye(vector.shape[0], dtype=np.int64))
        return Dual(vector, directions)

    def exp(self, x: Array) -> Array:
        """Exponential; its derivative is itself."""
        if not isinstance(x, Dual):
            return self.base.exp(x)
        value = self.base.exp(x.value)
        return Dual(value, x.tangent * value)

    def sqrt(self, x: Array) -> Array:
        """Square root, with derivative ``1 / (2 sqrt(x))``."""
        if not isinstance(x, Dual):
            return self.base.sqrt(x)
        value = self.base.sqrt(x.value)
        return Dual(value, x.tangent / (value + value))

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Raise for dual numbers, which are not one float each."""
        if isinstance(x, Dual):
            raise UnsupportedError(
                f"{self.name} has no float64 value: take .value or .tangent first"
            )
        return self.base.to_float64(x)
