"""Circuits of heads in one go, compiled: two factors of both models, their fit, and what is left.

The usual case of :mod:`~fiberscope.checkpoints.equality.circuits`: the plain factors explain the
circuit by least squares, and the bases are well-conditioned. A group in which one of these fails is
only marked, and goes the general way. One group at a time is read, fitted and measured, so that
everything stays in the cache, and no lock is held meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.factor_kernels import (
    SIDE,
    Side,
    column_weights,
    enter_noises,
    read_factor,
)
from fiberscope.checkpoints.equality.kernels import Array, Single, compiled, measured_row

LIVE = 1e-4
"""Squared norm of a product, relative to its bound, from which float32 tells it."""
FARTHEST = 1e8
"""Norms of a matrix and its inverse, multiplied, up to which the inverse is trusted."""


@compiled("f8[:,::1](f8[:,::1], f8[:,::1])")
def product(one: Array, two: Array) -> Array:
    """``one @ two``."""
    return np.dot(one, two)


@compiled("f8[:,::1](f8[:,::1], f8[:,::1])")
def products_of_rows(one: Array, two: Array) -> Array:
    """``one @ two^T``."""
    return np.dot(one, two.T)


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
    # What is not a finite number, the inversion refuses itself.
    return squares_of(matrix)[0] * squares_of(inverse)[0] < FARTHEST * FARTHEST


@compiled(
    "f8(f8[:,::1], f8[:,::1], f8[:,::1], f4[:,::1], f4[:,::1], f8[::1], f8[:,::1], f8[:,::1],"
    "f8[:,::1], f8, f8, f8, b1, f8[:,::1])"
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
    """Rows of ``second`` less ``matrix @ first``, measured as by ``residual_kernels.residuals``.

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
        Receives what ``residual_kernels.residuals`` finds, ``(r, 6)``.

    Returns
    -------
    float
        The score: weighed squared residuals in units of the row noise, summed.
    """
    count, width = second.shape
    moved = product(matrix, first)
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


@compiled("b1(f8[:,::1], f8[:,::1], f8[::1], b1, f8[:,::1], f8[:,::1], f8[:,::1])")
def fit(
    plain: Array,
    scaled: Array,
    weights: Array,
    weighed: bool,
    matrix: Array,
    dual: Array,
    squares: Array,
) -> bool:
    """Least squares: the change from the first half of the rows of ``plain`` to the second.

    Enters it, its inverse transposed, and the products of the second half of the rows with each
    other, as they should be. Says whether all that can be trusted.
    """
    count, length = len(matrix), plain.shape[1]
    first, second = plain[:count], plain[count:]
    if weighed:
        for k in range(2 * count):
            for j in range(length):
                scaled[k, j] = plain[k, j] * weights[j]
        products = products_of_rows(scaled, first)
    else:
        products = products_of_rows(plain, first)
    inverse = np.empty((count, count))
    if not inverted(products[:count], inverse):
        return False
    found = product(products[count:], inverse)
    if not inverted(found, inverse):
        return False
    if weighed:
        carried = products_of_rows(second, second)
    else:
        # The first half carried over is the second, up to rounding.
        carried = products_of_rows(product(found, products[:count]), found)
    for i in range(count):
        for j in range(count):
            matrix[i, j] = found[i, j]
            dual[i, j] = inverse[j, i]
            squares[i, j] = carried[i, j]
    return True


@compiled("f8(f8[:,::1], f8[:,::1], f4[:,::1])")
def product_size(squares: Array, values: Array, short: Single) -> float:
    """Squared norm of a product: of one factor the products of rows are given."""
    for k in range(values.shape[0]):
        for j in range(values.shape[1]):
            short[k, j] = np.float32(values[k, j])
    others = np.dot(short, short.T)
    size = 0.0
    for i in range(len(squares)):
        for j in range(len(squares)):
            size += squares[i, j] * others[i, j]
    return size


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
        How many heads plain and dual factors have side by side.
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
    length = (sides[0][3].shape[1] + min(1, constants[0].shape[1])) * inside[0]
    across = (sides[2][3].shape[1] + min(1, constants[2].shape[1])) * inside[1]
    plain, scaled, weights = np.empty((2 * r, length)), np.empty((2 * r, length)), np.empty(length)
    first, second = plain[:r], plain[r:]
    noise, other_noise = np.empty((r, length), np.float32), np.empty((r, length), np.float32)
    back, moved_back, weights_back = np.empty((r, across)), np.empty((r, across)), np.empty(across)
    noise_back, other_back = np.empty((r, across), np.float32), np.empty((r, across), np.float32)
    short, squares = np.empty((r, across), np.float32), np.empty((r, r))
    sizes, spreads, noises = np.empty((4, r)), np.empty((4, r)), np.empty((4, r))
    for group in range(count):
        settled[group] = False
        low, high = read_factor(
            sides[0], constants[0], group, inside[0], first, noise, sizes[0], spreads[0]
        )
        fits = low > least * units[2] and high < largest * units[2]
        low, high = read_factor(
            sides[1], constants[1], group, inside[0], second, other_noise, sizes[1], spreads[1]
        )
        fits &= low > least * units[2] and high < largest * units[2]
        low, high = read_factor(
            sides[2], constants[2], group, inside[1], back, noise_back, sizes[2], spreads[2]
        )
        fits &= low > least * units[3] and high < largest * units[3]
        low, high = read_factor(
            sides[3], constants[3], group, inside[1], moved_back, other_back, sizes[3], spreads[3]
        )
        fits &= low > least * units[3] and high < largest * units[3]
        weighed = column_weights(noise, other_noise, alike, weights)
        weighed_back = column_weights(noise_back, other_back, alike, weights_back)
        if not fits or min(weighed, weighed_back) < 0:
            continue
        enter_noises(first, noise, weights, weighed > 0, units[0], sizes[0], spreads[0], noises[0])
        enter_noises(
            second, other_noise, weights, weighed > 0, units[0], sizes[1], spreads[1], noises[1]
        )
        enter_noises(
            back,
            noise_back,
            weights_back,
            weighed_back > 0,
            units[1],
            sizes[2],
            spreads[2],
            noises[2],
        )
        enter_noises(
            moved_back,
            other_back,
            weights_back,
            weighed_back > 0,
            units[1],
            sizes[3],
            spreads[3],
            noises[3],
        )
        matrix, dual = matrices[group], duals[group]
        if not fit(plain, scaled, weights, weighed > 0, matrix, dual, squares):
            continue
        (one, reach), (two, other_reach) = squares_of(matrix), squares_of(dual)
        condition = np.sqrt(one * two)
        if not (condition < farthest and max(reach, other_reach) < strongest):
            continue
        allowed = rounding * max(condition, 1.0)
        score = left_over(
            matrix,
            first,
            second,
            other_noise,
            noise,
            weights,
            sizes[:2],
            spreads[:2],
            noises[:2],
            units[0],
            allowed,
            leverage,
            rotated,
            found[group, 0],
        )
        score_back = left_over(
            dual,
            back,
            moved_back,
            other_back,
            noise_back,
            weights_back,
            sizes[2:],
            spreads[2:],
            noises[2:],
            units[1],
            allowed,
            leverage,
            rotated,
            found[group, 1],
        )
        share = across / (length + across)
        total = max(score + score_back, score / (1 - share), score_back / share)
        if not total <= enough:
            continue
        size = product_size(squares, moved_back, short)
        if not size > LIVE * sizes[1].sum() * sizes[3].sum():
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
