"""Arrays together with the variance of their storage rounding, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
T = TypeVar("T", np.float32, np.float64)

# Bits behind the point, and the exponent of the smallest normal number.
_FORMATS: dict[str, tuple[int, int]] = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "bfloat16": (7, -126),
    "float16": (10, -14),
}
SHORT = ("float32", "bfloat16", "float16")
"""Formats beside whose rounding that of float64 is nothing."""
_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)
CHUNK = 1 << 18
"""Entries that are worked on at a time: they stay in the cache."""


SUM_ROUNDINGS = 8.0
"""Roundings of float64, relative to the terms, that a sum is allowed."""
FAINT = 4.0
"""Standard deviations below which a row counts as zero: only what cancelled can be so small."""


def rounding_variance(stored: NDArray[Any]) -> Array:
    """Variance ``ulp(x)^2 / 12`` of rounding to nearest, for every stored number.

    Parameters
    ----------
    stored
        Array in its stored format: float64, float32, float16 or bfloat16 (ml_dtypes); other
        formats count as float32, in which they are handed over. Subnormal spacing is respected.
    """
    return rounded(stored).variance


def rounded(stored: NDArray[Any], offset: float = 0.0) -> Noisy:
    """Stored numbers (plus an offset) with their :func:`rounding_variance`."""
    if stored.dtype.name not in _FORMATS:
        stored = stored.astype(np.float32)
    point, smallest = _FORMATS[stored.dtype.name]
    # In the order in which the numbers are stored: a transposed copy costs more than the rest.
    axes = np.argsort([-abs(stride) for stride in stored.strides], kind="stable")
    source = stored.transpose(axes)
    result = Noisy(np.empty(source.shape), np.empty(source.shape))
    shape = (-1,) if source.flags.c_contiguous else source.shape
    source, values, variances = (
        array.reshape(shape) for array in (source, result.value, result.variance)
    )
    bits, powers = values.view(np.uint64), variances.view(np.uint64)
    step = max(1, CHUNK * len(source) // max(1, source.size))
    # Squares leave the range of float64 at its ends: no spacing there, an infinite one above.
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, len(source), step):
            chunk = slice(start, start + step)
            values[chunk] = source[chunk]
            # Powers of two: the number without its sign and what is behind the point.
            np.bitwise_and(bits[chunk], _EXPONENT, out=powers[chunk])
            part = variances[chunk]
            np.maximum(part, 2.0**smallest, out=part)
            part *= 2.0**-point / 12**0.5
            part *= part
            if offset:
                values[chunk] += offset
    back = np.argsort(axes)
    return Noisy(result.value.transpose(back), result.variance.transpose(back))


def coarseness(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Largest variance of a stored number relative to its square, and that of tiny numbers."""
    point, smallest = _FORMATS.get(dtype.name, _FORMATS["float32"])
    relative = 4.0**-point / 12
    return relative, relative * 4.0**smallest


def least_power(dtype: np.dtype[Any]) -> float:
    """The power of two whose spacing all smaller numbers have."""
    return float(2.0 ** _FORMATS.get(dtype.name, _FORMATS["float32"])[1])


