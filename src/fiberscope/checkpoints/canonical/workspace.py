"""Tensors on their way from a checkpoint to its canonical form, a layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.inspection.roles import storage_epsilon
from fiberscope.checkpoints.writing import FORMATS, round_into, rounded
from fiberscope.errors import InputError
from fiberscope.parameters import View

Array = NDArray[np.float64]

SMALL = 1 << 16
"""Entries up to which a tensor is kept once read: norms and biases are asked for repeatedly."""
CACHED = 1 << 15
"""Entries of an array worked on at a time where several passes are made over it."""
ROUNDINGS = 8.0
"""Deviations of up to this many standard deviations of storage rounding count as none."""
SNAP = 2.0
"""A vector shorter than this many spacings of what it was computed from is zero: seven deviations
of their rounding."""
ARITHMETIC = 2.0**-44
"""Spacing that our own float64 arithmetic is taken to have: a thousand roundings of float64."""

FLOOR = 2.0**-48
"""Part of the numbers around it that float64 arithmetic leaves in a sum: 32 of its roundings."""


class Workspace:
    """Reads roles in float64, takes their new values, and hands out finished tensors.

    A tensor that nothing is written to keeps its stored bits.

    Parameters
    ----------
    architecture
        What the tensors are.
    load
        Tensor of the architecture -> array in its stored format.
    format_of
        Tensor of the architecture -> name of its stored format.
    target
        Format that everything will be written in; None where each tensor keeps its own.
    narrow
        Hand out tensors in the format they will be written in where rounding loses nothing that a
        later check asks for; otherwise, and always without it, what has changed comes in float64.
    label
        What errors call the model.
    """

    def __init__(
        self,
        architecture: Architecture,
        load: Callable[[str], NDArray[Any]],
        format_of: Callable[[str], str],
        target: str | None = None,
        *,
        narrow: bool = False,
        label: str = "model",
    ) -> None:
        self.label = label
        self.architecture, self.target, self.narrow = architecture, target, narrow
        self._load, self._format_of = load, format_of
        self._held: dict[str, NDArray[Any]] = {}
        self._written: dict[str, NDArray[Any]] = {}
        self._waiting: dict[str, dict[View, Array]] = {}
        self.moved: set[str] = set()

    def spacing(self, *views: View | None) -> float:
        """Relative spacing of the coarsest format among the views, at least our arithmetic's."""
        names = {view.tensor for view in views if view is not None}
        # Blocks of a quantised file are read, and written, as float32.
        formats = {self._format_of(name) for name in names}
        known = [name if name in FORMATS else "float32" for name in formats]
        return max([ARITHMETIC, *map(storage_epsilon, known)])

    def stored(self, name: str) -> NDArray[Any]:
        """One tensor as stored, checked to be finite; held until released."""
        if name not in self._held:
            array = self._load(name).reshape(self.architecture.tensors[name])
            if not _is_finite(array):
                raise InputError(
                    f"{self.label}: tensor {name!r} has NaN or infinite values; "
                    "use a checkpoint whose weights are finite"
                )
            self._held[name] = array
        return self._held[name]

    def read(self, view: View, order: NDArray[np.int64] | None = None, last: int = -1) -> Array:
        """A role as stored, in a new float64 array in the storage's order, offset included.

        Parameters
        ----------
        view
            The role.
        order
            Positions of the last axis in the order wanted.
        last
            Axis that becomes the last one.
        """
        window = view.window(self.stored(view.tensor))
        if last != -1:
            window = np.moveaxis(window, last, -1)
        values = np.empty_like(window, dtype=np.float64)
        for into, part in zip(tiles(values), _tiles_like(values, window, order), strict=True):
            into[...] = part
            if view.offset:
                into += view.offset
        return values

    def as_written(self, view: View) -> Array:
        """A role that keeps its values, as they will be rounded when it is written."""
        window = view.window(self.stored(view.tensor))
        if self.target is not None:
            window = rounded(window, FORMATS[self.target])
        return window.astype(np.float64)

    def rounded_as(self, view: View, values: Array) -> Array:
        """New values of a role as they will be rounded when they are written."""
        name = self.target or self._format_of(view.tensor)
        return rounded(values, FORMATS.get(name, FORMATS["float32"])).astype(np.float64)

    def write(self, view: View, values: Array) -> None:
        """Give a role new values; the array belongs to the workspace from then on."""
        name = view.tensor
        self.moved.add(name)
        waiting = self._waiting.setdefault(name, {})
        if name in self._written or view in waiting:
            self._settle(name)
            self._put(view, values)
        else:
            waiting[view] = values

    def _put(self, view: View, values: Array) -> None:
        name = view.tensor
        current = self._written[name] if name in self._written else self.stored(name)
        if name not in self._written or current.dtype != np.float64:
            if view.size == current.size:
                self._written[name] = np.empty(current.shape)
            else:
                self._written[name] = current.astype(np.float64)
        view.write(self._written, values)

    def _settle(self, name: str) -> None:
        """Put together what was written to one tensor."""
        for view, values in self._waiting.pop(name, {}).items():
            self._put(view, values)

    def replace(self, name: str, array: NDArray[Any]) -> None:
        """Give a whole tensor new values, in whatever format they are exact in."""
        self._waiting.pop(name, None)
        self._written[name] = array
        self.moved.add(name)

    def current(self, name: str) -> NDArray[Any]:
        """One tensor with what has been written to it."""
        self._settle(name)
        return self._written[name] if name in self._written else self.stored(name)

    def finish(self, name: str) -> None:
        """Nothing more will be written to a tensor: round it to its storage at once.

        What is rounded here has no value that is not finite and no row or column of zeros;
        everything else comes in float64, for whoever writes it to decide on.
        """
        waiting = self._waiting.get(name)
        if not self.narrow or not waiting or name in self._written:
            return
        shape = self.architecture.tensors[name]
        if len(shape) != 2 or sum(view.size for view in waiting) != prod(shape):
            return
        dtype = FORMATS.get(self.target or self._format_of(name), FORMATS["float32"])
        # Views that overlap would leave some of it unwritten.
        array = np.full(shape, np.nan, dtype) if len(waiting) > 1 else np.empty(shape, dtype)
        for view, values in waiting.items():
            round_into(view.window(array), values, view.offset)
        if not _is_whole(array):
            return
        del self._waiting[name]
        self._held.pop(name, None)
        self._written[name] = array

    def release(self, name: str) -> NDArray[Any]:
        """Hand out a finished tensor and let go of it."""
        array = self.current(name)
        self._held.pop(name, None)
        self._written.pop(name, None)
        return array

    def forget(self, name: str) -> None:
        """Let go of a large tensor that was only looked at."""
        if name in self._held and self._held[name].size > SMALL:
            del self._held[name]


