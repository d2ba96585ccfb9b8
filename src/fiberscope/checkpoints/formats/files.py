"""Reading files so that every failure is one sentence, and no corrupt size allocates memory."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError

_LONGEST_QUOTE = 120
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def quoted(name: object) -> str:
    """Quote a name that came from a file: on one line, printable, of bounded length."""
    text = ascii(name)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...'"


def reason(error: OSError) -> str:
    """Say why the operating system refused, without repeating the path."""
    return error.strerror or type(error).__name__


def kind_of(path: Path) -> str | None:
    """Tell what lies at a path: 'file', 'directory', 'other', or None when nothing does."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # a NUL character in the path
        raise InputError(
            f"{quoted(str(path))} is not a path; pass a file or a directory."
        ) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be looked at ({reason(error)}); check the path and its permissions."
        ) from error
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "other"


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file for reading, with its size in bytes.

    Raises
    ------
    InputError
        If it is missing, not a regular file, empty, a Git LFS pointer, or cannot be read.
    """
    kind = kind_of(path)
    if kind is None:
        raise InputError(f"{path} does not exist; check the path or download the missing file.")
    if kind != "file":
        raise InputError(f"{path} is not a regular file; pass a file that can be read.")
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise InputError(f"{path} is empty; download or write it again.")
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise InputError(
                    f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` first."
                )
            stream.seek(0)
            yield stream, size
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({reason(error)}); check its permissions."
        ) from error


def read_array(
    path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], what: str
) -> NDArray[Any]:
    """Read one array stored contiguously at `offset`, in C order.

    The bytes go straight into the array. A memory map would do the same work but leave every page
    that was ever touched in the process's resident size, which then grows to the size of the file.

    Parameters
    ----------
    path
        The file.
    offset
        Where the array's bytes begin.
    dtype, shape
        Already checked against the file's size.
    what
        The array's name, for the error message.

    Raises
    ------
    InputError
        If the file has become shorter since its header was read.
    """
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(count, dtype=np.uint8)
    with opened(path) as (stream, size):
        _check_length(path, offset + count, size, what)
        stream.seek(offset)
        view = buffer.data
        while view:
            received = stream.readinto(view)
            if not received:
                raise InputError(
                    f"{path} ended within tensor {quoted(what)}; run again once nothing "
                    f"writes to it."
                )
            view = view[received:]
    return buffer.view(dtype).reshape(shape)


def map_array(
    path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], what: str
) -> NDArray[Any]:
    """Map one array stored contiguously at `offset`, a multiple of its item size; read-only.

    Parameters and errors are those of `read_array`. Nothing is copied, so large arrays that are
    kept anyway cost no memory of their own; what was looked at counts as resident.
    """
    count = int(np.prod(shape, dtype=np.int64))
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    end = offset + count * dtype.itemsize
    with opened(path) as (stream, size):
        _check_length(path, end, size, what)
        if not count:
            return np.empty(shape, dtype)
        pages = mmap.mmap(stream.fileno(), end - start, access=mmap.ACCESS_READ, offset=start)
    return np.frombuffer(pages, dtype, count, offset - start).reshape(shape)


def _check_length(path: Path, end: int, size: int, what: str) -> None:
    if end > size:
        raise InputError(
            f"{path} was changed while it was read: tensor {quoted(what)} now ends beyond the "
            f"file; run again once nothing writes to it."
        )
