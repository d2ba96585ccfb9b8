"""The header of a GGUF file, checked against the file before anything is allocated.

The `gguf` package also has a reader. It is used here only in the tests, as the other opinion:
it believes every count in the file, so that one flipped bit makes it loop or allocate without
bound, and it keeps several numpy objects for every token of the vocabulary, which alone can exceed
the memory this package promises. Its tables of types and its dequantisation are used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
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
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


@dataclass(frozen=True)
class MetadataList:
    """A list in the metadata, of which only the length is kept."""

    length: int


type_of_value = str | int | float | bool | MetadataList


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
    """The metadata (lists by their lengths only) and the tensors in the order of the file."""

    metadata: dict[str, type_of_value]
    tensors: tuple[GgufTensor, ...]
