"""Circuits of heads in one go, compiled: two factors of both models, their fit, and what is left.

The usual case of :mod:`~fiberscope.checkpoints.equality.circuits`: the plain factors explain the
circuit by least squares, and the bases are well-conditioned. A group in which one of these fails is
only marked, and goes the general way. One group at a time is read, fitted and measured, so that
everything stays in the cache, and no lock is held meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    measured_row,
    powers_of,
)

Side = tuple[Matrix, Places, Places, Array, Single, Array]
"""A stored matrix and the next five arguments of :func:`folded`."""

SIDE = f"Tuple(({MATRIX}, u8[::1], u8[::1], f8[:,::1], f4[:,::1], f8[::1]))"
ROUNDING = (16 * 2.0**-52) ** 2
"""Rounding of the algebra, relative to the mean square of a row."""
TINY = np.finfo(np.float64).tiny
FARTHEST = 1e8
"""Norms of a matrix and its inverse, multiplied, up to which the inverse is trusted."""


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
    ``by`` and the first three of ``settings`` are those of ``kernels.residuals``, and ``in_units``
    what of ``by`` variances are made of in units. Returns the least and the largest squared norm.
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


@compiled("UniTuple(f8, 2)(f8[:,::1])")
def squares_of(matrix: Array) -> tuple[float, float]:
    """Sum and largest of the squares."""
    total = largest = 0.0
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            square = matrix[i, j] * matrix[i, j]
            total += square
            largest = max(largest, square)
    return total, largest


@compiled("b1(f8[:,::1], f8[:,::1])")
def inverted(matrix: Array, inverse: Array) -> bool:
    """Enter the inverse of a matrix, if it can be trusted."""
    try:
        found = np.linalg.inv(matrix)
    except Exception:  # the only kind that compiled code can name
        return False
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            inverse[i, j] = found[i, j]
    # Written so that what is not a number is not trusted.
    return squares_of(matrix)[0] * squares_of(inverse)[0] < FARTHEST * FARTHEST


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


@compiled(
    "f8(f8[:,::1], f8[:,::1], f8[:,::1], f4[:,::1], f4[:,::1], f8[::1], f8[:,::1], f8[:,::1],"
    "f8[:,::1],"
    "f8, f8, f8, b1, f8[:,::1])"
)
def left_over(
    matrix: Array,
    first: Array,
    second: Array,
    own: Single,
    passed: Single,
    by: Array,
    sizes: Array,
    spreads: Array,
    noises: Array,
    unit: float,
    allowed: float,
    leverage: float,
    rotated: bool,
    found: Array,
) -> float:
    """Rows of ``second`` less ``matrix @ first``, measured as by ``kernels.residuals``.

    Parameters
    ----------
    own, passed
        Variances of both, in units.
    by
        Weights of columns in the score.
    sizes, spreads, noises
        Squared norms, summed variances (in units) and mean variances of the rows of the first and
        second, ``(2, r)``.
    found
        Receives what ``kernels.residuals`` finds, ``(r, 6)``.

    Returns
    -------
    float
        The score: weighed squared residuals in units of the row noise, summed.
    """
    count, width = second.shape
    moved = np.dot(matrix, first)
    weights = np.empty((count, count), np.float32)
    for i in range(count):
        for j in range(count):
            weights[i, j] = np.float32(matrix[i, j] * matrix[i, j])
    carried = np.dot(weights, passed)
    rest, variance = np.empty(width), np.empty(width)
    score = 0.0
    for i in range(count):
        x, y, p, q = second[i], moved[i], own[i], carried[i]
        other_spread = weighed = 0.0
        for j in range(width):
            residual = (x[j] - y[j]) * unit
            rest[j] = residual
            weighed += residual * residual * by[j]
            noise = np.float64(q[j])
            other_spread += noise
            variance[j] = np.float64(p[j]) + noise
        size, spread = sizes[1, i], spreads[1, i]
        floor = allowed * allowed / width * size * (unit * unit)
        most, likely, largest, apart = measured_row(
            rest, variance, 0.0, floor, (spread + other_spread) / width, leverage, rotated
        )
        noise = noises[1, i]
        for j in range(count):
            noise += matrix[i, j] * matrix[i, j] * noises[0, j]
        score += weighed / (unit * unit) / noise
        found[i, 0] = most
        found[i, 1] = likely
        found[i, 2] = largest
        found[i, 3] = apart / (unit * unit)
        found[i, 4] = size
        found[i, 5] = max(spread, other_spread) / (size * (unit * unit)) if size > 0 else 0.0
    return score


@compiled(
    f"void(UniTuple({SIDE}, 4), UniTuple(f8[:,::1], 4), i8[::1], f8[::1], f8[::1], b1,"
    "f8[:,:,::1], f8[:,:,::1], f8[:,:,:,::1], f8[::1], b1[::1])"
)
def circuits(
    sides: tuple[Side, Side, Side, Side],
    constants: tuple[Array, Array, Array, Array],
    inside: NDArray[np.int64],
    units: Array,
    limits: Array,
    rotated: bool,
    matrices: Array,
    duals: Array,
    found: Array,
    shares: Array,
    settled: NDArray[np.bool_],
) -> None:
    """Fit and measure one circuit of every group.

    Parameters
    ----------
    sides
        Plain factors of the first and second model, then the dual ones.
    constants
        One more entry for every row of each, and its variance in units, ``(2, n)``, or ``(2, 0)``.
    inside
        How many heads each factor has side by side.
    units
        Units of rounding of plain and dual factors, then typical squared norms of their rows.
    limits
        See :class:`~fiberscope.checkpoints.equality.settled_heads.Limits`.
    matrices, duals
        Receive the changes of basis ``M`` and ``M^-H``, ``(G, r, r)``.
    found
        Receives what is left of every row of both factors, ``(G, 2, r, 6)``.
    shares
        Receives the squared relative uncertainty of products, ``(G,)``.
    settled
        Receives which groups are done; what the others received means nothing.
    """
    leverage, enough, alike, rounding = limits[0], limits[1], limits[2], limits[3]
    farthest, strongest, least, largest = limits[4], limits[5], limits[6], limits[7]
    count, r = matrices.shape[0], matrices.shape[1]
    extra = (
        min(1, constants[0].shape[1]),
        min(1, constants[1].shape[1]),
        min(1, constants[2].shape[1]),
        min(1, constants[3].shape[1]),
    )
    lengths = np.empty(4, np.int64)
    for i in range(4):
        lengths[i] = (sides[i][3].shape[1] + extra[i]) * inside[i]
    plain, scaled = np.empty((2 * r, lengths[0])), np.empty((2 * r, lengths[0]))
    weights = np.empty(lengths[0]), np.empty(lengths[2])
    values = (
        plain[:r],
        plain[r:],
        np.empty((r, lengths[2])),
        np.empty((r, lengths[3])),
    )
    variances = (
        np.empty((r, lengths[0]), np.float32),
        np.empty((r, lengths[1]), np.float32),
        np.empty((r, lengths[2]), np.float32),
        np.empty((r, lengths[3]), np.float32),
    )
    sizes, spreads, noises = np.empty((4, r)), np.empty((4, r)), np.empty((4, r))
    inverse, written = np.empty((r, r)), np.empty((r, lengths[3]), np.float32)
    means, scores = np.empty((2, r)), np.empty(2)
    for group in range(count):
        settled[group] = False
        fits = True
        for i in range(4):
            stored, numbers, columns, by, in_units, settings = sides[i]
            step = lengths[i] // inside[i]
            for k in range(r):
                sizes[i, k] = spreads[i, k] = 0.0
            for head in range(inside[i]):
                first = (group * inside[i] + head) * r
                at = head * step
                low, high = folded(
                    stored,
                    numbers,
                    columns,
                    by,
                    in_units,
                    settings,
                    first,
                    at,
                    values[i],
                    variances[i],
                    sizes[i],
                    spreads[i],
                )
                fits &= low > least * units[2 + i // 2] and high < largest * units[2 + i // 2]
                if extra[i]:
                    for k in range(r):
                        constant, variance = constants[i][0, first + k], constants[i][1, first + k]
                        values[i][k, at + step - 1] = constant
                        variances[i][k, at + step - 1] = np.float32(variance)
                        sizes[i, k] += constant * constant
                        spreads[i, k] += variance
        weighed = column_weights(variances[0], variances[1], alike, weights[0])
        across = column_weights(variances[2], variances[3], alike, weights[1])
        if not fits or min(weighed, across) < 0:
            continue
        for i in range(4):
            unit, some = units[i // 2], weights[i // 2]
            if across if i > 1 else weighed:
                weigh(values[i], variances[i], some, means[0], means[1])
                row_noises(means[0], means[1], len(some), unit, noises[i])
            else:
                row_noises(sizes[i], spreads[i], len(some), unit, noises[i])
        matrix, dual = matrices[group], duals[group]
        # Products of the plain rows of both with those of the first.
        if weighed:
            for k in range(2 * r):
                for j in range(lengths[0]):
                    scaled[k, j] = plain[k, j] * weights[0][j]
            products = np.dot(scaled, plain[:r].T)
        else:
            products = np.dot(plain, plain[:r].T)
        gram = products[:r]
        if not inverted(gram, inverse):
            continue
        np.dot(products[r:], inverse, matrix)
        if not inverted(matrix, inverse):
            continue
        for i in range(r):
            for j in range(r):
                dual[i, j] = inverse[j, i]
        (one, reach), (two, other_reach) = squares_of(matrix), squares_of(dual)
        condition = np.sqrt(one * two)
        if not (condition < farthest and max(reach, other_reach) < strongest):
            continue
        allowed = rounding * max(condition, 1.0)
        for i in range(2):
            k = 2 * i
            scores[i] = left_over(
                dual if i else matrix,
                values[k],
                values[k + 1],
                variances[k + 1],
                variances[k],
                weights[i],
                sizes[k : k + 2],
                spreads[k : k + 2],
                noises[k : k + 2],
                units[i],
                allowed,
                leverage,
                rotated,
                found[group, i],
            )
        share = lengths[2] / (lengths[0] + lengths[2])
        total = max(scores[0] + scores[1], scores[0] / (1 - share), scores[1] / share)
        if not total <= enough:
            continue
        one = two = 0.0
        for k in range(r):
            one += sizes[1, k]
            two += sizes[3, k]
        bound = one * two
        # The first model's factor carried over is the second's, up to rounding.
        for k in range(r):
            for j in range(lengths[3]):
                written[k, j] = np.float32(values[3][k, j])
        squares = np.dot(written, written.T)
        if weighed:
            carried = np.dot(values[1], values[1].T)
        else:
            carried = np.dot(np.dot(matrix, gram), matrix.T)
        size = 0.0
        for i in range(r):
            for j in range(r):
                size += carried[i, j] * squares[i, j]
        if not size > 1e-4 * bound:
            continue
        spread = 0.0
        for k in range(2):
            one = two = 0.0
            for i in range(r):
                one += sizes[2 + k, i] * spreads[k, i]
                two += sizes[k, i] * spreads[2 + k, i]
            spread = max(spread, one / (units[0] * units[0]) + two / (units[1] * units[1]))
        shares[group] = spread / size
        settled[group] = True
