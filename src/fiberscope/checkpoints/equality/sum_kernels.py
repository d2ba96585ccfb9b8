"""Compiled sums over the rows or columns of one stored matrix.

Numbers of columns that are stored one after another are read by fours: what is added up for every
row is then loaded and kept once instead of four times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fiberscope.checkpoints.equality.kernels import MATRIX, Array, Matrix, compiled, power_of
from fiberscope.checkpoints.equality.kernels import matrix as matrix

LONG = 256
"""Numbers of a column that are worked on at a time."""


@compiled("f8(f4, f4, f8, f8)")
def noise_of(number: Any, least: Any, rounding: float, passed: float) -> Any:
    """Variance of a stored number times two factors: one for its rounding, one for itself."""
    power, value = np.float64(max(power_of(number), least)), np.float64(number)
    return power * power * rounding + value * value * passed


@compiled(f"void({MATRIX}, f8[::1], f8[::1], f8[::1], f8, f8[:,::1])")
def dotted_columns(
    stored: Matrix, vector: Array, rounding: Array, passed: Array, least: float, found: Array
) -> None:
    """:func:`dotted` of a matrix that is stored column by column."""
    count, width, low = found.shape[1], len(vector), np.float32(least)
    flat, across = stored[0], np.uint64(stored[2])
    found[...] = 0.0
    fours = width - width % 4
    for start in range(0, count, LONG):
        some = min(LONG, count - start)
        value, variance = found[0, start : start + some], found[1, start : start + some]
        for j in range(0, fours, 4):
            a = np.uint64(j) * across + np.uint64(start)
            b, c, d = a + across, a + across + across, a + across + across + across
            # Looked up before the loop, in which stores might change them for all that is known.
            va, vb, vc, vd = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
            ra, rb, rc, rd = rounding[j], rounding[j + 1], rounding[j + 2], rounding[j + 3]
            pa, pb, pc, pd = passed[j], passed[j + 1], passed[j + 2], passed[j + 3]
            for k in range(some):
                at = np.uint64(k)
                w, x, y, z = flat[a + at], flat[b + at], flat[c + at], flat[d + at]
                value[k] += w * va + x * vb + (y * vc + z * vd)
                noise = noise_of(w, low, ra, pa) + noise_of(x, low, rb, pb)
                variance[k] += noise + (noise_of(y, low, rc, pc) + noise_of(z, low, rd, pd))
        for j in range(fours, width):
            a = np.uint64(j) * across + np.uint64(start)
            va, ra, pa = vector[j], rounding[j], passed[j]
            for k in range(some):
                w = flat[a + np.uint64(k)]
                value[k] += w * va
                variance[k] += noise_of(w, low, ra, pa)


@compiled(f"void({MATRIX}, f8[::1], f8[::1], f8[::1], f8, f8[:,::1])")
def dotted_rows(
    stored: Matrix, vector: Array, rounding: Array, passed: Array, least: float, found: Array
) -> None:
    """:func:`dotted` of a matrix whose numbers of a row are next to each other."""
    low, flat = np.float32(least), stored[0]
    down, across = np.uint64(stored[1]), np.uint64(stored[2])
    for i in range(found.shape[1]):
        first = np.uint64(i) * down
        value = variance = 0.0
        for j in range(len(vector)):
            number = flat[first + np.uint64(j) * across]
            value += number * vector[j]
            variance += noise_of(number, low, rounding[j], passed[j])
        found[0, i] = value
        found[1, i] = variance


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
    else:
        dotted_rows(stored, vector, rounding, passed, least, found)


@compiled(f"void({MATRIX}, f8, u8, f8[:,::1])")
def added_columns(stored: Matrix, least: float, count: int, found: Array) -> None:
    """:func:`added` of a matrix that is stored column by column."""
    low, flat, across = np.float32(least), stored[0], np.uint64(stored[2])
    for j in range(found.shape[1]):
        first = np.uint64(j) * across
        value = variance = 0.0
        for k in range(count):
            number = flat[first + np.uint64(k)]
            value += np.float64(number)
            variance += noise_of(number, low, 1.0, 0.0)
        found[0, j] += value
        found[1, j] += variance


@compiled(f"void({MATRIX}, f8, u8, f8[:,::1])")
def added_rows(stored: Matrix, least: float, count: int, found: Array) -> None:
    """:func:`added` of a matrix whose numbers of a row are next to each other."""
    low, flat = np.float32(least), stored[0]
    down, across = np.uint64(stored[1]), np.uint64(stored[2])
    value, variance = found[0], found[1]
    fours = count - count % np.uint64(4)
    for start in range(np.uint64(0), fours, np.uint64(4)):
        a = start * down
        b, c, d = a + down, a + down + down, a + down + down + down
        for j in range(len(value)):
            at = np.uint64(j) * across
            w, x, y, z = flat[a + at], flat[b + at], flat[c + at], flat[d + at]
            value[j] += np.float64(w) + np.float64(x) + (np.float64(y) + np.float64(z))
            noise = noise_of(w, low, 1.0, 0.0) + noise_of(x, low, 1.0, 0.0)
            variance[j] += noise + (noise_of(y, low, 1.0, 0.0) + noise_of(z, low, 1.0, 0.0))
    for row in range(fours, count):
        for j in range(len(value)):
            number = flat[row * down + np.uint64(j) * across]
            value[j] += np.float64(number)
            variance[j] += noise_of(number, low, 1.0, 0.0)


@compiled(f"void({MATRIX}, f8, u8, f8[:,::1])")
def added(stored: Matrix, least: float, count: int, found: Array) -> None:
    """Sums over all rows, of numbers and of their squared powers of two, ``(2, d)``.

    They are added to what ``found`` holds.
    """
    if stored[1] == 1 and stored[2] > 1:
        added_columns(stored, least, count, found)
    else:
        added_rows(stored, least, count, found)
