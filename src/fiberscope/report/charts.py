"""The pictures of the inspection page: undetermined parameters by place, conditioning of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fiberscope.checkpoints.inspection import HeadConditioning
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.report.inspect_json import by_size, per_place
from fiberscope.report.numerals import count, real
from fiberscope.report.places import layer_of, order_of
from fiberscope.report.svg import (
    INFINITE,
    PALETTE,
    colour,
    drawing,
    escape,
    line,
    rectangle,
    short,
    text,
    ticks,
)
from fiberscope.symmetry import Kind

_WIDTH = 980.0
_LEFT = 64.0
_TOP, _HEIGHT = 14.0, 280.0


def stacked_bars(found: Ledger) -> str:
    """Undetermined parameters of every place, stacked by mechanism (overlaps counted twice).

    Layers stand in one panel; the embedding, the residual stream and the head in another with a
    scale of its own, because a rotation of the stream can be larger than all layers together.
    """
    mechanisms = by_size(found.mechanisms(Kind.EXACT))
    bars: dict[str, list[tuple[int, str, int]]] = {}
    for index, mechanism in enumerate(mechanisms):
        for place, size in per_place(mechanism).items():
            if size:
                bars.setdefault(place, []).append((index, mechanism.name, size))
    if not bars:
        return "<p>Nothing is undetermined.</p>"
    ordered = {place: bars[place] for place in sorted(bars, key=order_of)}
    layers = {place: bar for place, bar in ordered.items() if layer_of(place)}
    others = {place: bar for place, bar in ordered.items() if not layer_of(place)}
    right = 70.0 + 60.0 * len(others) if others else 0.0
    parts = []
    if layers:
        parts += _panel(layers, 0.0, _WIDTH - right, "undetermined parameters")
    if others:
        parts += _panel(others, _WIDTH - right, right, "" if layers else "undetermined parameters")
    # Slanted labels need room; numbers under an axis title need less.
    below = 48 if not others and all(map(_is_plain, layers)) else 112
    picture = drawing(_WIDTH, _TOP + _HEIGHT + below, parts, "Undetermined parameters by place")
    scales = '<p class="quiet">The two panels have scales of their own.</p>'
    legend = _legend([(mechanism.name, mechanism.dimension) for mechanism in mechanisms])
    return picture + legend + (scales if layers and others else "")


def _panel(
    bars: Mapping[str, Sequence[tuple[int, str, int]]], x0: float, width: float, title: str
) -> list[str]:
    """One panel of stacked bars with its own axis."""
    marks = ticks(max(sum(size for _, _, size in bar) for bar in bars.values()))
    left, right, base = x0 + _LEFT, x0 + width - 6, _TOP + _HEIGHT
    step = (right - left) / len(bars)
    wide = min(46.0, step * 0.82)
    parts = []
    for mark in marks:
        y = base - _HEIGHT * mark / marks[-1]
        parts += [line(left, y, right, y, "grid"), text(left - 8, y + 4, short(mark), "end")]
    if title:
        parts.append(text(x0 + 14, _TOP + _HEIGHT / 2, title, "middle", "axis", rotate=-90))
    plain = all(map(_is_plain, bars))
    every = math.ceil((22 if plain else 13) / step)
    for number, (place, bar) in enumerate(bars.items()):
        x, y = left + step * (number + 0.5), base
        for index, name, size in bar:
            tall = _HEIGHT * size / marks[-1]
            y -= tall
            tip = f"{place}: {name} {count(size)}"
            parts.append(rectangle(x - wide / 2, y, wide, tall, _colour(index), tip))
        if number % every == 0:
            if plain:
                parts.append(text(x, base + 16, place.split()[-1], "middle"))
            else:
                parts.append(text(x + 4, base + 12, place, "end", rotate=-45))
    if plain:
        parts.append(text((left + right) / 2, base + 36, "layer", "middle", "axis"))
    parts.append(line(left, base, right, base, "rule"))
    return parts


def _is_plain(place: str) -> bool:
    """Whether a place is a layer of the only stack, so that its number says it all."""
    layer = layer_of(place)
    return layer is not None and not layer[0]


def _colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    items = "".join(
        f'<li><span style="background:{_colour(index)}"></span>{escape(name)} '
        f"<em>{count(size)}</em></li>"
        for index, (name, size) in enumerate(entries)
    )
    return f'<ul class="legend">{items}</ul>'


def conditioning_map(conditioning: Sequence[HeadConditioning]) -> str:
    """Heads by layers, coloured by condition number: query/key and value/output, one log scale."""
    rows = [
        [value for value in (head.query_key or ()) + head.value_output if math.isfinite(value)]
        for head in conditioning
    ]
    finite = [value for row in rows for value in row]
    low = math.floor(math.log10(min(finite))) if finite else 0
    high = math.ceil(math.log10(max(finite))) if finite else 1
    high = max(high, low + 1)
    maps = [("value/output", [(head.label, head.value_output) for head in conditioning])]
    if any(head.query_key is not None for head in conditioning):
        pairs = [(head.label, head.query_key or ()) for head in conditioning]
        maps.insert(0, ("query/key", pairs))
    pictures = "".join(_map(name, pairs, low, high) for name, pairs in maps)
    infinite = any(
        not math.isfinite(v) for h in conditioning for v in (h.query_key or ()) + h.value_output
    )
    return f'<div class="maps">{pictures}</div>{_scale(low, high, infinite)}'


def _map(name: str, rows: Sequence[tuple[str, tuple[float, ...]]], low: int, high: int) -> str:
    heads = max(len(values) for _, values in rows)
    width, top = 478.0, 34.0
    names = [label.replace(" attention", "") for label, _ in rows]
    labels = 14 + 6.6 * max(map(len, names))
    cell = min(26.0, (width - labels - 6) / heads)
    # Many layers: lower rows, so that eighty still fit on a screen.
    tall = min(cell, 26.0, max(6.0, 560.0 / len(rows)))
    parts = [text(labels, 14, name, css="axis")]
    every = math.ceil(20 / cell)
    for head in range(0, heads, every):
        parts.append(text(labels + cell * (head + 0.5), top - 5, head, "middle"))
    every = math.ceil(12 / tall)
    for number, (label, values) in enumerate(rows):
        y = top + tall * number
        if number % every == 0:
            parts.append(text(labels - 6, y + tall / 2 + 4, names[number], "end"))
        for head, value in enumerate(values):
            fill = INFINITE
            if math.isfinite(value):
                fill = colour((math.log10(value) - low) / (high - low))
            tip = f"{label}, head {head}: {real(value)}"
            x = labels + cell * head
            parts.append(rectangle(x, y, cell, tall, fill, tip, "cell"))
    bottom = top + tall * len(rows) + 16
    parts.append(text(labels + cell * heads / 2, bottom, "head", "middle", "axis"))
    return drawing(width, bottom + 8, parts, f"Condition numbers of {name} products")


def _scale(low: int, high: int, infinite: bool) -> str:
    left, width, steps = 24.0, 300.0, 60
    parts = [text(left, 14, "largest over smallest singular value", css="axis")]
    parts += [
        rectangle(left + width * k / steps, 20, width / steps + 0.5, 14, colour(k / (steps - 1)))
        for k in range(steps)
    ]
    every = math.ceil((high - low) / 6)
    for power in range(low, high + 1, every):
        x = left + width * (power - low) / (high - low)
        label = f"{10**power:,}" if 0 <= power < 5 else f"1e{power}"
        parts += [line(x, 34, x, 38, "rule"), text(x, 50, label, "middle")]
    if infinite:
        x = left + width + 40
        parts += [rectangle(x, 20, 14, 14, INFINITE), text(x + 20, 32, "infinite")]
    return drawing(width + 180, 56, parts, "Colour scale of condition numbers")
