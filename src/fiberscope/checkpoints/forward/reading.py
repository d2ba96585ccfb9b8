"""Roles in float64 for one sublayer at a time, from whatever reads the stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.source import WeightSource
from fiberscope.parameters import View

Read = Callable[[View], NDArray[Any]]
"""Reads a view: ``lambda view: view.read(parameters)``, ``RoleReader.read``, ``stored_numbers``.

The evaluation asks for whole stored tensors and widens their numbers itself: a reader may return
float64 or anything narrower.
"""

CHUNK = 1 << 16
"""Entries of a matrix that are widened at a time (512 KB: they stay in the cache)."""


def stored_numbers(source: WeightSource, stored: Mapping[str, str]) -> Read:
    """Read views of a file in its own number format, nothing kept in memory.

    Parameters
    ----------
    source
        The opened weights.
    stored
        Tensor of the architecture -> name in the file, as `match` finds them.
    """

    def read(view: View) -> NDArray[Any]:
        return view.read({view.tensor: source.read(stored[view.tensor]).reshape(view.stored_shape)})

    return read


class Roles:
    """Roles as float64 arrays; holds the stored tensors asked for since the last `forget`."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._held: dict[str, NDArray[Any]] = {}

    def forget(self) -> None:
        """Let go of every tensor."""
        self._held.clear()

    def window(self, view: View) -> NDArray[Any]:
        """The role in the stored number format, without its offset, uncopied where possible."""
        if view.tensor not in self._held:
            # Whole tensors: roles that share one (fused projections, ties) are read once, and
            # strided windows reach the matrix products as they are.
            self._held[view.tensor] = self._read(View.whole(view.tensor, view.stored_shape))
        return view.window(self._held[view.tensor])

    def vector(self, view: View) -> NDArray[np.float64]:
        """The role in its own shape."""
        return self.window(view).astype(np.float64) + view.offset

    def bias(self, view: View | None) -> NDArray[np.float64] | float:
        """The role flattened, 0.0 where there is none."""
        return 0.0 if view is None else self.vector(view).reshape(-1)

    def product(
        self, x: NDArray[np.float64], view: View, *, inputs_first: bool = False
    ) -> NDArray[np.float64]:
        """Apply a role's matrix to the last axis of x.

        The role is flattened to ``(outputs, inputs)``, or to ``(inputs, outputs)`` with
        ``inputs_first``; x of shape (..., inputs) gives (..., outputs).
        """
        window, inputs = self.window(view), x.shape[-1]
        matrix = window.reshape(inputs, -1) if inputs_first else window.reshape(-1, inputs).T
        flat = x.reshape(-1, inputs)
        result = _product(flat, matrix)
        if view.offset:
            result += view.offset * flat.sum(-1, keepdims=True)
        return result.reshape(*x.shape[:-1], matrix.shape[1])

    def rows(self, view: View, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Chosen rows of a table, the others never widened."""
        return self.window(view)[chosen].astype(np.float64) + view.offset


def _product(x: NDArray[np.float64], matrix: NDArray[Any]) -> NDArray[np.float64]:
    """``x @ matrix``, the matrix widened a few rows or columns at a time.

    Few rows of x meet large matrices: writing a float64 copy takes longer than the product.
    """
    if matrix.dtype == np.float64:
        return np.asarray(x @ matrix)
    inputs, outputs = matrix.shape
    result = np.zeros((x.shape[0], outputs))
    # Along the slow axis of the storage.
    if matrix.strides[0] >= matrix.strides[1]:
        step = max(1, CHUNK // max(1, outputs))
        buffer = np.empty((min(step, inputs), outputs))
        for start in range(0, inputs, step):
            part = matrix[start : start + step]
            buffer[: len(part)] = part
            result += x[:, start : start + step] @ buffer[: len(part)]
        return result
    columns = matrix.T
    step = max(1, CHUNK // max(1, inputs))
    buffer = np.empty((min(step, outputs), inputs))
    for start in range(0, outputs, step):
        part = columns[start : start + step]
        buffer[: len(part)] = part
        result[:, start : start + step] = x @ buffer[: len(part)].T
    return result
