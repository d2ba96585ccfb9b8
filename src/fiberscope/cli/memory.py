"""Memory of commands that work through large tensors."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT = 1 << 30
"""Bytes that a freed array leaves with the process, and the largest array that is reused so."""


def keep_freed_pages() -> None:
    """Let the C library reuse the memory of freed arrays instead of giving it back each time.

    By default glibc returns every large array to the system at once, and the next one of the same
    size costs a page fault per 4 KB: a third of the time of a command whose steps are short. Where
    the C library is another one, nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - mallopt means other things elsewhere
        option = library.mallopt
    except (AttributeError, OSError, TypeError):
        return
    option(_MMAP_THRESHOLD, _KEPT)
    option(_TRIM_THRESHOLD, _KEPT)
    option(_ARENA_MAX, 1)
