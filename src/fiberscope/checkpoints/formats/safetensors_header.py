"""The header of a safetensors file, checked against the file before anything is allocated.

The header is read here and not by the `safetensors` library for two reasons. The library maps the
whole file, and every page read stays in the resident size, so that a pass over all tensors grows to
the size of the file; and it does not tell where a tensor lies, which reading into a fresh array
needs. The rules are those of the format's description; the tests hold this reader against the
library as writer and as reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from fiberscope.checkpoints.formats.files import opened, quoted
from fiberscope.checkpoints.formats.strict_json import LARGEST_JSON, parse_object
from fiberscope.errors import InputError

_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 32  # what every numpy can hold
_REMEDY = "download or write the file again"

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""The number formats that are understood, by the name the header gives them."""


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the header; `offset` counts bytes from the beginning of the file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    byte_count: int


@dataclass(frozen=True)
class Header:
    """All entries in the order of their data, and the free-form metadata."""

    tensors: tuple[StoredTensor, ...]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file.

    Raises
    ------
    InputError
        If the file cannot be read, its header is malformed, a number format is unknown, or the
        tensors do not cover the data exactly once from its beginning to the end of the file.
    """
    with opened(path) as (stream, size):
        content = _header_bytes(path, stream, size)
    document = parse_object(content, f"the header of {path}", _REMEDY)
    metadata = _metadata(path, document.pop("__metadata__", {}))
    start = _LENGTH_BYTES + len(content)
    tensors = [_entry(path, name, entry, start, size) for name, entry in document.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.byte_count))
    _check_coverage(path, tensors, start, size)
    return Header(tuple(tensors), metadata)


def _header_bytes(path: Path, stream: BinaryIO, size: int) -> bytes:
    if size < _LENGTH_BYTES:
        raise InputError(f"{path} is truncated: {size} bytes hold no header; {_REMEDY}.")
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    if length > LARGEST_JSON:
        raise InputError(
            f"{path} is not a safetensors file or is corrupt: its header would be {length} bytes "
            f"long; {_REMEDY}."
        )
    if length > size - _LENGTH_BYTES:
        raise InputError(
            f"{path} is truncated: its header takes {length} bytes and the file has {size}; "
            f"{_REMEDY}."
        )
    content = stream.read(length)
    if not content.startswith(b"{"):
        raise InputError(f"{path} is not a safetensors file: it has no JSON header; {_REMEDY}.")
    return content


def _metadata(path: Path, metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict):
        raise InputError(f"{path} is corrupt: __metadata__ is not an object; {_REMEDY}.")
    for value in metadata.values():
        if not isinstance(value, str):
            raise InputError(
                f"{path} is corrupt: __metadata__ holds a value that is not text; {_REMEDY}."
            )
    return metadata


def _entry(path: Path, name: str, entry: object, start: int, size: int) -> StoredTensor:
    where = f"{path}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{where} must have dtype, shape and data_offsets only; {_REMEDY}.")
    label = entry["dtype"]
    dtype = DTYPES.get(label) if isinstance(label, str) else None
    if dtype is None:
        raise InputError(
            f"{where} has the unknown dtype {quoted(label)}; convert it to one of "
            f"{', '.join(DTYPES)}."
        )
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise InputError(f"{where} has a malformed shape or data_offsets; {_REMEDY}.")
    begin, end = offsets
    if not begin <= end <= size - start:
        raise InputError(
            f"{where} ends at byte {start + end} and the file has {size} bytes: it is truncated or "
            f"corrupt; {_REMEDY}."
        )
    # Dimensions beside a zero are bounded too: numpy computes strides from them.
    extent = math.prod(dimension for dimension in shape if dimension) * dtype.itemsize
    if len(shape) > _MOST_DIMENSIONS or extent >= 2**62:
        raise InputError(f"{where} has an impossible shape; {_REMEDY}.")
    expected = math.prod(shape) * dtype.itemsize
    if end - begin != expected:
        raise InputError(
            f"{where} of shape {list(shape)} and dtype {label} takes {expected} bytes and the "
            f"header gives it {end - begin}; {_REMEDY}."
        )
    return StoredTensor(name, dtype, tuple(shape), start + begin, expected)


def _are_counts(value: object) -> bool:
    # bool is a subclass of int; beyond 63 bits nothing can be addressed.
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def _check_coverage(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            fault = "overlaps the one before it" if tensor.offset < position else "follows a gap"
            raise InputError(f"{path} is corrupt: tensor {quoted(tensor.name)} {fault}; {_REMEDY}.")
        position += tensor.byte_count
    if position != size:
        raise InputError(
            f"{path} is corrupt: its tensors end at byte {position} and the file has {size} bytes; "
            f"{_REMEDY}."
        )
