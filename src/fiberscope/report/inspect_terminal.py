"""The report in a terminal: at most 100 columns, for someone who sees it for the first time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fiberscope.checkpoints.ledger import Mechanism
from fiberscope.report import evidence
from fiberscope.report.findings import conditioning_lines, grouped, leftover_lines
from fiberscope.report.inspect_json import by_size, shown_path, where
from fiberscope.report.inspection_report import InspectionReport
from fiberscope.report.mechanisms import CATALOGUE, ELEMENTARY
from fiberscope.report.numerals import count, order, share
from fiberscope.report.sentences import (
    NO_WEIGHTS,
    UPPER_BOUND,
    approximate_sentence,
    architecture_line,
    headline,
    nothing_exceptional,
    observable_words,
    plain_approximate,
    slow_planes_sentence,
)
from fiberscope.symmetry import Kind

_GOOD, _BAD, _QUIET, _STRONG = "green", "bold red", "dim", "bold"


def to_text(report: InspectionReport, width: int = 100) -> str:
    """The report as plain text."""
    stream = io.StringIO()
    render(report, Console(file=stream, width=width, color_system=None, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def render(report: InspectionReport, console: Console) -> None:
    """Print the whole report."""
    inspection, found = report.inspection, report.ledger
    console.print(Text(shown_path(inspection.path), style=_STRONG))
    console.print(Text(architecture_line(report)))
    console.print()
    console.print(Text(headline(report), style=_STRONG))
    if not report.is_exact:
        console.print(Text(UPPER_BOUND, style=_BAD))
    _exact(report, console)
    _approximate(report, console)
    _discrete(found.mechanisms(Kind.DISCRETE), console)
    _weights(report, console)
    _conditions(report, console)
    _evidence(report, console)
    if inspection.notes:
        _title("Notes", console)
        _bullets(inspection.notes, console)


def _title(text: str, console: Console, below: str = "") -> None:
    console.print()
    console.print(Text(text, style="bold cyan"))
    if below:
        console.print(Text(below, style=_QUIET))


def _table(*columns: tuple[str, bool]) -> Table:
    """Columns of (heading, whether numbers stand in it)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style=_STRONG)
    for heading, numeric in columns:
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            no_wrap=numeric,
            overflow="fold",
        )
    return table


def _bullets(sentences: Iterable[str], console: Console, style: str = "") -> None:
    for sentence in sentences:
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("-", Text(sentence, style=style))
        console.print(table)


def _exact(report: InspectionReport, console: Console) -> None:
    found = report.ledger
    _title(
        f"What has no effect on {observable_words(found.observable)}",
        console,
        "Exact continuous symmetries at generic weights; parameters are counted as dimensions.",
    )
    table = _table(("parameters", True), ("share", True), ("mechanism", False), ("where", False))
    for mechanism in by_size(found.mechanisms(Kind.EXACT)):
        table.add_row(
            count(mechanism.dimension),
            share(mechanism.dimension, found.undetermined),
            _explained(mechanism),
            Text(where(mechanism)),
        )
    for overlap in found.overlaps:
        table.add_row(
            f"-{count(overlap.dimension)}",
            "",
            _two_lines(f"counted twice: {', '.join(overlap.between)}", f"{overlap.why}."),
            "",
        )
    table.add_section()
    table.add_row(
        Text(count(found.undetermined), style=_STRONG),
        share(found.undetermined, found.undetermined),
        Text("undetermined in all", style=_STRONG),
        Text(f"{share(found.undetermined, found.parameters)} of the model"),
    )
    console.print(table)


def _two_lines(first: str, second: str) -> Text:
    return Text.assemble(first, "\n", (second, _QUIET))


def _explained(mechanism: Mechanism) -> Text:
    return _two_lines(mechanism.name, CATALOGUE[mechanism.name].plain)


