"""A monitored run as one HTML page without external assets."""

from __future__ import annotations

from collections.abc import Sequence

import fiberscope
from fiberscope.report.html_parts import section, styled, table, whole_page
from fiberscope.report.mechanisms import CATALOGUE
from fiberscope.report.numerals import count, real
from fiberscope.report.places import layer_of
from fiberscope.report.svg import PALETTE, escape
from fiberscope.report.training_charts import curves_chart
from fiberscope.report.training_run import Curve, Distances, TrainingRun
from fiberscope.report.training_sentences import (
    ALONG_ACROSS,
    DEAD_BIASES,
    IMBALANCES,
    JOINT,
    PLACES,
    headline,
    percent,
    run_line,
    self_check,
)

_PANEL = 480.0


def page(run: TrainingRun) -> str:
    """A complete page."""
    return whole_page(f"fiberscope training report: {run.path.name}", fragment(run))


def fragment(run: TrainingRun) -> str:
    """The report as one element with its own style, as notebooks show it."""
    return styled(
        [
            _head(run),
            _joint(run),
            _mechanisms(run),
            _places(run),
            _paths(run),
            _imbalances(run),
            _dead_biases(run),
            _loss(run),
            _notes(run),
            f"<footer>fiberscope {escape(fiberscope.__version__)}; {escape(run.path.name)}; "
            f"{count(len(run.measurements))} measured steps</footer>",
        ]
    )


def _head(run: TrainingRun) -> str:
    boxes = (
        (percent(run.update.wasted), "of the squared length of the updates was invisible"),
        (percent(run.start.expected_share), "of a random direction is"),
        (real(run.update.along), "moved along fibers"),
        (real(run.update.across), "moved across fibers"),
    )
    numbers = "".join(
        f"<div><b>{escape(number)}</b><span>{escape(label)}</span></div>" for number, label in boxes
    )
    return (
        f"<h1>{escape(run.path.name)}</h1>\n"
        f'<p class="quiet">{escape(run_line(run))}</p>\n<p>{escape(headline(run))}</p>\n'
        f'<div class="numbers">{numbers}</div>'
    )


def _joint(run: TrainingRun) -> str:
    curves = [run.joint]
    # Where nothing is decoupled the adaptive part is the update itself.
    if run.decay is not None:
        curves += [c for c in (run.decay, run.adaptive) if c is not None]
    expected, deviation = run.start.expected_share, run.start.standard_deviation
    chart = curves_chart(
        curves,
        "invisible share",
        band=(max(0.0, expected - deviation), expected + deviation),
        band_name="a random direction, one standard deviation",
    )
    rows = [
        _part_row("update", run.joint, run.update),
        _part_row("weight decay", run.decay, run.decayed),
        _part_row("the rest", run.adaptive, run.adapted),
    ]
    columns = (
        ("part", False),
        ("first", True),
        ("last", True),
        ("largest", True),
        ("of the whole", True),
        ("along fibers", True),
        ("across", True),
    )
    under = table(columns, [row for row in rows if row])
    check = f'<p class="quiet">{escape(self_check(run))}</p>'
    return section("Invisible share of the updates", JOINT, chart + under + check)


def _part_row(name: str, curve: Curve | None, total: Distances | None) -> Sequence[str]:
    if curve is None or total is None:
        return ()
    shares = (curve.values[0], curve.last, curve.largest, total.wasted)
    return (
        escape(name),
        *(percent(share) for share in shares),
        real(total.along),
        real(total.across),
    )


def _mechanisms(run: TrainingRun) -> str:
    shown = [m.together for m in run.mechanisms if m.together.largest > 0]
    rows = [
        (
            f"{escape(m.name)}<small>{escape(_plain(m.name))}</small>",
            count(len(m.places)),
            percent(m.together.values[0]),
            percent(m.together.last),
            percent(m.together.mean),
        )
        for m in run.mechanisms
    ]
    columns = (
        ("mechanism", False),
        ("places", True),
        ("first", True),
        ("last", True),
        ("mean", True),
    )
    chart = curves_chart(shown, "share of the update, all places of a mechanism together")
    below = "Share of the update along each mechanism alone; see the notes on why they do not add."
    return section("By mechanism", below, chart + table(columns, rows))


def _plain(name: str) -> str:
    entry = CATALOGUE.get(name)
    return entry.plain if entry is not None else ""


def _places(run: TrainingRun) -> str:
    panels = [
        f"<div>{_panel(mechanism.name, mechanism.places)}</div>"
        for mechanism in run.mechanisms
        if len(mechanism.places) > 1 and mechanism.together.largest > 0
    ]
    if not panels:
        return ""
    return section("By layer", PLACES, f'<div class="maps">{"".join(panels)}</div>')


def _panel(name: str, curves: Sequence[Curve]) -> str:
    layers = all(layer_of(curve.name) is not None for curve in curves)
    many = len(curves) > len(PALETTE)
    return curves_chart(curves, name, width=_PANEL, height=150.0, graded=layers or many)


def _paths(run: TrainingRun) -> str:
    chart = curves_chart([run.along, run.across], "distance moved, added up")
    return section("Along fibers and across them", ALONG_ACROSS, chart)


def _imbalances(run: TrainingRun) -> str:
    groups: dict[str, list[Curve]] = {}
    for curve in run.imbalances:
        place, _, mechanism = curve.name.rpartition(": ")
        groups.setdefault(mechanism, []).append(Curve(place, curve.steps, curve.values))
    panels = "".join(f"<div>{_panel(name, curves)}</div>" for name, curves in groups.items())
    if not panels:
        return ""
    return section("Imbalance", IMBALANCES, f'<div class="maps">{panels}</div>')


def _dead_biases(run: TrainingRun) -> str:
    if not run.dead_biases:
        return ""
    return section(
        "Drift of biases without effect",
        DEAD_BIASES,
        curves_chart(run.dead_biases, "root mean square of the drift", height=150.0, graded=True),
    )


def _loss(run: TrainingRun) -> str:
    if run.losses is None:
        return ""
    return section("Loss", "As told to the monitor.", curves_chart([run.losses], "loss"))


def _notes(run: TrainingRun) -> str:
    return section("Notes", "", "".join(f"<p>{escape(note)}</p>" for note in run.notes))
