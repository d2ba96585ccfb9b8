"""A live table in the terminal: what the last measurements saw."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from fiberscope.training.record import Direction, Measurement, Record, Start

ROWS = 8
"""Measurements that the table keeps in sight."""


class LiveTable:
    """Shows the last measurements on standard error; rewrites itself in a terminal.

    Parameters
    ----------
    console
        A ``rich`` console; by default one on standard error.
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(file=sys.stderr)
        self._live = Live(console=self._console, auto_refresh=False)
        self._start: Start | None = None
        self._rows: deque[Measurement] = deque(maxlen=ROWS)

    def write(self, record: Record) -> None:
        """Take a record and redraw."""
        if isinstance(record, Start):
            self._start = record
            self._rows.clear()  # Shares of earlier rows go with the earlier start's entries.
            self._live.start()
            return
        self._rows.append(record)
        self._live.update(self.render(), refresh=True)

    def close(self) -> None:
        """Leave the last table standing."""
        self._live.stop()

    def render(self) -> Any:
        """The table of the last measurements, at most 100 columns wide."""
        from rich.table import Table

        start = self._start
        table = Table(
            title="Share of each step that does nothing",
            caption=None if start is None else _caption(start),
            caption_justify="left",
            title_justify="left",
            width=min(100, self._console.width),
        )
        for heading in ("step", "update", "decay", "adaptive", "gradient"):
            table.add_column(heading, justify="right")
        table.add_column("largest mechanisms of the update")
        for row in self._rows:
            table.add_row(
                str(row.step),
                _share(row.update),
                _share(row.decay),
                _share(row.adaptive),
                _share(row.gradient),
                "" if start is None else _largest(start, row),
            )
        return table


def _caption(start: Start) -> str:
    return (
        f"{start.model}, {start.observable}: {start.invisible:,} of {start.parameters:,} "
        f"directions do nothing, so a random direction has {start.expected_share:.4f} ± "
        f"{start.standard_deviation:.4f}. Mechanisms are not orthogonal: their shares need not add "
        "up."
    )


def _share(part: Direction | None) -> str:
    if part is None or part.share is None:
        return "–"
    return f"{part.share:.4f}" if part.share >= 5e-5 or part.share == 0 else f"{part.share:.0e}"


def by_mechanism(start: Start, measurement: Measurement) -> dict[str, float]:
    """Sum of the single shares of each mechanism over its places."""
    sums: dict[str, float] = {}
    for item, share in zip(start.items, measurement.item_shares, strict=True):
        sums[item.mechanism] = sums.get(item.mechanism, 0.0) + share
    return sums


def _largest(start: Start, measurement: Measurement) -> str:
    sums = by_mechanism(start, measurement)
    ranked = sorted(sums, key=lambda name: -sums[name])[:2]
    return ", ".join(f"{name} {sums[name]:.4f}" for name in ranked)