def _approximate(report: InspectionReport, console: Console) -> None:
    mechanisms = report.ledger.mechanisms(Kind.APPROXIMATE)
    if not mechanisms:
        return
    _title("Nearly without effect", console, approximate_sentence(report.inspection.weights))
    table = _table(("parameters", True), ("epsilon", True), ("mechanism", False), ("where", False))
    for mechanism in mechanisms:
        table.add_row(
            count(mechanism.dimension),
            ", ".join(f"{epsilon:g}" for epsilon in mechanism.epsilons),
            _two_lines(mechanism.name, plain_approximate(mechanism, report.inspection.weights)),
            Text(where(mechanism)),
        )
    console.print(table)


def _discrete(mechanisms: Sequence[Mechanism], console: Console) -> None:
    if not mechanisms:
        return
    total = sum(mechanism.log10_order for mechanism in mechanisms)
    _title(
        "Renamings and signs",
        console,
        f"Discrete symmetries: {order(total)} parameter settings that compute the same, "
        "besides the moves above.",
    )
    table = _table(("settings", True), ("mechanism", False), ("where", False))
    for mechanism in mechanisms:
        table.add_row(order(mechanism.log10_order), _explained(mechanism), Text(where(mechanism)))
    console.print(table)


def _weights(report: InspectionReport, console: Console) -> None:
    weights = report.inspection.weights
    slow = slow_planes_sentence(report.inspection.slow_planes)
    if weights is None:
        _title("Weights", console)
        _bullets([NO_WEIGHTS, slow] if slow else [NO_WEIGHTS], console)
        return
    _title("What is exceptional about these weights", console)
    if not weights.exceptional and not slow:
        console.print(Text(nothing_exceptional(weights)))
    if weights.exceptional:
        table = _table(("adds", True), ("finding", False), ("where", False))
        for group in grouped(weights.exceptional):
            table.add_row(
                group.adds(),
                _two_lines(group.kind, f"{group.detail}."),
                Text(group.where),
            )
        console.print(table)
        note = "adds: parameters without effect at these weights, beyond the numbers above."
        console.print(Text(note, style=_QUIET))
    if slow:
        _bullets([slow], console)
    _three_columns(
        "Condition numbers of head products",
        "Largest over smallest singular value; median (smallest to largest) over heads.",
        conditioning_lines(weights),
        console,
    )
    _three_columns(
        "What training left where nothing is determined",
        "Median (smallest to largest) over layers.",
        leftover_lines(weights),
        console,
    )


def _three_columns(
    title: str, below: str, lines: Sequence[tuple[str, str, str]], console: Console
) -> None:
    if not lines:
        return
    _title(title, console, below)
    table = Table.grid(padding=(0, 3))
    for _ in range(3):
        table.add_column(overflow="fold")
    for what, size, reading in lines:
        table.add_row(Text(what), Text(size), Text(reading, style=_QUIET))
    console.print(table)


def _conditions(report: InspectionReport, console: Console) -> None:
    _title("Conditions", console, "When all hold, the numbers are exact.")
    for condition in sorted(report.inspection.conditions, key=lambda c: c.holds):
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, width=5)
        table.add_column(overflow="fold")
        mark = Text("holds", style=_GOOD) if condition.holds else Text("FAILS", style=_BAD)
        table.add_row(mark, Text(condition.statement))
        console.print(table)


def _evidence(report: InspectionReport, console: Console) -> None:
    _title(
        "Evidence",
        console,
        "The rule behind each line. Where no source is named it is elementary; all of them are "
        "checked against toy models of the published classes.",
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=30)
    table.add_column(overflow="fold")
    for name, rule in evidence.rules(report.ledger):
        text = Text(rule.statistics["mathematics"])
        if rule.source != ELEMENTARY:
            text.append(f" [{rule.source}]", style=_QUIET)
        table.add_row(Text(name), text)
    for name, check in evidence.checks(report.ledger, report.twin):
        agrees = check.statistics["agrees"]
        mark = ("agrees: ", _GOOD) if agrees else ("DISAGREES: ", _BAD)
        table.add_row(Text(name, style=_STRONG), Text.assemble(mark, check.claim, "."))
    console.print(table)
    if report.twin is None:
        note = "To measure a toy of this class against the rules on the spot: --verify"
        console.print(Text(note, style=_QUIET))
