"""A directory that appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fiberscope.checkpoints.formats.files import reason
from fiberscope.errors import InputError

_NAME_LENGTH = 64


def check_target(
    target: Path,
    source: Path | None,
    *,
    overwrite: bool,
    replaceable: Callable[[Path], bool],
) -> None:
    """Refuse a place where no checkpoint can be written, before any work is done.

    Parameters
    ----------
    target
        The directory to be written.
    source
        What is read meanwhile: it must neither be, hold nor lie in the target.
    overwrite
        Whether an earlier output there may be replaced.
    replaceable
        Tells whether an existing directory is an earlier output, so that nothing else is deleted.

    Raises
    ------
    InputError
        In one sentence.
    """
    if not target.name or target.name == "..":
        raise InputError(f"{target} cannot be written; name a new directory")
    parent = target.parent
    if not parent.is_dir():
        raise InputError(
            f"{parent} is no directory, so {target} cannot be written; create it first"
        )
    if source is not None:
        place, read = target.resolve(), source.resolve()
        if place == read or place in read.parents:
            raise InputError(f"{target} holds the input, which is never replaced; name another")
        if read.is_dir() and read in place.parents:
            raise InputError(f"{target} lies in the input's directory; name a place outside it")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise InputError(f"{target} exists; pass --overwrite to replace it, or another name")
    if target.is_symlink() or not target.is_dir() or not replaceable(target):
        raise InputError(
            f"{target} is no checkpoint that fiberscope wrote, so it is not replaced; name another"
        )


@contextlib.contextmanager
def staged_directory(
    target: Path, *, overwrite: bool, recheck: Callable[[], None]
) -> Iterator[Path]:
    """Yield an empty directory beside ``target``; move it there if the block ends well.

    Whatever ends the block otherwise (an error, a full disk, Ctrl-C, SIGTERM), the directory is
    removed and what lay at ``target`` is as before. With ``overwrite`` the earlier output is set
    aside only when the new one is complete and on disk, and removed only when that is in place.

    Parameters
    ----------
    recheck
        Called again before moving into place, as something may have appeared there meanwhile.

    Raises
    ------
    InputError
        If the file system refuses; one sentence.
    """
    prefix = f".{target.name[:_NAME_LENGTH]}."
    staging: Path | None = None
    with _termination_raises():
        try:
            staging = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=target.parent))
            yield staging
            # Temporary directories are private; an output gets what any new directory gets.
            mask = os.umask(0)
            os.umask(mask)
            staging.chmod(0o777 & ~mask)
            recheck()
            if os.path.lexists(target) and overwrite:
                _exchange(staging, target, prefix)
            else:
                os.rename(staging, target)
            staging = None
        except OSError as error:
            raise InputError(
                f"{target} cannot be written: {reason(error).lower()}; nothing was left behind, "
                "choose another place"
            ) from error
        finally:
            if staging is not None:
                shutil.rmtree(staging, ignore_errors=True)


def _exchange(staging: Path, target: Path, prefix: str) -> None:
    """Put ``staging`` in the place of ``target``, which is gone only afterwards."""
    for file in staging.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    aside = Path(tempfile.mkdtemp(prefix=prefix, suffix=".earlier", dir=target.parent))
    os.rename(target, aside)  # replaces the empty directory
    try:
        os.rename(staging, target)
    except BaseException:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    """Let SIGTERM end the process by an exception, so that clearing up happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> Any:
        raise SystemExit(128 + number)

    earlier = signal.getsignal(signal.SIGTERM)
    if earlier not in (signal.SIG_DFL, None):
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
