"""Hand-made SVG: text, rectangles, ticks, and colour scales; nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

PALETTE = (
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#6cc5b0",
    "#3ca951",
    "#ff8ab7",
    "#a463f2",
    "#97bbf5",
    "#9c6b4e",
    "#9498a0",
    "#1b7f8c",
    "#c2410c",
)
"""Colours of categories, distinct also for most colour-blind readers when neighbours differ."""

_SCALE = ("#f2f0f7", "#cbc9e2", "#9e9ac8", "#756bb1", "#54278f", "#2d0a4e")
INFINITE = "#d7301f"


def escape(text: object) -> str:
    """Text for HTML and SVG, attributes included."""
    return html.escape(str(text), quote=True)


def text(
    x: float, y: float, content: object, anchor: str = "start", css: str = "", rotate: float = 0
) -> str:
    """A text element; ``anchor`` is start, middle or end."""
    turn = f' transform="rotate({rotate:g} {x:.1f} {y:.1f})"' if rotate else ""
    kind = f' class="{css}"' if css else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}{turn}>{escape(content)}</text>'
    )


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, tip: str = "", css: str = ""
) -> str:
    """A rectangle with an optional tooltip."""
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    kind = f' class="{css}"' if css else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}"{kind}>{inside}</rect>'
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def drawing(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """An SVG element as wide as its place allows, never wider than drawn."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" '
        f'role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def ticks(largest: float, about: int = 5) -> list[float]:
    """Round numbers from zero to at least ``largest``."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    # Counts of parameters are whole: no tick between two of them.
    step = max(step, 1.0)
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def short(number: float) -> str:
    """An axis number: 1.5M, 200k."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.4g}{letter}"
    return f"{number:.4g}"


def colour(position: float) -> str:
    """Colour at a position from 0 (pale) to 1 (dark) of a sequential scale."""
    place = min(1.0, max(0.0, position)) * (len(_SCALE) - 1)
    low = min(int(place), len(_SCALE) - 2)
    parts = []
    for offset in (1, 3, 5):
        first = int(_SCALE[low][offset : offset + 2], 16)
        second = int(_SCALE[low + 1][offset : offset + 2], 16)
        parts.append(round(first + (second - first) * (place - low)))
    return f"#{parts[0]:02x}{parts[1]:02x}{parts[2]:02x}"
