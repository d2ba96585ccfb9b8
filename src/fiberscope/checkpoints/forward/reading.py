"""Roles in float64 for one sublayer at a time, from whatever reads the stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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

CHUNK = 1 << 22
"""Entries of a table that are widened at a time (32 MB)."""


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

    def matrix(self, view: View, rows: int) -> NDArray[np.float64]:
        """The role as a matrix of the given number of rows."""
        # Reshaped first and widened in its own layout: BLAS takes either order of a matrix.
        flat = self.window(view).reshape(rows, -1)
        return flat.astype(np.float64, copy=False) + view.offset if view.offset else _widen(flat)

    def rows(self, view: View, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Chosen rows of a table, the others never widened."""
        return self.window(view)[chosen].astype(np.float64) + view.offset

    def chunks(self, view: View) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """All rows of a table, some at a time."""
        table = self.window(view)
        step = max(1, CHUNK // max(1, table.shape[1]))
        for start in range(0, table.shape[0], step):
            part = slice(start, min(start + step, table.shape[0]))
            yield part, _widen(table[part]) + view.offset if view.offset else _widen(table[part])


def _widen(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64, copy=False)
