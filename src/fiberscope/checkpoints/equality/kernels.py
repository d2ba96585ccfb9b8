"""Loops over stored numbers, compiled by Numba: one pass where array operations need a dozen.

Numba is the optional extra ``fast``; see :mod:`~fiberscope.checkpoints.equality.loops`. Everything
here is also computed elsewhere with NumPy, element by element in float64, and that is what runs
without it; the two agree to a few roundings of float64 (variances in float32: of float32).

Rows are read in blocks, so that matrices stored by columns are read by whole cache lines. All
numbers are finite: a sum that may be reordered, and a maximum that ignores NaN, are safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
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


def digest(sources: Iterable[Path]) -> str:
    """A few digits that change with the contents of files."""
    found = sha256()
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


try:
    _VERSION = digest(Path(__file__).parent.glob("*kernels.py"))
except OSError:  # not on disk
    _VERSION = "0"


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile a function for one signature, now; kept on disk where there is a place for it."""

    def decorate(function: Function) -> Function:
        # Functions are kept by name, with those of other files that they call: Numba would go on
        # using them after a change of such a file alone.
        function.__qualname__ = f"{function.__name__}_{_VERSION}"
        options = {"nogil": True, "fastmath": {"reassoc", "contract", "nnan", "nsz"}}
        try:
            return njit(signature, cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder to keep it in
            return njit(signature, error_model="numpy", **options)(function)

    return decorate


@compiled(f"void({MATRIX}, u8[::1], u8[::1], u8, u8, u8, f4[:,::1])")
def gather(
    stored: Matrix,
    numbers: Places,
    columns: Places,
    width: int,
    start: int,
    count: int,
    rows: Single,
) -> None:
    """Some rows.

    ``numbers`` and ``columns`` tell which row and column of the matrix stand at every place; if one
    is empty, each keeps its own.
    """
    # Unsigned indices, which need no check whether they count from the end.
    flat, down, across = stored[0], np.uint64(stored[1]), np.uint64(stored[2])
    if across > np.uint64(1):
        for j in range(width):
            column = columns[j] if len(columns) else np.uint64(j)
            first = start * down + column * across
            if len(numbers):
                for k in range(count):
                    rows[k, j] = flat[column * across + numbers[start + np.uint64(k)] * down]
            else:
                for k in range(count):
                    rows[k, j] = flat[first + np.uint64(k) * down]
    else:
        for k in range(count):
            number = start + np.uint64(k)
            first = (numbers[number] if len(numbers) else number) * down
            if len(columns):
                for j in range(width):
                    rows[k, j] = flat[first + columns[j]]
            else:
                for j in range(width):
                    rows[k, j] = flat[first + np.uint64(j)]


@compiled("f4(f4)")
def power_of(number: Any) -> Any:
    """Power of two of a number: that without its sign and what is behind the point."""
    # Only what is visibly a NumPy scalar can be looked at as another type.
    return np.uint32(np.float32(number).view(np.uint32) & EXPONENT).view(np.float32)


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
    """What rows leave after a change of basis; as ``residuals``, in units of ``1 / unit``.

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
