"""Factors of heads, read and weighed by compiled loops, one group at a time."""

from __future__ import annotations

import numpy as np

from fiberscope.checkpoints.equality.kernels import (
    BLOCK,
    GAIN,
    MATRIX,
    PADDING,
    PASSED,
    SHIFT,
    SHIFTED,
    SPACING,
    Array,
    Bits,
    Matrix,
    Places,
    Single,
    compiled,
    gather,
    powers_of,
)

Side = tuple[Matrix, Places, Places, Array, Single, Array]
"""A stored matrix and the next five arguments of :func:`folded`."""

SIDE = f"Tuple(({MATRIX}, u8[::1], u8[::1], f8[:,::1], f4[:,::1], f8[::1]))"
ROUNDING = (16 * 2.0**-52) ** 2
"""Rounding of the algebra, relative to the mean square of a row."""
TINY = np.finfo(np.float64).tiny


@compiled("UniTuple(f8, 2)(f4[::1], f8[:,::1], f8, f8[::1])")
def row_values(stored: Single, by: Array, offset: float, value: Array) -> tuple[float, float]:
    """Values of a row as by ``kernels.folded_row``: their sum and squared norm."""
    total = size = 0.0
    for j in range(len(stored)):
        folded = (np.float64(stored[j]) + offset + by[SHIFT, j]) * by[GAIN, j]
        value[j] = folded
        total += folded
        size += folded * folded
    return total, size


@compiled("f8(f4[::1], u4[::1], f4[:,::1], f4, f4[::1])")
def row_variances(
    stored: Single, bits: Bits, by: Single, least: np.float32, variance: Single
) -> float:
    """Variances of a row as by ``kernels.folded_row``, but in float32: their sum."""
    powers_of(stored, bits)
    powers = bits.view(np.float32)
    spread = np.float32(0.0)
    for j in range(len(stored)):
        own = max(powers[j], least) * by[SPACING, j]
        passed = stored[j] * by[PASSED, j]
        noise = own * own + passed * passed + by[SHIFTED, j]
        variance[j] = noise
        spread += noise
    return np.float64(spread)


@compiled(
    f"UniTuple(f8, 2)({MATRIX}, u8[::1], u8[::1], f8[:,::1], f4[:,::1], f8[::1], u8, u8, f8[:,::1],"
    "f4[:,::1], f8[::1], f8[::1])"
)
def folded(
    stored: Matrix,
    numbers: Places,
    columns: Places,
    by: Array,
    in_units: Single,
    settings: Array,
    first: int,
    at: int,
    values: Array,
    variances: Single,
    sizes: Array,
    spreads: Array,
) -> tuple[float, float]:
    """Folded rows from the ``first`` on, and their variances in units in float32.

    They are entered from column ``at`` on; squared norms and summed variances are added up.
    ``by`` and the first three of ``settings`` are those of ``residual_kernels.residuals``, and
    ``in_units`` what of ``by`` variances are made of in units. Returns the least and the largest
    squared norm.
    """
    count, width = len(sizes), by.shape[1]
    rows, bits = np.empty((BLOCK, width + PADDING), np.float32), np.empty(width, np.uint32)
    power = np.float32(settings[1])
    least, largest = np.inf, 0.0
    for start in range(0, count, BLOCK):
        some = min(BLOCK, count - start)
        gather(stored, numbers, columns, width, first + start, some, rows)
        for k in range(some):
            row = start + k
            value, variance = values[row, at : at + width], variances[row, at : at + width]
            total, size = row_values(rows[k, :width], by, settings[0], value)
            spread = row_variances(rows[k, :width], bits, in_units, power, variance)
            if settings[2] > 0:
                mean, more = total / width, spread / (width * (width - 2.0))
                size = max(size - total * mean, 0.0)
                spread += width * more
                added = np.float32(more)
                for j in range(width):
                    value[j] -= mean
                    variance[j] += added
            sizes[row] += size
            spreads[row] += spread
            least, largest = min(least, size), max(largest, size)
    return least, largest


