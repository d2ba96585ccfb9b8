"""Reading an architecture's roles from a file, one tensor at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Norm
from fiberscope.checkpoints.formats import WeightSource
from fiberscope.errors import InputError
from fiberscope.parameters import View

CHUNK = 1 << 22
"""Entries converted to float64 at a time when a whole tensor is scanned (32 MB)."""


class RoleReader:
    """Roles as float64 arrays; keeps the tensors of about one layer, never more than ``keep``.

    Parameters
    ----------
    stored
        Architecture tensor -> name in the file.
    keep
        Bytes of float64 tensors that may stay in memory besides the one being read.
    """

    def __init__(
        self,
        architecture: Architecture,
        source: WeightSource,
        stored: Mapping[str, str],
        keep: int = 96 * 2**20,
    ) -> None:
        self.architecture, self.source, self.stored = architecture, source, stored
        self.keep = keep
        self._kept: OrderedDict[str, NDArray[np.float64]] = OrderedDict()
        self._checked: set[str] = set()

    def tensor(self, name: str) -> NDArray[np.float64]:
        """One tensor of the architecture in float64; NaN or infinite values are an error."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        shape = self.architecture.tensors[name]
        size = 8 * int(np.prod(shape, dtype=np.int64))
        while self._kept and size + sum(array.nbytes for array in self._kept.values()) > self.keep:
            self._kept.popitem(last=False)
        array = self.source.read_float64(self.stored[name]).reshape(shape)
        self._refuse_huge(name, array)
        self._checked.add(name)
        if size <= self.keep:
            self._kept[name] = array
        return array

    def read(self, view: View) -> NDArray[np.float64]:
        """A role as a contiguous float64 array (offsets included)."""
        window = view.window(self.tensor(view.tensor))
        # Strided windows (transposed, fused) would keep matrix products off the fast path.
        return window + view.offset if view.offset else np.ascontiguousarray(window)

    def narrow(self, view: View) -> NDArray[np.floating[Any]]:
        """A role without loss in float32 where the file stores no wider numbers, else float64.

        For exact comparisons and sums of squares over large tensors; a window, not a copy, and not
        kept.
        """
        name = view.tensor
        if name in self._kept:
            window: NDArray[np.floating[Any]] = view.window(self._kept[name])
            return window
        stored = self.source.read(self.stored[name]).reshape(self.architecture.tensors[name])
        if stored.dtype.itemsize < 4:
            stored = stored.astype(np.float32)
        elif stored.dtype not in (np.float32, np.float64):
            stored = stored.astype(np.float64)
        if not np.isfinite(stored).all():
            self.tensor(name)  # raises, and says how many values are not finite
        self._refuse_huge(name, stored)
        self._checked.add(name)
        return view.window(stored)

    def _refuse_huge(self, name: str, array: NDArray[Any]) -> None:
        if array.size and max(abs(float(array.max())), abs(float(array.min()))) > LARGEST_WEIGHT:
            info = self.source.tensors[self.stored[name]]
            raise InputError(
                f"{info.file}: tensor {info.name!r} has values beyond {LARGEST_WEIGHT:g}, whose "
                "products overflow; use a checkpoint with weights of ordinary size"
            )

    def dtype(self, view: View) -> str:
        """Stored number format of a role."""
        return self.source.tensors[self.stored[view.tensor]].dtype

    def gain(self, norm: Norm, width: int) -> NDArray[np.float64]:
        """A norm's gains, ones when it has none."""
        return np.ones(width) if norm.gain is None else self.read(norm.gain)

    def rows(self, name: str) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Chunks of rows of a large tensor, ``(first row, float64 rows)``, checked to be finite."""
        stored = self.source.read(self.stored[name])
        stored = stored.reshape(stored.shape[0], -1)
        step = max(1, CHUNK // max(1, stored.shape[1]))
        bad = 0
        for start in range(0, stored.shape[0], step):
            with np.errstate(invalid="ignore"):
                rows = stored[start : start + step].astype(np.float64)
            bad += rows.size - int(np.count_nonzero(np.isfinite(rows)))
            if not bad:
                self._refuse_huge(name, rows)
                yield start, rows
        self._checked.add(name)
        if bad:
            info = self.source.tensors[self.stored[name]]
            raise InputError(
                f"{info.file}: tensor {info.name!r} has {bad:,} NaN or infinite values out of "
                f"{stored.size:,}; use a checkpoint whose weights are finite"
            )

    def check_rest(self) -> None:
        """Read every tensor that nothing has read yet: a report vouches for the whole file."""
        for name in self.architecture.tensors:
            if name not in self._checked:
                for _ in self.rows(name):
                    pass


LARGEST_WEIGHT = 1e100
"""Products of larger weights leave float64; no trained weight comes near."""

STORAGE_EPSILON: Mapping[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}


def storage_epsilon(dtype: str) -> float:
    """Spacing of the stored numbers relative to their size; quantised formats count as 4 bits."""
    if dtype in STORAGE_EPSILON:
        return STORAGE_EPSILON[dtype]
    return 2.0**-2 if dtype.startswith("float8") else 2.0**-3
