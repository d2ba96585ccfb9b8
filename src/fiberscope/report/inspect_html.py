"""The report as one HTML page without external assets, and as a fragment for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

import fiberscope
from fiberscope.checkpoints.ledger import Mechanism
from fiberscope.report import evidence
from fiberscope.report.charts import conditioning_map, stacked_bars
from fiberscope.report.findings import conditioning_lines, grouped, leftover_lines
from fiberscope.report.html_parts import explained, section, styled, table, whole_page
from fiberscope.report.inspect_json import by_size, config_digest, shown_path, where
from fiberscope.report.inspection_report import InspectionReport
from fiberscope.report.mechanisms import CATALOGUE
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
from fiberscope.report.svg import escape
from fiberscope.symmetry import Kind


def page(report: InspectionReport) -> str:
    """A complete page."""
    return whole_page(f"fiberscope inspect: {shown_path(report.inspection.path)}", fragment(report))


def fragment(report: InspectionReport) -> str:
    """The report as one element with its own style, as notebooks show it."""
    sections = [
        _head(report),
        _exact(report),
        _approximate(report),
        _discrete(report.ledger.mechanisms(Kind.DISCRETE)),
        _weights(report),
        _conditions(report),
        _evidence(report),
        _notes(report.inspection.notes),
        _footer(report),
    ]
    return styled(sections)


def _head(report: InspectionReport) -> str:
    found = report.ledger
    observed = observable_words(found.observable)
    least, most = ("", "") if report.is_exact else ("at least ", "at most ")
    boxes = (
        (count(found.parameters), "parameters"),
        (most + count(found.identified), f"determined by {observed}"),
        (least + count(found.undetermined), f"without effect on {observed}"),
        (least + share(found.undetermined, found.parameters), "of the model undetermined"),
    )
    numbers = "".join(
        f"<div><b>{escape(number)}</b><span>{escape(label)}</span></div>" for number, label in boxes
    )
    warning = "" if report.is_exact else f'<p class="warning">{escape(UPPER_BOUND)}</p>'
    return (
        f"<h1>{escape(shown_path(report.inspection.path))}</h1>\n"
        f'<p class="quiet">{escape(architecture_line(report))}</p>\n'
        f"<p>{escape(headline(report))}</p>\n"
        f'<div class="numbers">{numbers}</div>{warning}'
    )


def _mechanism(mechanism: Mechanism) -> str:
    return explained(mechanism.name, CATALOGUE[mechanism.name].plain)


def _exact(report: InspectionReport) -> str:
    found = report.ledger
    rows = [
        (
            _mechanism(m),
            escape(where(m)),
            count(m.dimension),
            share(m.dimension, found.undetermined),
        )
        for m in by_size(found.mechanisms(Kind.EXACT))
    ]
    rows += [
        (
            explained(f"counted twice: {', '.join(o.between)}", f"{o.why}."),
            "",
            f"-{count(o.dimension)}",
            "",
        )
        for o in found.overlaps
    ]
    total = (
        "undetermined in all",
        f"{share(found.undetermined, found.parameters)} of the model",
        count(found.undetermined),
        share(found.undetermined, found.undetermined),
    )
    columns = (("mechanism", False), ("where", False), ("parameters", True), ("share", True))
    return section(
        f"What has no effect on {observable_words(found.observable)}",
        "Exact continuous symmetries at generic weights; parameters are counted as dimensions.",
        stacked_bars(found) + table(columns, rows, total),
    )


def _approximate(report: InspectionReport) -> str:
    mechanisms, weights = report.ledger.mechanisms(Kind.APPROXIMATE), report.inspection.weights
    if not mechanisms:
        return ""
    rows = [
        (
            explained(m.name, plain_approximate(m, weights)),
            escape(where(m)),
            count(m.dimension),
            ", ".join(f"{epsilon:g}" for epsilon in m.epsilons),
        )
        for m in mechanisms
    ]
    columns = (("mechanism", False), ("where", False), ("parameters", True), ("epsilon", True))
    return section(
        "Nearly without effect",
        approximate_sentence(weights),
        table(columns, rows),
    )


def _discrete(mechanisms: Sequence[Mechanism]) -> str:
    if not mechanisms:
        return ""
    rows = [(_mechanism(m), escape(where(m)), order(m.log10_order)) for m in mechanisms]
    total = sum(m.log10_order for m in mechanisms)
    return section(
        "Renamings and signs",
        f"Discrete symmetries: {order(total)} parameter settings that compute the same, besides "
        "the moves above.",
        table((("mechanism", False), ("where", False), ("settings", True)), rows),
    )


def _weights(report: InspectionReport) -> str:
    weights = report.inspection.weights
    slow = slow_planes_sentence(report.inspection.slow_planes)
    if weights is None:
        return section("Weights", NO_WEIGHTS, f"<p>{escape(slow)}</p>" if slow else "")
    parts = []
    if weights.exceptional:
        rows = [
            (
                explained(group.kind, f"{group.detail}."),
                escape(group.where),
                group.adds(),
            )
            for group in grouped(weights.exceptional)
        ]
        columns = (("finding", False), ("where", False), ("adds", True))
        parts.append(table(columns, rows))
        parts.append(
            '<p class="quiet">adds: parameters without effect at these weights, beyond the '
            "numbers above.</p>"
        )
    elif not slow:
        parts.append(f"<p>{escape(nothing_exceptional(weights))}</p>")
    if slow:
        parts.append(f"<p>{escape(slow)}</p>")
    exceptional = section("What is exceptional about these weights", "", "".join(parts))
    conditioning = section(
        "Condition numbers of head products",
        "Largest over smallest singular value of what the function sees of each head; large or "
        "infinite: nearly or wholly rank-deficient. Median (smallest to largest) over heads.",
        conditioning_map(weights.conditioning) + _lines(conditioning_lines(weights)),
    )
    leftovers = section(
        "What training left where nothing is determined",
        "Median (smallest to largest) over layers.",
        _lines(leftover_lines(weights)),
    )
    return f"{exceptional}\n{conditioning}\n{leftovers}"


def _lines(lines: Sequence[tuple[str, str, str]]) -> str:
    columns = (("quantity", False), ("size", False), ("reading", False))
    return table(columns, [tuple(escape(cell) for cell in row) for row in lines])


def _conditions(report: InspectionReport) -> str:
    rows = [
        (
            '<span class="good">holds</span>' if c.holds else '<span class="bad">FAILS</span>',
            escape(c.statement),
        )
        for c in sorted(report.inspection.conditions, key=lambda c: c.holds)
    ]
    return section(
        "Conditions",
        "When all hold, the numbers are exact.",
        table((("", False), ("condition", False)), rows),
    )


def _evidence(report: InspectionReport) -> str:
    rows = [
        (
            escape(name),
            f"<code>{escape(rule.statistics['mathematics'])}</code>",
            escape(rule.source),
        )
        for name, rule in evidence.rules(report.ledger)
    ]
    rules = table((("line", False), ("rule", False), ("source", False)), rows)
    checks = []
    for name, check in evidence.checks(report.ledger, report.twin):
        agrees = check.statistics["agrees"]
        mark = ("good", "agrees") if agrees else ("bad", "DISAGREES")
        checks.append(
            f'<p>{escape(name)}: <span class="{mark[0]}">{mark[1]}</span>: '
            f"{escape(check.claim)}.</p>"
        )
    below = "The rule behind each line, and what checks the rules."
    return section("Evidence", below, "".join(checks) + rules)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return section("Notes", "", "".join(f"<p>{escape(note)}</p>" for note in notes))


def _footer(report: InspectionReport) -> str:
    name = report.inspection.path.name or shown_path(report.inspection.path)
    return (
        f"<footer>fiberscope {escape(fiberscope.__version__)}; {escape(name)}; sha256 of the "
        f"configuration {config_digest(report.inspection.config)}</footer>"
    )
