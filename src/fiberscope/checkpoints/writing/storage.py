"""Storage formats: rounding once to the nearest, and refusing what a format cannot hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.files import quoted
from fiberscope.errors import InputError

FORMATS: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype("<f2"),
}
"""The storage formats that can be asked for, by name."""

_CHUNK = 1 << 21
"""Entries rounded at a time (16 MB in float64), so that a tensor is never held a second time."""

_CACHED = 1 << 15
"""Entries rounded at a time where more than one pass is made over them."""


def rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round to the nearest number of a format, ties to even; overflow gives infinity.

    The values are rounded once: a cast from float64 to bfloat16 that passes through float32 would
    round twice and can end one unit away, so that step is rounded to odd (Boldo and Melquiond,
    Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd, 2008).

    Parameters
    ----------
    values
        Array of any floating-point format.
    dtype
        One of the values of `FORMATS`.

    Returns
    -------
    ndarray
        New contiguous array of the same shape and the given dtype.
    """
    values = np.asarray(values)
    result = np.empty(values.shape, dtype)
    if values.dtype == dtype:
        result[...] = values
        return result
    source = values.reshape(-1)
    target = result.reshape(-1)
    twice = dtype == FORMATS["bfloat16"] and values.dtype == np.float64
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, source.size, _CHUNK):
            part = source[start : start + _CHUNK]
            target[start : start + _CHUNK] = (_to_odd_float32(part) if twice else part).astype(
                dtype
            )
    return result


def round_into(target: NDArray[Any], values: NDArray[np.float64], offset: float = 0.0) -> None:
    """Write ``values - offset``, rounded as by `rounded`, into an array of a storage format.

    Both may have any layout in memory; a cache's worth is rounded at a time.
    """
    if not values.size:
        return
    axis = int(np.argmax(np.abs(values.strides)))
    source, into = np.moveaxis(values, axis, 0), np.moveaxis(target, axis, 0)
    step = max(1, _CACHED * len(source) // source.size)
    twice = target.dtype == FORMATS["bfloat16"]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, len(source), step):
            part = source[start : start + step]
            if offset:
                part = part - offset
            into[start : start + step] = _to_odd_float32(part) if twice else part


def _to_odd_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round float64 to float32 so that a second rounding gives what a single one would.

    Inexact results get an odd last bit: truncate towards zero, then set the last bit.
    """
    near = values.astype(np.float32)
    bits = near.view(np.uint32)
    back = near.astype(np.float64)
    inexact = (back != values) & np.isfinite(values)
    # One step towards zero where rounding went away from it; this also undoes an overflow.
    away = inexact & (np.abs(back) > np.abs(values))
    bits -= away.astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return near


def to_storage(
    values: NDArray[Any],
    dtype: np.dtype[Any],
    name: str,
    essential: Collection[int] | None = None,
) -> NDArray[Any]:
    """Round a tensor to its storage format, or refuse.

    Refused are: NaN and infinite values; values beyond the format's range; and loss of a whole
    vector to zero, where a matrix has a row or a column with a nonzero entry of which none is left,
    or a one-dimensional tensor lost all of its entries. Single entries that round to zero beside
    larger ones are ordinary rounding, except those that `essential` names.

    Parameters
    ----------
    values
        The tensor; axes after the first count as one.
    name
        What to call it in messages.
    essential
        Flat indices of entries that must not become zero (norm gains, whose zero would silence a
        feature).

    Raises
    ------
    InputError
        If it is refused; one sentence.
    """
    stored = values if values.dtype == dtype else rounded(values, dtype)
    label = quoted(name)
    word = dtype.name
    bad = values.size - _finite(values)
    if bad:
        raise InputError(
            f"tensor {label} would have {bad} NaN or infinite values, so it is not written; start "
            "from less extreme numbers, or move them less far"
        )
    if dtype.kind not in "fV" or values.dtype == dtype:
        return stored
    lost = values.size - _finite(stored)
    if lost:
        raise InputError(
            f"tensor {label} has {lost} values beyond the range of {word} (up to "
            f"{_largest(values):.1e}); choose a wider --dtype"
        )
    if values.size and (what := _silenced(values, stored, essential)):
        raise InputError(
            f"tensor {label} has {what} so small that all of it becomes zero in {word}; choose a "
            "wider --dtype"
        )
    return stored


def _finite(values: NDArray[Any]) -> int:
    flat = values.reshape(-1)
    step = 4 * _CACHED
    return sum(
        int(np.count_nonzero(np.isfinite(flat[start : start + step])))
        for start in range(0, flat.size, step)
    )


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values).max())


def _silenced(
    values: NDArray[Any], stored: NDArray[Any], essential: Collection[int] | None
) -> str | None:
    """Name what became zero as a whole, or None."""
    if essential:
        index = np.fromiter(essential, np.int64)
        before, after = values.reshape(-1)[index] != 0, stored.reshape(-1)[index] != 0
        if np.any(before & ~after):
            return "a norm gain"
    if values.ndim < 2:
        return "a vector" if np.any(values != 0) and not np.any(stored != 0) else None
    rows = len(values)
    before, after = values.reshape(rows, -1), stored.reshape(rows, -1)
    columns = np.zeros((2, before.shape[1]), dtype=bool)
    step = max(1, _CHUNK // max(1, before.shape[1]))
    for start in range(0, rows, step):
        alive = before[start : start + step] != 0
        left = after[start : start + step] != 0
        if np.any(alive.any(axis=1) & ~left.any(axis=1)):
            return "a row"
        columns[0] |= alive.any(axis=0)
        columns[1] |= left.any(axis=0)
    return "a column" if np.any(columns[0] & ~columns[1]) else None
