"""What all commands share: JSON on stdout, files that are never overwritten unasked, progress."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiberscope.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

LARGEST_WIDTH = 100
PATIENCE = 2.0
"""Seconds without a word before progress is shown."""
_BETWEEN_LINES = 10.0


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout (ASCII, so that every terminal's encoding can hold it)."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """Print a finished report on stdout, also where its encoding lacks some characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("─", "-").encode(encoding, "replace").decode(encoding)
    click.echo(text, nl=False)


def console() -> Console:
    """A console on stdout: at most 100 columns, no colour unless it is a terminal."""
    from rich.console import Console

    columns = shutil.get_terminal_size((LARGEST_WIDTH, 24)).columns
    return Console(width=max(40, min(LARGEST_WIDTH, columns)), highlight=False, soft_wrap=False)


def check_new_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before any work is done.

    Raises
    ------
    InputError
        If it exists and may not be overwritten, is a directory, or its directory does not exist.
    """
    name = click.format_filename(path)
    if path.is_dir():
        raise InputError(f"{name} is a directory; name a file in it")
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{name} exists; pass --overwrite to replace it, or another name")
    if not path.parent.is_dir():
        parent = click.format_filename(path.parent)
        raise InputError(f"{parent} is no directory, so {name} cannot be written; create it first")


def write_file(path: Path, text: str | bytes, overwrite: bool) -> None:
    """Write UTF-8 text, or bytes, beside its place and move it there whole.

    Raises
    ------
    InputError
        As `check_new_file`, or if the file system refuses.
    """
    check_new_file(path, overwrite)
    written = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name[:64]}.", delete=False
        ) as stream:
            written = Path(stream.name)
            stream.write(text.encode("utf-8") if isinstance(text, str) else text)
        # Temporary files are private; a report gets what any new file gets.
        mask = os.umask(0)
        os.umask(mask)
        written.chmod(0o666 & ~mask)
        if overwrite:
            written.replace(path)
        else:
            # A link fails where something has appeared meanwhile; a rename would replace it.
            os.link(written, path)
    except FileExistsError:
        check_new_file(path, overwrite)
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        name = click.format_filename(path)
        raise InputError(f"{name} cannot be written: {reason}; choose another place") from None
    finally:
        if written is not None:
            written.unlink(missing_ok=True)


@contextlib.contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yield a function of (steps done, steps in all, what comes next) that reports on stderr.

    Nothing is shown in the first two seconds; then a bar on a terminal, plain lines otherwise.
    """
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as tick:
            yield tick
    else:
        with _lines() as tick:
            yield tick


@contextlib.contextmanager
def _lines() -> Iterator[Callable[[int, int, str], None]]:
    """One line every few seconds, also during a step that takes long."""
    current = [""]
    over = threading.Event()
    start = time.monotonic()

    def tick(done: int, total: int, what: str) -> None:
        current[0] = f"step {done + 1} of {total}: {what}" if total > 1 else what

    def speak() -> None:
        pause = PATIENCE
        while not over.wait(pause):
            seconds = time.monotonic() - start
            click.echo(f"fiberscope: {current[0] or 'opening'} ({seconds:.0f} s)", err=True)
            pause = _BETWEEN_LINES

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield tick
    finally:
        over.set()
        speaker.join()


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task("opening", total=None)

    def tick(done: int, total: int, what: str) -> None:
        # A single step has no measurable progress: an unknown total lets the bar pulse.
        shown.update(task, completed=done, total=total if total > 1 else None, description=what)

    later = threading.Timer(PATIENCE, shown.start)
    later.daemon = True
    later.start()
    try:
        yield tick
    finally:
        later.cancel()
        later.join()
        shown.stop()