@compiled(f"UniTuple(f8, 2)({SIDE}, f8[:,::1], i8, i8, f8[:,::1], f4[:,::1], f8[::1], f8[::1])")
def read_factor(
    side: Side,
    constants: Array,
    group: int,
    inside: int,
    values: Array,
    variances: Single,
    sizes: Array,
    spreads: Array,
) -> tuple[float, float]:
    """Enter the factor of one group, its heads side by side; see :func:`folded`."""
    stored, numbers, columns, by, in_units, settings = side
    count, step = len(sizes), values.shape[1] // inside
    least, largest = np.inf, 0.0
    sizes[:] = 0.0
    spreads[:] = 0.0
    for head in range(inside):
        first, at = (group * inside + head) * count, head * step
        low, high = folded(
            stored,
            numbers,
            columns,
            by,
            in_units,
            settings,
            first,
            at,
            values,
            variances,
            sizes,
            spreads,
        )
        least, largest = min(least, low), max(largest, high)
        if constants.shape[1]:
            for k in range(count):
                constant, variance = constants[0, first + k], constants[1, first + k]
                values[k, at + step - 1] = constant
                variances[k, at + step - 1] = np.float32(variance)
                sizes[k] += constant * constant
                spreads[k] += variance
    return least, largest


@compiled("i8(f4[:,::1], f4[:,::1], f8, f8[::1])")
def column_weights(one: Single, two: Single, alike: float, weights: Array) -> int:
    """Weights of the squares in a column, as by ``factors.weighed_columns``.

    Returns 0 where they are one for all, 1 where they are not, and -1 without any rounding.
    """
    count, width = one.shape
    share = np.empty(width, np.float32)
    weights[:] = 0.0
    for number in range(2):
        rows = two if number else one
        share[:] = np.float32(0.0)
        for k in range(count):
            row = rows[k]
            for j in range(width):
                share[j] += row[j]
        whole = 0.0
        for j in range(width):
            whole += share[j]
        if not whole > 0:
            return -1
        for j in range(width):
            weights[j] += share[j] * (width / whole)
    typical = inverse = 0.0
    least = np.inf
    for j in range(width):
        typical += weights[j] / width
        least = min(least, weights[j])
        inverse += 1 / weights[j] / width
    if least > 0 and typical * inverse < alike:
        weights[:] = 1.0
        return 0
    for j in range(width):
        weights[j] = typical / max(weights[j], 1e-12 * typical)
    return 1


@compiled("void(f8[:,::1], f4[:,::1], f8[::1], f8[::1], f8[::1])")
def weigh(values: Array, variances: Single, weights: Array, sizes: Array, spreads: Array) -> None:
    """Enter weighed squared norms and summed variances of rows."""
    for i in range(len(sizes)):
        size = spread = 0.0
        x, y = values[i], variances[i]
        for j in range(len(weights)):
            size += x[j] * x[j] * weights[j]
            spread += np.float64(y[j]) * weights[j]
        sizes[i], spreads[i] = size, spread


@compiled("void(f8[::1], f8[::1], i8, f8, f8[::1])")
def row_noises(sizes: Array, spreads: Array, length: int, unit: float, noise: Array) -> None:
    """Mean variances of rows, and at least what float64 sees; ``factors._smallest``."""
    largest = sizes.max() / length
    for i in range(len(sizes)):
        floor = max(sizes[i] / length, 1e-12 * largest) * ROUNDING
        noise[i] = max(spreads[i] / (length * unit * unit), floor, TINY)


@compiled("void(f8[:,::1], f4[:,::1], f8[::1], b1, f8, f8[::1], f8[::1], f8[::1])")
def enter_noises(
    values: Array,
    variances: Single,
    weights: Array,
    weighed: bool,
    unit: float,
    sizes: Array,
    spreads: Array,
    noise: Array,
) -> None:
    """:func:`row_noises` with the weights, if columns are ``weighed``."""
    if weighed:
        size, spread = np.empty(len(sizes)), np.empty(len(sizes))
        weigh(values, variances, weights, size, spread)
        row_noises(size, spread, len(weights), unit, noise)
    else:
        row_noises(sizes, spreads, len(weights), unit, noise)
