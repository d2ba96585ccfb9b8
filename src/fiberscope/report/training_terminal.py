"""A monitored run in a terminal: at most 100 columns."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fiberscope.report.numerals import real
from fiberscope.report.training_run import Curve, Distances, TrainingRun
from fiberscope.report.training_sentences import headline, percent, run_line, self_check

_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 24


def to_text(run: TrainingRun, width: int = 100) -> str:
    """The report as plain text."""
    stream = io.StringIO()
    render(run, Console(file=stream, width=width, color_system=None, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def render(run: TrainingRun, console: Console) -> None:
    """Print the whole report."""
    console.print(Text(str(run.path), style="bold"))
    console.print(Text(run_line(run)))
    console.print()
    console.print(Text(headline(run), style="bold"))
    _title("Invisible share of the updates", console)
    table = _table(
        ("part", False),
        ("first", True),
        ("last", True),
        ("of the whole", True),
        ("along", True),
        ("across", True),
        ("over the run", False),
    )
    _part(table, "update", run.joint, run.update)
    _part(table, "weight decay", run.decay, run.decayed)
    if run.decay is not None:
        _part(table, "the rest", run.adaptive, run.adapted)
    expected, deviation = run.start.expected_share, run.start.standard_deviation
    table.add_row(
        Text("a random direction", style="dim"),
        "",
        "",
        f"{percent(expected)} ± {percent(deviation)}",
    )
    console.print(table)
    console.print(Text(self_check(run), style="dim"))
    _title("By mechanism", console)
    table = _table(
        ("mechanism", False),
        ("places", True),
        ("first", True),
        ("last", True),
        ("mean", True),
        ("over the run", False),
    )
    for m in run.mechanisms:
        curve = m.together
        table.add_row(
            m.name,
            str(len(m.places)),
            percent(curve.values[0]),
            percent(curve.last),
            percent(curve.mean),
            spark(curve.values),
        )
    console.print(table)
    if run.imbalances:
        _title("Imbalance", console)
        table = _table(
            ("mechanism", False), ("first", True), ("last", True), ("over the run", False)
        )
        for name, curve in _by_mechanism(run.imbalances).items():
            table.add_row(name, real(curve.values[0]), real(curve.last), spark(curve.values))
        console.print(table)
        console.print(Text("mean over layers", style="dim"))
    if run.losses is not None:
        console.print()
        console.print(
            Text(f"loss {real(run.losses.values[0])} to {real(run.losses.last)}  ")
            + Text(spark(run.losses.values))
        )
    _title("Notes", console)
    for note in run.notes:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("-", Text(note))
        console.print(grid)


def spark(values: Sequence[float], width: int = _SPARK) -> str:
    """A row of bars from zero to the largest value; each bar is the mean of its part."""
    largest = max(values, default=0.0)
    if not largest > 0:
        return ""
    count = min(width, len(values))
    parts = [
        values[k * len(values) // count : (k + 1) * len(values) // count] for k in range(count)
    ]
    means = [max(0.0, sum(part) / len(part)) for part in parts]
    return "".join(_BARS[min(7, int(8 * mean / largest))] for mean in means)


def _by_mechanism(curves: Sequence[Curve]) -> dict[str, Curve]:
    """Mean over places of every mechanism."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.name.rpartition(": ")[2], []).append(curve)
    found = {}
    for name, together in groups.items():
        sums: dict[int, list[float]] = {}
        for curve in together:
            for step, value in zip(curve.steps, curve.values, strict=True):
                sums.setdefault(step, []).append(value)
        steps = sorted(sums)
        means = tuple(sum(sums[step]) / len(sums[step]) for step in steps)
        found[name] = Curve(name, tuple(steps), means)
    return found


def _part(table: Table, name: str, curve: Curve | None, total: Distances | None) -> None:
    if curve is None or total is None:
        return
    table.add_row(
        name,
        percent(curve.values[0]),
        percent(curve.last),
        percent(total.wasted),
        real(total.along),
        real(total.across),
        spark(curve.values),
    )


def _title(title: str, console: Console) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for heading, numeric in columns:
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric)
    return table
