"""Where measurements go: JSON lines, TensorBoard, or anything with the same two methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fiberscope.errors import InputError
from fiberscope.training.record import SCHEMA, Direction, Measurement, Record, Start, to_line

_FIRST_BYTES = f'{{"schema": "{SCHEMA}"'.encode()


class Writer(Protocol):
    """What a monitor writes to."""

    def write(self, record: Record) -> None:
        """Take the start of a run, or a measurement."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


class JsonLines:
    """Appends one line per record to a file, complete lines only.

    Parameters
    ----------
    path
        The file; an existing one is refused unless ``append``.
    append
        Continue an existing file (a run that is resumed writes a second start).

    Raises
    ------
    InputError
        If the file exists and is not to be continued, is no record of a run, or cannot be opened.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        if self.path.exists() and not append:
            raise InputError(
                f"{self.path} exists already; name another file, or append to it to continue a run"
            )
        try:
            self._file = open(  # noqa: SIM115 - open for the whole run
                self.path, "a+b" if append else "xb", buffering=0
            )
            if append:
                self._end_last_line()
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written: {error}; name another file"
            ) from error

    def _end_last_line(self) -> None:
        """Drop what a killed run left of its last line."""
        self._file.seek(0)
        content = self._file.read()
        if content.strip() and content[: len(_FIRST_BYTES)] != _FIRST_BYTES[: len(content)]:
            self._file.close()
            raise InputError(
                f"{self.path} is no record of a monitored run, so it is not continued; name "
                "another file"
            )
        self._file.truncate(content.rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def write(self, record: Record) -> None:
        """Write one line in one system call, so that a killed run leaves complete lines."""
        self._file.write((to_line(record) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars for TensorBoard: joint shares, shares per mechanism and layer, balances.

    Parameters
    ----------
    writer
        A directory, or a ``SummaryWriter`` (anything with ``add_scalar``), which is left open.

    Raises
    ------
    InputError
        If a directory is given and the ``tensorboard`` package is not installed.
    """

    def __init__(self, writer: Any) -> None:
        self._own = isinstance(writer, str | Path)
        if not self._own and not callable(getattr(writer, "add_scalar", None)):
            raise InputError(
                f"tensorboard is a {type(writer).__name__}; give a directory or a SummaryWriter"
            )
        self._writer = _summary_writer(writer) if self._own else writer
        self._start: Start | None = None

    def write(self, record: Record) -> None:
        """Add the scalars of a measurement."""
        if isinstance(record, Start):
            self._start = record
            return
        for tag, value in scalars(self._start, record).items():
            self._writer.add_scalar(tag, value, record.step)

    def close(self) -> None:
        """Close the event file if this writer opened it."""
        if self._own:
            self._writer.close()


def _summary_writer(directory: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "TensorBoard files need the package tensorboard; install it, or write JSON lines"
        ) from error
    return SummaryWriter(str(directory))


def scalars(start: Start | None, measurement: Measurement) -> Mapping[str, float]:
    """Names and values of what a dashboard shows of a measurement."""
    found: dict[str, float] = {}
    parts = {
        "update": measurement.update,
        "decay": measurement.decay,
        "adaptive": measurement.adaptive,
        "gradient": measurement.gradient,
    }
    for name, part in parts.items():
        if isinstance(part, Direction) and part.share is not None:
            found[f"invisible share/{name}"] = part.share
    if start is None:
        return found
    found["invisible share/random direction"] = start.expected_share

    def place(index: int) -> str:
        item = start.items[index]
        return item.mechanism if item.layer is None else f"{item.mechanism}/{item.where}"

    for index, share in enumerate(measurement.item_shares):
        found[f"share of {place(index)}"] = share
    for index, balance in zip(start.balances, measurement.balances, strict=True):
        found[f"imbalance of {place(index)}"] = balance.imbalance
    for index, drift in zip(start.dead_biases, measurement.dead_bias_drifts, strict=True):
        found[f"drift of {place(index)}"] = drift
    return found