def tiles(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The array in pieces that stay in the cache, along its slowest axis, that one first.

    Its last axis is the slowest one or whole in every piece: see `along_last`.
    """
    front, step = _pieces(array)
    for start in range(0, len(front), step):
        yield front[start : start + step]


def along_last(array: NDArray[Any], vector: Array) -> Iterator[Array]:
    """For each of the `tiles`, the part of a vector along the array's last axis, to broadcast."""
    front, step = _pieces(array)
    slow = _slowest(array) == array.ndim - 1
    for start in range(0, len(front), step):
        part = vector[start : start + step] if slow else vector
        yield part.reshape(-1, *[1] * (array.ndim - 1)) if slow else part


def along_rest(array: NDArray[Any], values: Array) -> Iterator[Array]:
    """For each of the `tiles`, the part of what has one value for every vector, to broadcast."""
    front, step = _pieces(array)
    axis = _slowest(array)
    if axis == array.ndim - 1:
        for _ in range(0, len(front), step):
            yield values
        return
    moved = np.moveaxis(values, axis, 0)
    for start in range(0, len(front), step):
        yield moved[start : start + step, ..., None]


def _slowest(array: NDArray[Any]) -> int:
    return int(np.argmax(np.abs(array.strides))) if array.ndim else 0


def _pieces(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    front = np.moveaxis(array, _slowest(array), 0)
    return front, max(1, CACHED * len(front) // max(1, array.size))


def _tiles_like(
    like: Array, window: NDArray[Any], order: NDArray[np.int64] | None
) -> Iterator[NDArray[Any]]:
    """What belongs in the `tiles` of an array of the same shape, the last axis reordered."""
    front, step = _pieces(like)
    axis = _slowest(like)
    moved = np.moveaxis(window, axis, 0)
    for start in range(0, len(front), step):
        if order is None:
            yield moved[start : start + step]
        elif axis == window.ndim - 1:
            yield moved[order[start : start + step]]
        else:
            yield np.take(moved[start : start + step], order, axis=-1)


def dot_last(array: Array, vectors: Array) -> Array:
    """Products of the last axis with some vectors: ``(..., n)`` and ``(k, n)`` to ``(k, ...)``."""
    if _slowest(array) != array.ndim - 1 or array.ndim == 1:
        return np.moveaxis(array @ vectors.T, -1, 0)
    front, step = _pieces(array)
    total = np.zeros((len(vectors), front[0].size))
    for start in range(0, len(front), step):
        part = front[start : start + step]
        total += vectors[:, start : start + step] @ part.reshape(len(part), -1)
    return total.reshape(len(vectors), *array.shape[:-1])


def dot_squares(array: Array, weights: Array) -> Array:
    """Products of the squares along the last axis with one vector: ``(..., n)`` to ``(...)``."""
    front, step = _pieces(array)
    axis = _slowest(array)
    if axis != array.ndim - 1:
        squares = np.concatenate([(part * part) @ weights for part in tiles(array)])
        return np.moveaxis(squares, 0, axis)
    total = np.zeros(front.shape[1:])
    for start in range(0, len(front), step):
        part = front[start : start + step]
        total += np.tensordot(weights[start : start + step], part * part, axes=1)
    return total


def taken(array: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """``array[order]``, along the storage where it is transposed."""
    if array.ndim == 2 and array.T.flags.c_contiguous:
        return np.take(array.T, order, axis=1).T
    return array[order]


def _is_finite(array: NDArray[Any]) -> bool:
    flat = array.reshape(-1)
    step = 1 << 17
    return all(np.isfinite(flat[start : start + step]).all() for start in range(0, flat.size, step))


def _is_whole(array: NDArray[Any]) -> bool:
    """Whether all entries are finite, and none of the rows and columns is zero."""
    columns = np.zeros(array.shape[1], dtype=bool)
    step = max(1, (1 << 17) // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        part = array[start : start + step]
        if not np.isfinite(part).all():
            return False
        alive = part != 0
        if not alive.any(axis=1).all():
            return False
        columns |= alive.any(axis=0)
    return bool(columns.all())


def without_mean(
    vectors: Array, means: Array, spacing: float, factors: Array | None = None
) -> None:
    """Subtract means along the last axis, in place; what is left of rounding only becomes zero.

    A vector that was zero before something was added along the ones vector would otherwise keep the
    rounding of the sum, and look alive.

    Parameters
    ----------
    vectors
        Shape ``(..., n)``.
    means
        Of the vectors (multiplied by the factors).
    factors
        What the entries are multiplied by first, shape ``(n,)``.
    """
    subtracted = along_rest(vectors, means)
    multiplied = None if factors is None else along_last(vectors, factors)
    for part, mean in zip(tiles(vectors), subtracted, strict=True):
        if multiplied is not None:
            part *= next(multiplied)
        part -= mean
    # A single entry shows that most vectors are more than that.
    size = (SNAP * spacing) ** 2 / (1.0 - (SNAP * spacing) ** 2) * vectors.shape[-1] * means**2
    if (np.square(vectors[..., :4]).sum(axis=-1) > size).all():
        return
    left = np.einsum("...i,...i->...", vectors, vectors)
    noise = left <= size
    if noise.any():
        vectors[noise] = 0.0


def is_rounding(means: Array, entries: Array, spacing: float, *, axis: int = -1) -> bool:
    """Whether means of entries are no more than the storage rounding of the entries.

    Rounding moves an entry by at most half its spacing e, so a mean by at most ``e/2`` times the
    mean size. No less can be asked: after one number has been subtracted from numbers on a common
    grid, all are rounded the same way. What was computed from other entries of the array has their
    arithmetic's rounding.
    """
    squares = np.mean(entries**2, axis=axis)
    allowed = 0.55 * spacing * np.sqrt(squares) + FLOOR * np.sqrt(np.mean(squares))
    return bool((np.abs(means) <= allowed).all())


def relative_noise(rows: Array, spacing: float) -> Array:
    """Relative rounding of the lengths of rows: :data:`ROUNDINGS` deviations.

    A row x with independent relative roundings of spacing e has a length with relative deviation
    ``e / sqrt(12) * sqrt(sum x^4) / sum x^2``.
    """
    squares = rows * rows
    total = squares.sum(axis=-1)
    fourth = np.einsum("...i,...i->...", squares, squares)
    ratio = np.divide(np.sqrt(fourth), total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(ROUNDINGS * spacing / np.sqrt(12.0) * ratio)
