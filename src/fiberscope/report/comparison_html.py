"""The comparison of two checkpoints as one HTML page without external assets."""

from __future__ import annotations

import math

import fiberscope
from fiberscope.checkpoints.equality.comparison import CheckpointComparison
from fiberscope.checkpoints.equality.statistic import DIFFERENT_RMS, SAME_RMS, Statistic
from fiberscope.report.comparison import mechanisms
from fiberscope.report.html_parts import section, styled, table, whole_page
from fiberscope.report.svg import drawing, escape, line, rectangle, text

WIDTH, ROW, LEFT = 860, 18, 330
MOST_ROWS = 400


def comparison_html(found: CheckpointComparison, first: str, second: str) -> str:
    """A complete page."""
    sections = [
        _head(found, first, second),
        _grounds(found),
        _witness(found),
        section(
            "Residuals after the best alignment",
            "Root mean square in roundings of the storage, logarithmic; 1 is what rounding alone "
            "leaves. The lines are the thresholds below which a circuit counts as the same and "
            "above which as different.",
            _chart(found.statistics) + _table(found.statistics),
        )
        if found.statistics
        else "",
        "".join(f"<p>{escape(note)}</p>" for note in found.notes),
        f'<p class="quiet">fiberscope {escape(fiberscope.__version__)}; numerical evidence: no '
        "statement here is a proof</p>",
    ]
    return whole_page(f"fiberscope compare: {first} and {second}", styled(sections))


def _head(found: CheckpointComparison, first: str, second: str) -> str:
    boxes = [(found.outcome.name, "verdict")]
    if (worst := found.worst) is not None:
        boxes.append((f"{worst.rms:.3g}", "largest residual, in roundings (rms)"))
    if found.distance is not None:
        boxes.append((f"{found.distance.relative:.3g}", "distance modulo symmetry, at most"))
    if found.forward_error is not None:
        boxes.append((f"{found.forward_error.relative:.1e}", "relative difference of outputs"))
    numbers = "".join(
        f"<div><b>{escape(number)}</b><span>{escape(label)}</span></div>" for number, label in boxes
    )
    return (
        f"<h1>{escape(found.outcome.name)}</h1>\n"
        f'<p class="quiet">{escape(first)} ({escape(found.formats[0])}) and {escape(second)} '
        f"({escape(found.formats[1])})</p>\n<p>{escape(found.outcome.value)} "
        f'{escape(found.reason)}.</p>\n<div class="numbers">{numbers}</div>'
    )


def _grounds(found: CheckpointComparison) -> str:
    rows = []
    if found.first_difference:
        rows.append(("first difference", found.first_difference))
    if found.explanation:
        rows.append(("explanation", found.explanation))
    if found.frame:
        rows.append(("frame of the residual stream", found.frame))
    if found.uncertainty[1]:
        rows.append(
            (
                "what the rounding allows",
                f"{found.uncertainty[0]:.1e} of the product of {found.uncertainty[1]}",
            )
        )
    if found.distance is not None:
        rows.append(
            (
                "distance",
                f"at most {found.distance.relative:.4g} of the first model's norm, in balanced "
                "frames over the compact group; against shuffled weights it is "
                f"{found.distance.shuffled:.4g}",
            )
        )
    if found.forward_error is not None:
        rows.append(
            (
                "outputs on probe inputs",
                f"differ by {found.forward_error.largest:.3e} at most "
                f"({found.forward_error.outputs:,} numbers, float64)",
            )
        )
    if not rows:
        return ""
    cells = [(escape(name), escape(value)) for name, value in rows]
    return section("Grounds", "", table((("", False), ("", False)), cells))


def _witness(found: CheckpointComparison) -> str:
    rows = [
        (
            escape(one["mechanism"]),
            str(one["places"]),
            "" if one["size"] is None else f"{one['size']:.3g}",
            "" if one["condition"] is None else f"{one['condition']:.3g}",
        )
        for one in mechanisms(found)
    ]
    if not rows:
        return ""
    columns = (("mechanism", False), ("places", True), ("size", True), ("condition", True))
    return section("What carries the first to the second", "", table(columns, rows))


def _chart(statistics: tuple[Statistic, ...]) -> str:
    """One bar a circuit, in the order of the network."""
    shown = statistics[:MOST_ROWS]
    finite = [part.rms for part in shown if 0 < part.rms < math.inf]
    low = math.floor(min([math.log10(rms) for rms in finite] + [-1.0]))
    high = math.ceil(max([math.log10(rms) for rms in finite] + [1.0]))
    height = ROW * len(shown) + 58

    def place(value: float) -> float:
        if value <= 0:
            return LEFT
        share = (min(math.log10(value), high) - low) / (high - low)
        return LEFT + max(0.0, share) * (WIDTH - LEFT - 60)

    parts = []
    last = -100.0
    for value in (1.0, SAME_RMS, DIFFERENT_RMS):
        parts.append(line(place(value), 14, place(value), height - 40, "rule"))
        if place(value) - last > 24:
            last = place(value)
            parts.append(text(last, 10, f"{value:g}", "middle"))
    for number, part in enumerate(shown):
        top = 18 + ROW * number
        parts.append(text(LEFT - 6, top + 12, part.name[:52], "end"))
        fill = "#3a7d44" if part.is_same else "#b3261e" if part.is_different else "#b58900"
        width = max(1.0, place(part.rms) - LEFT)
        parts.append(rectangle(LEFT, top + 3, width, ROW - 6, fill, f"{part.name}: {part.rms:.3g}"))
    for power in range(low, high + 1):
        parts.append(text(place(10.0**power), height - 24, f"1e{power}", "middle"))
    middle = (LEFT + WIDTH - 60) / 2
    parts.append(text(middle, height - 6, "rms of the residuals, in roundings", "middle"))
    return drawing(WIDTH, height, parts, "Residuals in roundings, one bar a circuit or tensor")


def _table(statistics: tuple[Statistic, ...]) -> str:
    columns = (
        ("circuit or tensor", False),
        ("rms", True),
        ("max", True),
        ("numbers", True),
        ("relative", True),
    )
    rows = [
        (
            escape(part.name),
            f"{part.rms:.3g}",
            f"{part.largest:.3g}",
            f"{part.count:,}",
            f"{part.relative:.1e}",
        )
        for part in statistics
    ]
    return table(columns, rows)
