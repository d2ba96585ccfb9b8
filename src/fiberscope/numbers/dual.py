"""Dual numbers over any number system: values with many tangents at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
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

    def __post_init__(self) -> None:
        # Operations on zero-dimensional object arrays return the bare number.
        if not hasattr(self.value, "shape"):
            object.__setattr__(self, "value", np.array(self.value, dtype=object))

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
        tangent = self._along(np.ndim(value))
        if tuple(tangent.shape[1:]) != np.shape(value):
            tangent = _broadcast(tangent, (tangent.shape[0], *np.shape(value)), value)
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
        return Dual(value, self._along(np.ndim(value)) * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            quotient = self.value / other.value
            ndim = max(self.ndim, other.ndim)
            tangent = (self._along(ndim) - other._along(ndim) * quotient) / other.value
            return Dual(quotient, tangent)
        value = self.value / other
        return Dual(value, self._along(np.ndim(value)) / other)

    def __rtruediv__(self, other: Any) -> Dual:
        value = other / self.value
        tangent = self._along(np.ndim(value)) * (-value / self.value)
        return Dual(value, tangent)

    def __matmul__(self, other: Any) -> Dual:
        return _matrix_product(self, other)

    def __rmatmul__(self, other: Any) -> Dual:
        return _matrix_product(other, self)

    def __getitem__(self, key: Any) -> Dual:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, list | np.ndarray) for k in keys):
            # Index arrays apart from each other send their axes to the front, before the
            # directions: positions in the flat value have no such case.
            positions = np.arange(prod(self.shape)).reshape(self.shape)[keys]
            directions = self.tangent.shape[0]
            return Dual(self.value[keys], self.tangent.reshape(directions, -1)[:, positions])
        return Dual(self.value[keys], self.tangent[(slice(None), *keys)])

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Dual:
        """Sum over axes of the value (all of them by default)."""
        if axis is None:
            axis = tuple(range(self.ndim))
        axes = tuple(a % self.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
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
        """Permute the axes of the value (without arguments: reverse them)."""
        axes = axes or tuple(reversed(range(self.ndim)))
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


def _broadcast(tangent: Array, shape: tuple[int, ...], value: Array) -> Array:
    """Tangent repeated to ``shape``, for a sum in which the constant is the larger array."""
    if isinstance(tangent, np.ndarray):
        return np.broadcast_to(tangent, shape)
    # Arrays of other classes broadcast by their operators; only exact systems have them, where
    # the difference is zero.
    return tangent + (value - value)


def _matrix_product(left: Any, right: Any) -> Dual:
    """``left @ right`` where at least one is a :class:`Dual`; vectors as NumPy treats them."""
    row, column = np.ndim(left) == 1, np.ndim(right) == 1
    left = left.reshape((1, -1)) if row else left
    right = right.reshape((-1, 1)) if column else right
    ndim = max(np.ndim(left), np.ndim(right))
    left_value = left.value if isinstance(left, Dual) else left
    right_value = right.value if isinstance(right, Dual) else right
    terms = []
    if isinstance(left, Dual):
        terms.append(left._along(ndim) @ right_value)
    if isinstance(right, Dual):
        terms.append(left_value @ right._along(ndim))
    product = Dual(left_value @ right_value, terms[0] if len(terms) == 1 else terms[0] + terms[1])
    if row:
        product = product[..., 0, :]
    return product[..., 0] if column else product


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
