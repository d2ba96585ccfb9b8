"""What every weight format offers: named tensors, read one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.files import quoted
from fiberscope.errors import InputError


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor before its values are read.

    Attributes
    ----------
    name
        The name to read it by.
    shape
        Its shape as the architecture's own class has it (rows first).
    dtype
        The stored number format: a numpy or ml_dtypes name (``float32``, ``bfloat16``, ...) or, for
        block-quantised tensors, the name of the scheme (``Q4_1``, ...).
    file
        The file that holds the values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


class WeightSource(ABC):
    """A store of named tensors of which one at a time is in memory.

    Attributes
    ----------
    path
        The file that was opened; for a sharded checkpoint, its index.
    format
        ``safetensors`` or ``gguf``.
    tensors
        The stored tensors by name, in the order in which the files list them.
    aliases
        Further names of stored tensors, each with the name it is stored under. Writers that store a
        shared tensor once leave such a table.
    """

    path: Path
    format: str
    tensors: Mapping[str, TensorInfo]
    aliases: Mapping[str, str]

    def read(self, name: str) -> NDArray[Any]:
        """Read one tensor in its stored number format.

        Parameters
        ----------
        name
            A name in `tensors` or in `aliases`.

        Returns
        -------
        ndarray
            A new array of the tensor's shape. bfloat16 and float8 arrays have ml_dtypes types;
            block-quantised tensors come dequantised, in float32.

        Raises
        ------
        InputError
            If there is no such tensor, or its file can no longer be read.
        """
        return self._read_stored(self._info(name))

    def mapped(self, name: str) -> NDArray[Any]:
        """Read one tensor as `read`, but leave its numbers in the file where the format allows it.

        Such an array is read-only. The system reads what is looked at, and keeps it in memory as
        long as there is room; a file that becomes shorter meanwhile ends the process.
        """
        return self._map_stored(self._info(name))

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(self.aliases.get(name, name))
        if info is None:
            raise InputError(
                f"{self.path} has no tensor {quoted(name)}; pass a checkpoint that stores it."
            )
        return info

    def read_float64(self, name: str, check_finite: bool = True) -> NDArray[np.float64]:
        """Read one tensor as float64.

        Parameters
        ----------
        name
            A name in `tensors` or in `aliases`.
        check_finite
            Whether NaN and infinite values are an error.

        Returns
        -------
        ndarray
            The values in float64; exact for every stored format but 64-bit integers.

        Raises
        ------
        InputError
            As `read`, and for values that are not finite.
        """
        stored = self.read(name)
        # A signalling NaN in a narrow format warns when it is cast; the check below reports it.
        with np.errstate(invalid="ignore"):
            values = stored.astype(np.float64, copy=False)
        del stored  # two copies at most: this is what keeps peak memory at twice the tensor
        if check_finite:
            count = values.size - int(np.count_nonzero(np.isfinite(values)))
            if count:
                info = self.tensors[self.aliases.get(name, name)]
                raise InputError(
                    f"{info.file}: tensor {quoted(name)} has {count} NaN or infinite values out of "
                    f"{values.size}; use a checkpoint whose weights are finite."
                )
        return values

    def close(self) -> None:  # noqa: B027 - a format that holds no file open has nothing to do
        """Let go of the files; nothing can be read afterwards that a format had kept open."""

    def __enter__(self) -> WeightSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _map_stored(self, info: TensorInfo) -> NDArray[Any]:
        return self._read_stored(info)

    @abstractmethod
    def _read_stored(self, info: TensorInfo) -> NDArray[Any]:
        """Read the tensor that `info`, one of `tensors`, describes."""


@dataclass(frozen=True)
class Checkpoint:
    """A configuration and, unless only the configuration was given, its weights.

    Attributes
    ----------
    path
        What was opened: a directory or a file.
    config
        The Hugging Face configuration as stored; for GGUF, built from the file's metadata.
    weights
        The tensors, or None when only a configuration was given.
    notes
        Sentences about what was passed over: a pickle beside safetensors, a known buffer.
    """

    path: Path
    config: dict[str, object]
    weights: WeightSource | None
    notes: tuple[str, ...]
