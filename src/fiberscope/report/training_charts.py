"""The pictures of the training page: curves over steps, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fiberscope.report.numerals import real
from fiberscope.report.svg import PALETTE, colour, drawing, escape, line, rectangle, text
from fiberscope.report.training_run import Curve

_MOST_POINTS = 400
"""A polyline of more points cannot be seen to be one; every n-th is drawn."""
_FEWEST_DECADES = 3.0
"""Positive values that span more decades than this are drawn on a logarithmic axis."""
BAND = "#e4e7ec"


def axis_ticks(largest: float, smallest: float = 0.0, about: int = 5) -> list[float]:
    """Round numbers, also fractions, from zero or below to at least ``largest``."""
    low, high = min(0.0, smallest), max(0.0, largest)
    if not high > low:
        return [0.0, 1.0]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def curves_chart(
    curves: Sequence[Curve],
    title: str,
    *,
    width: float = 980.0,
    height: float = 250.0,
    band: tuple[float, float] | None = None,
    band_name: str = "",
    graded: bool = False,
    legend: bool = True,
) -> str:
    """Draw curves over steps, with a legend.

    Parameters
    ----------
    band
        A horizontal band ``(low, high)``: what a random direction would show.
    graded
        Colour by order (layers) instead of by name.
    """
    if not curves:
        return ""
    left, top, right = 76.0, 22.0, width - 28
    base = top + height
    first = min(curve.steps[0] for curve in curves)
    last = max(curve.steps[-1] for curve in curves)
    scale = _Scale([v for curve in curves for v in curve.values] + list(band or ()), top, base)

    def across(step: int) -> float:
        return left + (right - left) * ((step - first) / (last - first) if last > first else 0.5)

    parts = [text(4, 13, title, css="axis")]
    if band is not None:
        high, low = scale.place(band[1]), scale.place(band[0])
        parts.append(rectangle(left, high, right - left, max(low - high, 1.5), BAND, band_name))
        parts.append(text(right - 4, high - 4, band_name, "end", "axis"))
    for value in scale.ticks:
        y = scale.place(value)
        parts += [line(left, y, right, y, "grid"), text(left - 6, y + 4, _number(value), "end")]
    for step in _step_ticks(first, last, int((right - left) // 90)):
        x = across(step)
        parts += [line(x, base, x, base + 4, "rule"), text(x, base + 17, f"{step:,}", "middle")]
    parts.append(line(left, base, right, base, "rule"))
    colours = [_colour(number, len(curves), graded) for number in range(len(curves))]
    for curve, stroke in zip(curves, colours, strict=True):
        every = math.ceil(len(curve.steps) / _MOST_POINTS)
        places = list(zip(curve.steps, curve.values, strict=True))
        kept = places[::every] + ([places[-1]] if (len(places) - 1) % every else [])
        points = " ".join(f"{across(s):.1f},{scale.place(v):.1f}" for s, v in kept)
        tip = f"{curve.name}: {real(curve.values[0])} to {real(curve.last)}"
        if len(kept) > 1:
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="1.7" '
                f'stroke-linejoin="round"><title>{escape(tip)}</title></polyline>'
            )
        if len(kept) <= 30:
            parts += [
                f'<circle cx="{across(s):.1f}" cy="{scale.place(v):.1f}" r="2.2" fill="{stroke}">'
                f"<title>{escape(f'{curve.name}, step {s:,}: {real(v)}')}</title></circle>"
                for s, v in kept
            ]
    parts.append(text((left + right) / 2, base + 34, "step", "middle", "axis"))
    picture = drawing(width, base + 40, parts, title)
    return picture + (_legend(curves, colours) if legend and len(curves) > 1 else "")


class _Scale:
    """The vertical axis: linear with zero on it, or logarithmic for values that span decades."""

    def __init__(self, values: Sequence[float], top: float, base: float) -> None:
        self.top, self.base = top, base
        positive = [value for value in values if value > 0]
        largest = max(positive, default=0.0)
        smallest = min(positive, default=0.0)
        ordered = sorted(positive)
        # One tiny first value (a step from rest) does not make a linear picture unreadable.
        typical = ordered[len(ordered) // 10] if ordered else 0.0
        spread = math.log10(largest / typical) if typical else 0.0
        self.logarithmic = spread > _FEWEST_DECADES and len(positive) == len(values)
        if self.logarithmic:
            self.low = math.floor(math.log10(smallest))
            self.high = max(self.low + 1, math.ceil(math.log10(largest)))
            every = math.ceil((self.high - self.low) / 6)
            self.ticks = [10.0**power for power in range(self.low, self.high + 1, every)]
        else:
            self.ticks = axis_ticks(largest, min(values, default=0.0))

    def place(self, value: float) -> float:
        """Vertical position of a value."""
        if self.logarithmic:
            share = (math.log10(value) - self.low) / (self.high - self.low)
        else:
            share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return self.base - (self.base - self.top) * share


def _step_ticks(first: int, last: int, about: int) -> list[int]:
    if last <= first:
        return [first]
    rough = max(1.0, (last - first) / max(1, about))
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    return list(range(math.ceil(first / step) * step, last + 1, step))


def _number(value: float) -> str:
    return f"{value:.4g}" if value == 0 or 1e-4 <= abs(value) < 1e5 else f"{value:.0e}"


def _colour(number: int, of: int, graded: bool) -> str:
    if graded:
        return colour(0.25 + 0.75 * (number / (of - 1) if of > 1 else 1.0))
    return PALETTE[number % len(PALETTE)]


def _legend(curves: Sequence[Curve], colours: Sequence[str]) -> str:
    shown = list(zip(curves, colours, strict=True))
    if len(shown) > 14:  # many layers: the first, the last, and some between
        every = math.ceil(len(shown) / 7)
        shown = shown[::every] + ([shown[-1]] if (len(shown) - 1) % every else [])
    items = "".join(
        f'<li><span style="background:{stroke}"></span>{escape(curve.name)} '
        f"<em>{real(curve.last)}</em></li>"
        for curve, stroke in shown
    )
    return f'<ul class="legend">{items}</ul>'