@dataclass
class Noisy:
    """Values and variances, both float64 of one shape."""

    value: Array
    variance: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.value.shape

    @classmethod
    def exact(cls, value: Array) -> Noisy:
        """Values without rounding."""
        return cls(value, np.zeros_like(value))

    def __add__(self, other: Noisy) -> Noisy:
        return Noisy(self.value + other.value, self.variance + other.variance)

    def times(self, factor: Noisy) -> Noisy:
        """Elementwise product with a factor that broadcasts (a gain along the last axis)."""
        return Noisy(
            self.value * factor.value,
            self.variance * factor.value**2 + self.value**2 * factor.variance,
        )

    def scaled(self, factor: Any) -> Noisy:
        """Elementwise product with exact numbers."""
        return Noisy(self.value * factor, self.variance * np.square(factor))

    def centred(self, axis: int) -> Noisy:
        """Less its mean along one axis."""
        count = self.shape[axis]
        if axis in (-1, len(self.shape) - 1):
            result = Noisy(self.value.copy(), self.variance.copy())
            result.fold(None, centred=True)
            return result
        own = (2 * np.finfo(np.float64).eps) ** 2 * np.square(self.value)
        spread = (self.variance + own) * (1 - 2 / count)
        spread += self.variance.mean(axis=axis, keepdims=True) / count
        return Noisy(self.value - self.value.mean(axis=axis, keepdims=True), spread)

    def dot(self, vector: Noisy) -> Noisy:
        """Contraction of the last axis with a vector."""
        squares = self.value**2
        # What cancels in the sum leaves the rounding of float64 itself behind.
        weight = np.square(vector.value)
        own = (SUM_ROUNDINGS * np.finfo(np.float64).eps) ** 2
        return Noisy(
            self.value @ vector.value,
            self.variance @ weight + squares @ (vector.variance + own * weight),
        )

    @property
    def is_faint(self) -> NDArray[np.bool_]:
        """Whether a row (last axis) is zero as far as its rounding tells."""
        return np.asarray(self.size <= FAINT**2 * self.variance.sum(axis=-1))

    @property
    def size(self) -> Array:
        """Squared norm of every row."""
        return np.asarray(np.vecdot(self.value, self.value))

    def fold(self, gain: Noisy | None, *, centred: bool, own: bool = True) -> None:
        """Multiply the rows by a gain and take off their mean, in place, a few at a time.

        ``own`` adds the rounding of float64 itself; beside that of shorter formats it is nothing.
        """
        width = self.shape[-1]
        squares = 1.0 if gain is None else np.square(gain.value)
        for value, variance in _in_pieces(self.value, self.variance):
            if gain is not None:
                variance *= squares
                passed = np.square(value)
                passed *= gain.variance
                variance += passed
                value *= gain.value
            if centred:
                mean = np.add.reduce(variance, axis=-1, keepdims=True) / width**2
                if own:
                    passed = np.square(value)
                    passed *= (2 * np.finfo(np.float64).eps) ** 2
                    variance += passed
                variance *= 1 - 2 / width
                variance += mean
                value -= np.add.reduce(value, axis=-1, keepdims=True) / width

    def turned(self, matrix: Array, axis: int) -> Noisy:
        """An exact matrix applied to one axis."""
        return Noisy(
            along_axis(matrix, self.value, axis), along_axis(matrix**2, self.variance, axis)
        )

    def take(self, index: Any, axis: int) -> Noisy:
        """Entries of one axis in another order."""
        return Noisy(np.take(self.value, index, axis), np.take(self.variance, index, axis))

    def chosen(self, index: NDArray[np.int64]) -> Noisy:
        """Some entries of the first axis, in the given order."""
        return self.part(index)

    def part(self, index: Any) -> Noisy:
        """Any indexing that NumPy understands."""
        return Noisy(self.value[index], self.variance[index])

    def reshaped(self, *shape: int) -> Noisy:
        """The same entries in another shape."""
        return Noisy(self.value.reshape(shape), self.variance.reshape(shape))


def _in_pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Windows on arrays of one shape, whole rows (last axis), that fit the cache together."""
    shape = arrays[0].shape
    if arrays[0].size <= 2 * CHUNK or len(shape) == 1:
        yield arrays
        return
    # Along the axis that is slowest in memory, the last one excepted.
    axis = max(range(len(shape) - 1), key=lambda i: (abs(arrays[0].strides[i]), -i))
    if shape[axis] == 1:
        axis = int(np.argmax(shape[:-1]))
    step = max(1, CHUNK * shape[axis] // arrays[0].size)
    for start in range(0, shape[axis], step):
        index = (*[slice(None)] * axis, slice(start, start + step))
        yield tuple(array[index] for array in arrays)


def along_axis(matrix: NDArray[T], array: NDArray[T], axis: int) -> NDArray[T]:
    """Multiply a matrix into one axis."""
    if axis in (-1, array.ndim - 1):
        return np.asarray(array @ matrix.T)
    return np.moveaxis(np.moveaxis(array, axis, -1) @ matrix.T, -1, axis)


def joined(parts: list[Noisy], axis: int) -> Noisy:
    """Arrays side by side."""
    return Noisy(
        np.concatenate([part.value for part in parts], axis),
        np.concatenate([part.variance for part in parts], axis),
    )


def whitened(first: list[Noisy], second: list[Noisy]) -> tuple[Array, Array]:
    """Features of two models side by side, every part in units of its rounding.

    Parts of shape ``(count, features)``; what is near in these units is near up to rounding.
    """
    sides: tuple[list[Array], list[Array]] = ([], [])
    for x, y in zip(first, second, strict=True):
        typical = float(np.sqrt(np.square(y.value).mean() + np.square(x.value).mean()))
        noise = float(np.sqrt(np.median(y.variance) + np.median(x.variance)))
        unit = max(noise, 1e-12 * typical) or 1.0
        for side, part in zip(sides, (x, y), strict=True):
            side.append(part.value / unit)
    return np.concatenate(sides[0], axis=1), np.concatenate(sides[1], axis=1)
