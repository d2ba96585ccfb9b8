"""Tensors in one safetensors file, or in several with an index."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.files import kind_of, map_array, quoted, read_array
from fiberscope.checkpoints.formats.safetensors_header import Header, StoredTensor, read_header
from fiberscope.checkpoints.formats.source import TensorInfo, WeightSource
from fiberscope.checkpoints.formats.strict_json import read_object
from fiberscope.errors import InputError

_SHARDS_REMEDY = "download the index and the shards of one model again"
_INDEX_REMEDY = "download or write the index again"


class SafetensorsSource(WeightSource):
    """The tensors of one or several safetensors files; a file is open only while it is read."""

    format = "safetensors"

    def __init__(self, path: Path, headers: Iterable[tuple[Path, Header]]) -> None:
        self.path = path
        self._stored: dict[str, StoredTensor] = {}
        tensors: dict[str, TensorInfo] = {}
        metadata: dict[str, str] = {}
        for file, header in headers:
            metadata.update(header.metadata)
            for stored in header.tensors:
                name = stored.name
                self._stored[name] = stored
                tensors[name] = TensorInfo(name, stored.shape, stored.dtype.name, file)
        self.tensors = tensors
        # Writers that store a shared tensor once name the others in the metadata, beside entries
        # of other kinds ("format": "pt"): an alias is an entry whose value is a stored tensor.
        self.aliases = {
            name: target
            for name, target in metadata.items()
            if target in tensors and name not in tensors
        }

    def _read_stored(self, info: TensorInfo) -> NDArray[Any]:
        stored = self._stored[info.name]
        if stored.dtype == np.bool_:
            # Any byte may lie there, and a numpy bool other than 0 and 1 is undefined.
            return read_array(
                info.file, stored.offset, np.dtype("u1"), stored.shape, info.name
            ).astype(np.bool_)
        return read_array(info.file, stored.offset, stored.dtype, stored.shape, info.name)

    def _map_stored(self, info: TensorInfo) -> NDArray[Any]:
        stored = self._stored[info.name]
        if stored.dtype == np.bool_ or stored.offset % stored.dtype.itemsize:
            return self._read_stored(info)
        return map_array(info.file, stored.offset, stored.dtype, stored.shape, info.name)


def open_file(path: Path) -> SafetensorsSource:
    """Open one safetensors file; raises `InputError` as `read_header`."""
    return SafetensorsSource(path, [(path, read_header(path))])


def open_sharded(index: Path) -> SafetensorsSource:
    """Open the shards that an index file names.

    Raises
    ------
    InputError
        If the index is malformed, a shard is missing or corrupt, or the index and the shards
        disagree about where a tensor is.
    """
    weight_map = read_weight_map(index)
    placed: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        placed.setdefault(shard, set()).add(name)
    for shard in placed:
        if kind_of(index.parent / shard) is None:
            raise InputError(
                f"{index} names the shard {shard}, which is not beside it; download the missing "
                f"file."
            )
    headers: list[tuple[Path, Header]] = []
    for shard, expected in placed.items():
        file = index.parent / shard
        header = read_header(file)
        found = {tensor.name for tensor in header.tensors}
        for name in sorted(found - expected):
            where = f"in {weight_map[name]}" if name in weight_map else "nowhere"
            raise InputError(
                f"{file} stores the tensor {quoted(name)} and {index.name} places it {where}; "
                f"{_SHARDS_REMEDY}."
            )
        for name in sorted(expected - found):
            raise InputError(
                f"{index.name} places the tensor {quoted(name)} in {file}, which does not store "
                f"it; {_SHARDS_REMEDY}."
            )
        headers.append((file, header))
    return SafetensorsSource(index, headers)


def read_weight_map(index: Path) -> dict[str, str]:
    """Read which shard an index places each tensor in.

    Raises
    ------
    InputError
        If the index is unreadable or malformed, empty, or names a shard outside its own folder.
    """
    weight_map = read_object(index, _INDEX_REMEDY).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map object with tensors in it; {_INDEX_REMEDY}.")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise InputError(
                f"{index} places the tensor {quoted(name)} in {quoted(shard)}, which is not the "
                f"name of a .safetensors file beside it; {_INDEX_REMEDY}."
            )
    return weight_map


def _is_plain_name(shard: str) -> bool:
    separators = {"/", "\\", os.sep}
    return shard.endswith(".safetensors") and shard.isprintable() and not separators & set(shard)
