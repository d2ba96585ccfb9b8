"""Writing one safetensors file tensor by tensor, in any order.

The format puts a header with the place of every tensor first, so shapes and number formats must be
known before the first value is; then each tensor has its place, and only one need be in memory. The
`safetensors` library asks for all tensors at once.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.safetensors_header import DTYPES

_LABELS = {dtype: label for label, dtype in DTYPES.items()}
_ALIGNMENT = 8


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written: name, number format and shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Bytes its values take."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """A safetensors file being written; a context manager.

    Parameters
    ----------
    path
        A file that does not exist.
    tensors
        What it will hold. Wider formats come first in the file, so that every value is aligned;
        beyond that the order is kept.
    metadata
        Free text by key.
    """

    def __init__(self, path: Path, tensors: Sequence[Planned], metadata: Mapping[str, str]) -> None:
        self.path = path
        ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)
        self.tensors = {tensor.name: tensor for tensor in ordered}
        document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        offsets: dict[str, int] = {}
        for tensor in ordered:
            offsets[tensor.name] = offset
            end = offset + tensor.byte_count
            document[tensor.name] = {
                "dtype": _LABELS[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [offset, end],
            }
            offset = end
        header = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        start = 8 + len(header)
        self.size = start + offset
        self._offsets = {name: start + place for name, place in offsets.items()}
        self.missing = set(self.tensors)
        self._stream = path.open("xb")
        try:
            self._stream.write(len(header).to_bytes(8, "little") + header)
            self._reserve()
        except BaseException:
            self._stream.close()
            raise

    def _reserve(self) -> None:
        # The full size at once: what is left out by mistake reads as zeros, not as an end.
        self._stream.truncate(self.size)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write one tensor, which must have the planned format and shape.

        Raises
        ------
        ValueError
            If it was not planned so, or was written already.
        """
        planned = self.tensors[name]
        if name not in self.missing:
            raise ValueError(f"{name} is written twice")
        if values.dtype != planned.dtype or values.shape != planned.shape:
            raise ValueError(f"{name} is {values.dtype} {values.shape}, planned was {planned}")
        self._stream.seek(self._offsets[name])
        contiguous = np.ascontiguousarray(values).reshape(-1)
        if contiguous.size:
            self._stream.write(contiguous.view(np.uint8).data)
        self.missing.discard(name)

    def close(self) -> None:
        """Flush and close."""
        self._stream.close()

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(OSError):  # a full disk refuses the flush too; the first says it
            self.close()
