"""The header of a GGUF file, checked against the file before anything is allocated.

The `gguf` package also has a reader. It is used here only in the tests, as the other opinion:
it believes every count in the file, so that one flipped bit makes it loop or allocate without
bound, and it keeps several numpy objects for every token of the vocabulary, which alone can exceed
the memory this package promises. Its tables of types and its dequantisation are used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fiberscope.checkpoints.formats.files import opened, quoted
from fiberscope.errors import InputError

REMEDY = "download or convert the file again"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_MOST_ENTRIES = 1_000_000  # tensors or metadata entries; the largest models have some thousands
_MOST_STRINGS = 10_000_000  # elements of a list of strings; the largest vocabularies have 10^6
_LONGEST_NAME = 65_535

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Skipped:
    """A value of the metadata that was passed over: a list or a long text."""

    length: int


MetadataValue = str | int | float | bool | Skipped


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table; `offset` counts bytes from the beginning of the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    block_size: int
    block_bytes: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """The metadata, without lists and long texts, and the tensors in the order of the file."""

    metadata: dict[str, MetadataValue]
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path, types: dict[int, tuple[str, int, int]]) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Parameters
    ----------
    path
        The file.
    types
        The tensor types that are understood: for each number its name, the values in a block and
        the bytes of a block.

    Raises
    ------
    InputError
        If the file cannot be read, is of another byte order or version, is truncated, or holds a
        count, type or offset that contradicts its size.
    """
    with opened(path) as (stream, size):
        cursor = _Cursor(path, stream, size)
        tensor_count, entry_count = _preamble(cursor)
        metadata = _metadata(cursor, entry_count)
        alignment = _alignment(cursor, metadata)
        entries = [_tensor_entry(cursor, types) for _ in range(tensor_count)]
        tensors = _placed(cursor, entries, alignment)
    return GgufHeader(metadata, tensors)


class _Cursor:
    """A position in the file that never passes its end."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path, self.size, self.position = path, size, 0
        self._stream = stream

    def fault(self, what: str) -> InputError:
        return InputError(f"{self.path} is not a readable GGUF file: {what}; {REMEDY}.")

    def skip(self, count: int) -> None:
        self._advance(count)
        self._stream.seek(self.position)

    def take(self, count: int) -> bytes:
        self._advance(count)
        content = self._stream.read(count)
        if len(content) != count:
            raise self.fault("it became shorter while it was read")
        return content

    def scalar(self, layout: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def count(self, layout: str = "<Q") -> int:
        return int(self.scalar(layout))

    def name(self) -> str:
        length = self.count()
        if length > _LONGEST_NAME:
            raise self.fault(f"a name of {length} bytes")
        return self.text(length)

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault("text that is not UTF-8 in its header") from error

    def _advance(self, count: int) -> None:
        if count > self.size - self.position:
            raise self.fault(
                f"its header wants {count} bytes at byte {self.position} of {self.size}, so it is "
                f"truncated or corrupt"
            )
        self.position += count


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise cursor.fault("it does not begin with GGUF")
    version = cursor.count("<I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        kind = "big-endian" if swapped else f"version {version}"
        raise cursor.fault(f"{kind} files are not supported, only little-endian versions 2 and 3")
    tensor_count, entry_count = cursor.count(), cursor.count()
    if max(tensor_count, entry_count) > _MOST_ENTRIES:
        raise cursor.fault(
            f"it would have {tensor_count} tensors and {entry_count} metadata entries"
        )
    return tensor_count, entry_count


def _metadata(cursor: _Cursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for _ in range(count):
        key = cursor.name()
        if key in metadata:
            raise cursor.fault(f"the metadata key {quoted(key)} stands twice")
        metadata[key] = _value(cursor, key)
    return metadata


def _value(cursor: _Cursor, key: str) -> MetadataValue:
    kind = cursor.count("<I")
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    if kind == _STRING:
        length = cursor.count()
        if length <= _LONGEST_NAME:
            return cursor.text(length)
        cursor.skip(length)
        return Skipped(length)
    if kind == _ARRAY:
        element, length = cursor.count("<I"), cursor.count()
        if element in _SCALARS:
            cursor.skip(length * struct.calcsize(_SCALARS[element]))
            return Skipped(length)
        if element == _STRING:
            if length > _MOST_STRINGS:
                raise cursor.fault(f"the metadata key {quoted(key)} lists {length} texts")
            for _ in range(length):
                cursor.skip(cursor.count())
            return Skipped(length)
        kind = element
    raise cursor.fault(f"the metadata key {quoted(key)} has the unknown type {kind}")


def _alignment(cursor: _Cursor, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fault("general.alignment is not a power of two")
    return alignment


def _tensor_entry(cursor: _Cursor, types: dict[int, tuple[str, int, int]]) -> GgufTensor:
    name = cursor.name()
    dimensions = cursor.count("<I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise cursor.fault(f"tensor {quoted(name)} has {dimensions} dimensions")
    # The file counts from the fastest dimension; arrays here count from the slowest.
    shape = tuple(reversed([cursor.count() for _ in range(dimensions)]))
    kind, offset = cursor.count("<I"), cursor.count()
    if kind not in types:
        raise InputError(
            f"{cursor.path}: tensor {quoted(name)} has the type {kind}, which is not a weight "
            f"format the installed gguf package can dequantise; update it with "
            f"`pip install -U gguf`."
        )
    type_name, block_size, block_bytes = types[kind]
    if 0 in shape or shape[-1] % block_size or math.prod(shape) > cursor.size * block_size:
        raise cursor.fault(f"tensor {quoted(name)} of type {type_name} has shape {list(shape)}")
    return GgufTensor(name, type_name, shape, block_size, block_bytes, offset)


def _placed(cursor: _Cursor, entries: list[GgufTensor], alignment: int) -> tuple[GgufTensor, ...]:
    """Turn offsets within the data into offsets within the file, and check that they tile it."""
    start = _aligned(cursor.position, alignment)
    position, end = start, start
    placed: dict[str, GgufTensor] = {}
    for entry in entries:
        if entry.name in placed:
            raise cursor.fault(f"tensor {quoted(entry.name)} stands twice")
        if start + entry.offset != position:
            raise cursor.fault(
                f"tensor {quoted(entry.name)} begins at byte {start + entry.offset} instead of "
                f"{position}"
            )
        end = position + math.prod(entry.shape) // entry.block_size * entry.block_bytes
        if end > cursor.size:
            raise cursor.fault(
                f"tensor {quoted(entry.name)} ends at byte {end} of {cursor.size}, so the file is "
                f"truncated"
            )
        placed[entry.name] = replace(entry, offset=position)
        position = _aligned(end, alignment)
    if not placed:
        raise cursor.fault("it holds no tensors")
    if cursor.size > position:
        raise cursor.fault(f"{cursor.size - position} bytes follow its last tensor")
    return tuple(placed.values())


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
