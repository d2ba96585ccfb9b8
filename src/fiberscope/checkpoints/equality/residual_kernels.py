"""Compiled loops over two stored matrices: what their rows leave, in units of their rounding.

Values are subtracted in float64, since what is left is their last digit. What is allowed needs
three digits only, and is worked out in float32, of which twice as many fit into a register: in
units in which a typical number of the row before is allowed about one. A row that is too large or
too small for those is done in float64 and names the unit of the next ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fiberscope.checkpoints.equality.kernels import (
    BLOCK,
    GAIN,
    MATRIX,
    NOTHING,
    PADDING,
    PASSED,
    SHIFT,
    SHIFTED,
    SPACING,
    Array,
    Matrix,
    Places,
    Single,
    compiled,
    folded_row,
    gather,
    measured_row,
    power_of,
)
from fiberscope.checkpoints.equality.kernels import matrix as matrix

TALL = 96
"""Rows that are read at a time of matrices stored by columns: long runs are worth the room."""
ROOM = TALL << 10
"""Numbers that may be read at a time for that."""
FAINTEST, STRONGEST = 1e-30, 1e30
"""Squares between which float32 has all its digits, whatever is multiplied by a few thousand."""


@compiled("UniTuple(f8, 4)(f4[::1], f4[::1], f8[::1], f8[::1], f8[::1])")
def subtracted_row(
    one: Single, two: Single, gain: Array, other: Array, rest: Array
) -> tuple[float, float, float, float]:
    """Products of two rows with their gains, subtracted: sum and squared norm of both."""
    total = other_total = square = other_square = 0.0
    for j in range(len(rest)):
        x, y = np.float64(one[j]) * gain[j], np.float64(two[j]) * other[j]
        rest[j] = x - y
        total += x
        other_total += y
        square += x * x
        other_square += y * y
    return total, square, other_total, other_square


@compiled("UniTuple(f8, 2)(f4[::1], f4[::1], f4[:,::1], f4, f4, f4[::1])")
def noises_of_row(
    one: Single, two: Single, by: Single, least: Any, other_least: Any, noise: Single
) -> tuple[Any, Any]:
    """Variances of the products of two rows, added; and the sums of both.

    ``by`` holds the spacing and what is passed on, of one and then two; see :func:`folded_row`.
    """
    spread = other_spread = np.float32(0.0)
    for j in range(len(noise)):
        own, passed = max(power_of(one[j]), least) * by[0, j], one[j] * by[1, j]
        first = own * own + passed * passed
        own, passed = max(power_of(two[j]), other_least) * by[2, j], two[j] * by[3, j]
        second = own * own + passed * passed
        noise[j] = first + second
        spread += first
        other_spread += second
    return np.float64(spread), np.float64(other_spread)


@compiled("UniTuple(f8, 4)(f8[::1], f4[::1], f4[::1], f8, f8, f8, f8)")
def measured_near(
    rest: Array,
    noise: Single,
    squares: Single,
    mean: float,
    unit: float,
    base: float,
    least: float,
) -> tuple[float, float, float, float]:
    """:func:`measured_row` in float32 and units, of what is not fitted.

    Allowed is the noise, or ``least`` where that is more, and ``base``.
    """
    for j in range(len(rest)):
        squares[j] = np.float32((rest[j] - mean) * unit)
    more, low = np.float32(base), np.float32(least)
    total = likely = apart = np.float32(0.0)
    for j in range(len(rest)):
        square, own = squares[j] * squares[j], noise[j]
        inverse = np.float32(1.0) / (max(own, low) + more)
        ratio = square * inverse
        apart += square
        total += ratio
        likely += (own + more) * inverse
        squares[j] = ratio
    # Bits of positive numbers have their order, and a maximum of integers has no special cases.
    bits = squares.view(np.int32)
    top = np.int32(0)
    for j in range(len(bits)):
        top = max(top, bits[j])
    bits[0] = top
    return np.float64(total), np.float64(likely), np.float64(squares[0]), np.float64(apart)


@compiled("b1(f8[::1])")
def is_nothing(rest: Array) -> bool:
    """Whether all of a row is zero."""
    bits = rest.view(np.int64)
    seen = np.int64(0)
    for j in range(len(bits)):
        seen |= bits[j] << 1  # but for the sign
    return seen == 0


@compiled("UniTuple(f8, 4)(f8, f8, f8, f8, b1)")
def centred(
    total: float, size: float, spread: float, width: float, level: bool
) -> tuple[float, float, float, float]:
    """Mean, squared norm and summed variance of a row, which is to lose its mean if ``level``.

    Last, the variance that all its numbers gain by that.
    """
    if not level:
        return 0.0, size, spread, 0.0
    more = spread / (width * (width - 2.0))
    return total / width, max(size - total * total / width, 0.0), spread + width * more, more


@compiled("b1(f8[:,::1], f8[:,::1])")
def is_plain(one_by: Array, two_by: Array) -> bool:
    """Whether nothing is added to the numbers of either matrix."""
    for j in range(one_by.shape[1]):
        for by in (one_by, two_by):
            if by[SHIFT, j] != 0 or by[SHIFTED, j] != 0:
                return False
    return True


@compiled("f8(f8[:,::1], f8[:,::1], f8, f4[:,::1])")
def unit_for(one_by: Array, two_by: Array, typical: float, short: Single) -> float:
    """A unit for numbers of this variance, and what rounding is multiplied by in that unit.

    Zero if float32 has no room for them.
    """
    if not 1e-200 < typical < 1e200:
        return 0.0
    unit = 2.0 ** -np.round(np.log2(typical) / 2)
    top = 0.0
    for j in range(short.shape[1]):
        for number in (
            one_by[SPACING, j],
            one_by[PASSED, j],
            two_by[SPACING, j],
            two_by[PASSED, j],
        ):
            top = max(top, abs(number))
    if not top * unit < STRONGEST:
        return 0.0
    for j in range(short.shape[1]):
        short[0, j] = one_by[SPACING, j] * unit
        short[1, j] = one_by[PASSED, j] * unit
        short[2, j] = two_by[SPACING, j] * unit
        short[3, j] = two_by[PASSED, j] * unit
    return unit


@compiled(
    f"void({MATRIX}, {MATRIX}, u8[::1], u8[::1], u8[::1], u8[::1], f8[:,::1], f8[:,::1],"
    "f8[:,::1], f8[:,::1], f8[::1], f8, b1, b1, f8[:,::1])"
)
def residuals(
    one: Matrix,
    two: Matrix,
    one_numbers: Places,
    two_numbers: Places,
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
    one_numbers, two_numbers, one_columns, two_columns
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
    block = BLOCK
    if max(one[2], two[2]) > 1:
        block = max(BLOCK, min(TALL, ROOM // max(1, width)))
    a, b = (
        np.empty((block, width + PADDING), np.float32),
        np.empty((block, width + PADDING), np.float32),
    )
    bits = np.empty(width, np.uint32)
    value, other = np.empty(width), np.empty(width)
    variance, passed = np.empty(width), np.empty(width)
    noise, squares, short = (
        np.empty(width, np.float32),
        np.empty(width, np.float32),
        np.empty((4, width), np.float32),
    )
    length = width + 1 if joined else width
    least, other_least = np.float32(settings[1]), np.float32(settings[4])
    # Without a floor, a number may be told from its neighbours however small it is beside them.
    plain = factor > 0 and settings[0] == 0 and settings[3] == 0 and is_plain(one_by, two_by)
    unit = 0.0
    for start in range(0, count, block):
        some = min(block, count - start)
        gather(one, one_numbers, one_columns, width, start, some, a)
        gather(two, two_numbers, two_columns, width, start, some, b)
        for k in range(some):
            row, x, y = start + k, a[k, :width], b[k, :width]
            while True:
                near, scale = unit > 0, 1.0
                if near:
                    scale = unit * unit
                    total, size, other_total, other_size = subtracted_row(
                        x, y, one_by[GAIN], two_by[GAIN], value
                    )
                    spread, other_spread = noises_of_row(x, y, short, least, other_least, noise)
                else:
                    total, size, spread = folded_row(
                        x, bits, one_by, settings[0], settings[1], value, variance
                    )
                    other_total, other_size, other_spread = folded_row(
                        y, bits, two_by, settings[3], settings[4], other, passed
                    )
                    for j in range(width):
                        value[j] -= other[j]
                        variance[j] += passed[j]
                strongest = max(spread + other_spread, max(size, other_size) * scale)
                mean, size, spread, more = centred(total, size, spread, width, settings[2] > 0)
                other_mean, other_size, other_spread, other_more = centred(
                    other_total, other_size, other_spread, width, settings[5] > 0
                )
                mean, more = mean - other_mean, more + other_more
                size, other_size = size * scale, other_size * scale
                if joined:
                    size += one_last[0, row] ** 2 * scale
                    other_size += two_last[0, row] ** 2 * scale
                    spread += one_last[1, row] * scale
                    other_spread += two_last[1, row] * scale
                floor = factor * factor / length * max(size, other_size)
                typical = (spread + other_spread) / length
                if not near or (floor + more > FAINTEST and max(strongest, typical) < STRONGEST):
                    break
                unit = 0.0
            if near:
                if not rotated and total == other_total and mean == 0 and is_nothing(value):
                    most, likely, largest, apart = 0.0, float(width), 0.0, 0.0
                else:
                    most, likely, largest, apart = measured_near(
                        value,
                        noise,
                        squares,
                        mean,
                        unit,
                        floor + more,
                        typical - more if rotated else 0.0,
                    )
            else:
                most, likely, largest, apart = measured_row(
                    value, variance, mean, floor + more, typical - more, 0.0, rotated
                )
                if plain:
                    unit = unit_for(one_by, two_by, typical, short)
            if joined:
                rest = one_last[0, row] - two_last[0, row]
                own = (one_last[1, row] + two_last[1, row]) * scale
                allowed = (max(own, typical) if rotated else own) + floor + NOTHING
                ratio = rest * rest * scale / allowed
                most += ratio
                largest = max(largest, ratio)
                apart += rest * rest * scale
                likely += (own + floor + NOTHING) / allowed
            share = spread / size if size > 0 else 0.0
            if other_size > 0:
                share = max(share, other_spread / other_size)
            found[row, 0] = most
            found[row, 1] = likely
            found[row, 2] = largest
            found[row, 3] = apart / scale
            found[row, 4] = size / scale
            found[row, 5] = share
