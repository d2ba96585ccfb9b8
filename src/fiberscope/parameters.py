"""Named arrays, their flat vector, and views: a role seen as a window on a stored tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError

Parameters = Mapping[str, NDArray[Any]]
"""Named arrays; the dtype is the number system's (float64, complex128 or object)."""


@dataclass(frozen=True)
class ParameterSpace:
    """Order and shapes of a family's named parameters: the bridge to flat vectors.

    ``vector`` and ``parameters`` are inverse to each other, for any dtype.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Number of real parameters."""
        return sum(prod(shape) for shape in self.shapes.values())

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Yield ``(name, slice)`` of every array in the flat vector, in order."""
        start = 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape)
            yield name, slice(start, stop)
            start = stop

    def vector(self, parameters: Parameters) -> NDArray[Any]:
        """Flatten named arrays to one vector of shape ``(size,)``.

        Raises
        ------
        InputError
            If a name is missing or superfluous, or a shape differs.
        """
        self.check(parameters)
        if not self.shapes:
            return np.zeros(0)
        return np.concatenate([np.asarray(parameters[name]).reshape(-1) for name in self.shapes])

    def parameters(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Named arrays (copies) of a vector of shape ``(size,)``; the inverse of ``vector``."""
        vector = np.asarray(vector)
        if vector.shape != (self.size,):
            raise InputError(f"a vector of shape ({self.size},) is needed, got {vector.shape}")
        return {
            name: vector[window].reshape(self.shapes[name]).copy() for name, window in self.slices()
        }

    def check(self, parameters: Parameters) -> None:
        """Raise :class:`InputError` unless names and shapes are exactly those of this space."""
        if missing := self.shapes.keys() - parameters.keys():
            raise InputError(f"missing parameters: {sorted(missing)}")
        if unknown := parameters.keys() - self.shapes.keys():
            raise InputError(f"unknown parameters: {sorted(unknown)}")
        for name, shape in self.shapes.items():
            if np.shape(parameters[name]) != tuple(shape):
                raise InputError(
                    f"{name} has shape {np.shape(parameters[name])}, expected {tuple(shape)}"
                )


@dataclass(frozen=True)
class View:
    """A role as a writable window on a stored tensor.

    A view is a chain of operations that NumPy performs without copying (split an axis, take a
    slice or an index of an axis, permute the axes), so one description serves reading, moving and
    writing, whatever the layout: transposed, fused, interleaved or tied storage. ``offset`` is
    added on reading and subtracted on writing (gains stored as ``w`` and used as ``1 + w``).

    Build one with :meth:`whole` and the chaining methods.
    """

    tensor: str
    stored_shape: tuple[int, ...]
    shape: tuple[int, ...]
    offset: float = 0.0
    _steps: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)

    @classmethod
    def whole(cls, tensor: str, shape: tuple[int, ...], *, offset: float = 0.0) -> View:
        """View the whole stored tensor in its stored layout."""
        return cls(tensor, tuple(shape), tuple(shape), offset)

    @property
    def size(self) -> int:
        """Number of entries seen."""
        return prod(self.shape)

    def _with(self, step: tuple[Any, ...], shape: tuple[int, ...]) -> View:
        return replace(self, shape=shape, _steps=(*self._steps, step))

    def split(self, axis: int, *sizes: int) -> View:
        """Split one axis into several, first index slowest."""
        axis %= len(self.shape)
        if prod(sizes) != self.shape[axis]:
            raise ValueError(
                f"axis {axis} of {self.tensor} has {self.shape[axis]} entries, not {sizes}"
            )
        return self._with(
            ("split", axis, sizes), (*self.shape[:axis], *sizes, *self.shape[axis + 1 :])
        )

    def merge(self, axis: int, count: int) -> View:
        """Merge ``count`` adjacent axes of the stored layout into one, the inverse of a split."""
        axis %= len(self.shape)
        if count < 1 or axis + count > len(self.shape):
            raise ValueError(f"{self.tensor} has no {count} axes from axis {axis} on")
        merged = prod(self.shape[axis : axis + count])
        shape = (*self.shape[:axis], merged, *self.shape[axis + count :])
        return self._with(("merge", axis, count), shape)

    def slice(self, axis: int, start: int, stop: int) -> View:
        """Keep ``start:stop`` of one axis."""
        axis %= len(self.shape)
        if not 0 <= start <= stop <= self.shape[axis]:
            raise ValueError(f"{start}:{stop} is outside axis {axis} of {self.tensor}")
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self._with(("slice", axis, start, stop), shape)

    def index(self, axis: int, position: int) -> View:
        """Take one position of an axis and drop the axis."""
        axis %= len(self.shape)
        if not 0 <= position < self.shape[axis]:
            raise ValueError(f"{position} is outside axis {axis} of {self.tensor}")
        return self._with(("index", axis, position), self.shape[:axis] + self.shape[axis + 1 :])

    def permute(self, *axes: int) -> View:
        """Permute the axes."""
        if sorted(axes) != list(range(len(self.shape))):
            raise ValueError(f"{axes} does not permute the {len(self.shape)} axes of {self.tensor}")
        return self._with(("permute", axes), tuple(self.shape[axis] for axis in axes))

    def window(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the writable window on ``stored`` (its layout, without the offset)."""
        if stored.shape != self.stored_shape:
            raise ValueError(f"{self.tensor} has shape {stored.shape}, not {self.stored_shape}")
        window = stored
        for step in self._steps:
            match step:
                case ("split", axis, sizes):
                    shape = (*window.shape[:axis], *sizes, *window.shape[axis + 1 :])
                    window = self._reshaped(window, shape)
                case ("merge", axis, count):
                    shape = (*window.shape[:axis], -1, *window.shape[axis + count :])
                    window = self._reshaped(window, shape)
                case ("slice", axis, start, stop):
                    window = window[(*([slice(None)] * axis), slice(start, stop))]
                case ("index", axis, position):
                    window = window[(*([slice(None)] * axis), position)]
                case ("permute", axes):
                    window = window.transpose(axes)
        return window

    def _reshaped(self, window: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        # `copy=False` semantics: a silent copy would lose the writes.
        view = window.reshape(shape)
        if window.size and not np.shares_memory(view, window):
            raise ValueError(f"{self.tensor} cannot be reshaped to {shape} without a copy")
        return view

    def read(self, parameters: Parameters) -> NDArray[Any]:
        """Return the role's array, offset included (a window when the offset is zero)."""
        window = self.window(np.asarray(parameters[self.tensor]))
        return window + self.offset if self.offset else window

    def write(self, parameters: Mapping[str, NDArray[Any]], value: NDArray[Any]) -> None:
        """Write the role's array into the stored tensor, in place."""
        window = self.window(parameters[self.tensor])
        window[...] = value - self.offset if self.offset else value
