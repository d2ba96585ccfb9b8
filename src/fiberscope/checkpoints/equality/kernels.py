"""Loops over stored numbers, compiled by Numba: one pass where array operations need a dozen.

Numba is the optional extra ``fast``; see :mod:`~fiberscope.checkpoints.equality.loops`. Everything
here is also computed elsewhere with NumPy, element by element in float64, and that is what runs
without it; the two agree to a few roundings of float64 (variances in float32: of float32).

Rows are read in blocks, so that matrices stored by columns are read by whole cache lines. All
numbers are finite: a sum that may be reordered, and a maximum that ignores NaN, are safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Bits = NDArray[np.uint32]
Places = NDArray[np.uint64]
Function = TypeVar("Function", bound=Callable[..., Any])
Matrix = tuple[NDArray[np.float32], int, int]
"""Numbers, and how far apart rows and columns are in them."""

MATRIX = "Tuple((Array(float32, 1, 'C', True), i8, i8))"
"""The type of a :data:`Matrix`, which is not written to."""
BLOCK = 32
"""Rows that are read at a time: their entries of one column are two whole cache lines."""
LONG = 256
"""Numbers of a column that are worked on at a time."""
PADDING = 16
"""Numbers between rows that are read, so that the rows do not share few places of the cache."""
EXPONENT = np.uint32(0x7F80_0000)
NOTHING = 1e-290
"""What is allowed where nothing is."""
GAIN, SPACING, PASSED, SHIFT, SHIFTED = range(5)
"""Rows of what multiplies columns; see :func:`folded_row`."""


def matrix(stored: NDArray[Any]) -> Matrix:
    """A matrix as the loops read it, uncopied where its format and strides allow."""
    array = np.asarray(stored, dtype=np.float32)
    if any(stride < 0 or stride % 4 for stride in array.strides):
        array = np.ascontiguousarray(array)
    rows, columns = (stride // 4 for stride in array.strides)
    span = 1 + (array.shape[0] - 1) * rows + (array.shape[1] - 1) * columns if array.size else 0
    return as_strided(array, (span,), (4,), writeable=False), rows, columns


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile a function for one signature, now; kept on disk where there is a place for it."""

    def decorate(function: Function) -> Function:
        options = {"nogil": True, "fastmath": {"reassoc", "contract", "nnan", "nsz"}}
        try:
            return njit(signature, cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder to keep it in
            return njit(signature, error_model="numpy", **options)(function)

    return decorate


@compiled(f"void({MATRIX}, u8[::1], u8, u8, u8, f4[:,::1])")
def gather(
    stored: Matrix, columns: Places, width: int, start: int, count: int, rows: Single
) -> None:
    """Some rows.

    ``columns`` tells which column stands at every place; if it is empty, each keeps its own.
    """
    # Unsigned indices, which need no check whether they count from the end.
    flat, down, across = stored[0], np.uint64(stored[1]), np.uint64(stored[2])
    if across > np.uint64(1):
        for j in range(width):
            column = columns[j] if len(columns) else np.uint64(j)
            first = start * down + column * across
            for k in range(count):
                rows[k, j] = flat[first + np.uint64(k) * down]
    else:
        for k in range(count):
            first = (start + np.uint64(k)) * down
            if len(columns):
                for j in range(width):
                    rows[k, j] = flat[first + columns[j]]
            else:
                for j in range(width):
                    rows[k, j] = flat[first + np.uint64(j)]


@compiled("void(f4[::1], u4[::1])")
def powers_of(row: Single, powers: Bits) -> None:
    """Powers of two of the numbers of a row, as bits."""
    bits = row.view(np.uint32)
    for j in range(len(row)):
        powers[j] = bits[j] & EXPONENT


@compiled("UniTuple(f8, 3)(f4[::1], u4[::1], f8[:,::1], f8, f8, f8[::1], f8[::1])")
def folded_row(
    stored: Single,
    bits: Bits,
    by: Array,
    offset: float,
    least: float,
    value: Array,
    variance: Array,
) -> tuple[float, float, float]:
    """One row folded: its sum, squared norm and summed variance.

    The value of a stored number x is ``(x + offset + shift) * gain``; its variance
    ``(power * spacing)^2 + (x * passed)^2 + shifted``. The bits are used up.
    """
    powers_of(stored, bits)
    powers = bits.view(np.float32)
    total = square = spread = 0.0
    for j in range(len(stored)):
        x = np.float64(stored[j])
        folded = (x + offset + by[SHIFT, j]) * by[GAIN, j]
        own = max(np.float64(powers[j]), least) * by[SPACING, j]
        passed = x * by[PASSED, j]
        noise = own * own + passed * passed + by[SHIFTED, j]
        value[j] = folded
        variance[j] = noise
        total += folded
        square += folded * folded
        spread += noise
    return total, square, spread


@compiled("UniTuple(f8, 4)(f8[::1], f8[::1], f8, f8, f8, f8, b1)")
def measured_row(
    residual: Array,
    variance: Array,
    mean: float,
    base: float,
    row: float,
    leverage: float,
    rotated: bool,
) -> tuple[float, float, float, float]:
    """Squared residuals of a row (which are used up) against what is allowed.

    Returns their sum in units of what is allowed, its expectation, the largest, and their sum as
    they are. A variance is allowed, or that of the ``row`` where it is more and ``rotated``; and
    ``base``, and what a fit passes on. Where nothing is allowed, only zero is.
    """
    more, scale = base + leverage * row + NOTHING, 1 - leverage / 2
    least, own = row if rotated else 0.0, base + NOTHING
    total = likely = apart = 0.0
    for j in range(len(residual)):
        rest = residual[j] - mean
        square = rest * rest
        noise = variance[j]
        inverse = 1 / ((noise if noise > least else least) + more)
        ratio = square * inverse
        apart += square
        total += ratio
        likely += (noise * scale + own) * inverse
        residual[j] = ratio
    # Bits of positive numbers have their order, and a maximum of integers has no special cases.
    bits = residual.view(np.int64)
    top = np.int64(0)
    for j in range(len(bits)):
        top = max(top, bits[j])
    bits[0] = top
    return total, likely, residual[0], apart


@compiled(
    f"void({MATRIX}, {MATRIX}, u8[::1], u8[::1], f8[:,::1], f8[:,::1], f8[:,::1], f8[:,::1],"
    "f8[::1], f8, b1, b1, f8[:,::1])"
)
def residuals(
    one: Matrix,
    two: Matrix,
    one_columns: Places,
    two_columns: Places,
    one_by: Array,
    two_by: Array,
    one_last: Array,
    two_last: Array,
    settings: Array,
    factor: float,
    joined: bool,
    rotated: bool,
    found: Array,
) -> None:
    """What rows of two matrices leave, row by row.

    Parameters
    ----------
    one, two
        Stored matrices, ``(n, d)``.
    one_columns, two_columns
        See :func:`gather`.
    one_by, two_by
        What multiplies columns, ``(5, d)``; see :func:`folded_row`.
    one_last, two_last
        One more entry of every row and its variance, ``(2, n)``, if ``joined``.
    settings
        Offset, least power of two, and whether rows lose their means, for one and then two.
    factor
        Rounding of float64 that is allowed, relative to a row.
    rotated
        Whether all numbers of a row are allowed its mean variance.
    found
        Receives, for every row, sum, expectation and largest of the squared residuals in units of
        what is allowed, their sum, the squared norm of one, and the larger squared relative
        rounding, ``(n, 6)``.
    """
    count, width = found.shape[0], one_by.shape[1]
    a, b = (
        np.empty((BLOCK, width + PADDING), np.float32),
        np.empty((BLOCK, width + PADDING), np.float32),
    )
    bits = np.empty(width, np.uint32)
    value, other = np.empty(width), np.empty(width)
    variance, passed = np.empty(width), np.empty(width)
    length = width + 1 if joined else width
    for start in range(0, count, BLOCK):
        some = min(BLOCK, count - start)
        gather(one, one_columns, width, start, some, a)
        gather(two, two_columns, width, start, some, b)
        for k in range(some):
            total, size, spread = folded_row(
                a[k, :width], bits, one_by, settings[0], settings[1], value, variance
            )
            other_total, other_size, other_spread = folded_row(
                b[k, :width], bits, two_by, settings[3], settings[4], other, passed
            )
            mean = more = 0.0
            if settings[2] > 0:
                mean += total / width
                size = max(size - total * total / width, 0.0)
                added = spread / (width * (width - 2.0))
                spread += width * added
                more += added
            if settings[5] > 0:
                mean -= other_total / width
                other_size = max(other_size - other_total * other_total / width, 0.0)
                added = other_spread / (width * (width - 2.0))
                other_spread += width * added
                more += added
            for j in range(width):
                value[j] -= other[j]
                variance[j] += passed[j]
            row = start + k
            if joined:
                size += one_last[0, row] ** 2
                other_size += two_last[0, row] ** 2
                spread += one_last[1, row]
                other_spread += two_last[1, row]
            floor = factor * factor / length * max(size, other_size)
            typical = (spread + other_spread) / length
            most, likely, largest, apart = measured_row(
                value, variance, mean, floor + more, typical - more, 0.0, rotated
            )
            if joined:
                rest = one_last[0, row] - two_last[0, row]
                noise = one_last[1, row] + two_last[1, row]
                allowed = (max(noise, typical) if rotated else noise) + floor + NOTHING
                ratio = rest * rest / allowed
                most += ratio
                largest = max(largest, ratio)
                apart += rest * rest
                likely += (noise + floor + NOTHING) / allowed
            share = spread / size if size > 0 else 0.0
            if other_size > 0:
                share = max(share, other_spread / other_size)
            found[row, 0] = most
            found[row, 1] = likely
            found[row, 2] = largest
            found[row, 3] = apart
            found[row, 4] = size
            found[row, 5] = share


@compiled(f"void({MATRIX}, u8[::1], f8[:,::1], f8[::1], f8, f8[:,::1], f4[:,::1], f8[::1])")
def folded(
    stored: Matrix,
    columns: Places,
    by: Array,
    settings: Array,
    unit: float,
    values: Array,
    variances: Single,
    sizes: Array,
) -> None:
    """Folded rows with their squared norms; variances times ``unit^2`` in float32.

    ``by`` and the first three of ``settings`` are those of :func:`residuals`.
    """
    count, width = len(sizes), by.shape[1]
    rows, bits = np.empty((BLOCK, width + PADDING), np.float32), np.empty(width, np.uint32)
    variance = np.empty(width)
    for start in range(0, count, BLOCK):
        some = min(BLOCK, count - start)
        gather(stored, columns, width, start, some, rows)
        for k in range(some):
            value = values[start + k, :width]
            total, size, spread = folded_row(
                rows[k, :width], bits, by, settings[0], settings[1], value, variance
            )
            mean = more = 0.0
            if settings[2] > 0:
                mean = total / width
                size = max(size - total * mean, 0.0)
                more = spread / (width * (width - 2.0))
            for j in range(width):
                value[j] -= mean
                variances[start + k, j] = np.float32((variance[j] + more) * (unit * unit))
            sizes[start + k] = size


@compiled(f"void({MATRIX}, f8[::1], f8[::1], f8[::1], f8, f8[:,::1])")
def dotted_columns(
    stored: Matrix,
    vector: Array,
    rounding: Array,
    passed: Array,
    least: float,
    found: Array,
) -> None:
    """:func:`dotted` of a matrix that is stored column by column."""
    count, width = found.shape[1], len(vector)
    flat, across = stored[0], np.uint64(stored[2])
    x, bits = np.empty(LONG, np.float32), np.empty(LONG, np.uint32)
    p = bits.view(np.float32)
    found[...] = 0.0
    for start in range(0, count, LONG):
        some = min(LONG, count - start)
        value, variance = found[0, start : start + some], found[1, start : start + some]
        for j in range(width):
            first = np.uint64(j) * across + np.uint64(start)
            for k in range(some):
                x[k] = flat[first + np.uint64(k)]
            powers_of(x, bits)
            factor, own, other = vector[j], rounding[j], passed[j]
            for k in range(some):
                number, power = np.float64(x[k]), max(np.float64(p[k]), least)
                value[k] += number * factor
                variance[k] += power * power * own + number * number * other


@compiled(f"void({MATRIX}, f8[::1], f8[::1], f8[::1], f8, f8[:,::1])")
def dotted(
    stored: Matrix, vector: Array, rounding: Array, passed: Array, least: float, found: Array
) -> None:
    """Contractions of all rows: of numbers with ``vector``, and for their variances.

    The second is the sum of squared powers of two times ``rounding`` and squared numbers times
    ``passed``; ``found`` has shape ``(2, n)``.
    """
    if stored[1] == 1 and stored[2] > 1:
        dotted_columns(stored, vector, rounding, passed, least, found)
        return
    count, width = found.shape[1], len(vector)
    columns = np.empty(0, np.uint64)
    rows, bits = np.empty((BLOCK, width + PADDING), np.float32), np.empty(width, np.uint32)
    p = bits.view(np.float32)
    for start in range(0, count, BLOCK):
        some = min(BLOCK, count - start)
        gather(stored, columns, width, start, some, rows)
        for k in range(some):
            value = variance = 0.0
            x = rows[k, :width]
            powers_of(x, bits)
            for j in range(width):
                number, own = np.float64(x[j]), max(np.float64(p[j]), least)
                value += number * vector[j]
                variance += own * own * rounding[j] + number * number * passed[j]
            found[0, start + k] = value
            found[1, start + k] = variance


@compiled(f"void({MATRIX}, f8, u8, f8[:,::1])")
def added(stored: Matrix, least: float, count: int, found: Array) -> None:
    """Sums over all rows, of numbers and of their squared powers of two, ``(2, d)``."""
    width = found.shape[1]
    columns = np.empty(0, np.uint64)
    rows, bits = np.empty((BLOCK, width + PADDING), np.float32), np.empty(width, np.uint32)
    value, variance, p = found[0], found[1], bits.view(np.float32)
    for start in range(0, count, BLOCK):
        some = min(BLOCK, count - start)
        gather(stored, columns, width, start, some, rows)
        for k in range(some):
            x = rows[k, :width]
            powers_of(x, bits)
            for j in range(width):
                value[j] += np.float64(x[j])
            for j in range(width):
                own = max(np.float64(p[j]), least)
                variance[j] += own * own


@compiled("void(f8[:,::1], f4[:,::1], f4[:,::1], f8[:,::1], f8[::1], f8, f8, b1, f8[:,::1])")
def fitted(
    residual: Array,
    own: Single,
    passed: Single,
    sizes: Array,
    allowed: Array,
    unit: float,
    leverage: float,
    rotated: bool,
    found: Array,
) -> None:
    """What rows leave after a change of basis; as :func:`residuals`, in units of ``1 / unit``.

    Parameters
    ----------
    residual
        Shape ``(n, d)``.
    own, passed
        Variances of what was found and of what was carried, ``(n, d)``, float32, in units.
    sizes
        Squared norms of both, ``(2, n)``.
    allowed
        Rounding of float64 that is allowed, relative to a row, ``(n,)``.
    leverage
        Share of a row's rounding that the fit passes on.
    """
    count, width = residual.shape
    rest, variance = np.empty(width), np.empty(width)
    for row in range(count):
        spread = other_spread = 0.0
        x, y, z = residual[row], own[row], passed[row]
        for j in range(width):
            first, second = np.float64(y[j]), np.float64(z[j])
            spread += first
            other_spread += second
            rest[j] = x[j] * unit
            variance[j] = first + second
        size = max(sizes[0, row], sizes[1, row]) * (unit * unit)
        floor = allowed[row] * allowed[row] / width * size
        typical = (spread + other_spread) / width
        most, likely, largest, apart = measured_row(
            rest, variance, 0.0, floor, typical, leverage, rotated
        )
        share = spread / sizes[0, row] if sizes[0, row] > 0 else 0.0
        if sizes[1, row] > 0:
            share = max(share, other_spread / sizes[1, row])
        found[row, 0] = most
        found[row, 1] = likely
        found[row, 2] = largest
        found[row, 3] = apart
        found[row, 4] = sizes[0, row]
        found[row, 5] = share
