"""Where things are, in words: layers of a stream gathered into ranges, and one place a layer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fiberscope.checkpoints.ledger import Item
from fiberscope.checkpoints.ledger.rules import outputs, stream

EMBEDDING = "embedding"
STREAM = "residual stream"
HEAD = "final norm and head"

_LAYER = re.compile(r"(?P<stack>\w+ )?layer (?P<number>\d+)")


def layer_of(text: str) -> tuple[str, int] | None:
    """Stack (``""``, ``"encoder"``, ``"decoder"``) and number of the layer that a label names."""
    found = _LAYER.match(text)
    if found is None:
        return None
    return (found["stack"] or "").strip(), int(found["number"])


def place_of(item: Item) -> str:
    """The place of a ledger entry in a per-layer account: a layer, or one of three others."""
    layer = layer_of(item.where)
    if layer is not None:
        return f"{layer[0]} layer {layer[1]}".strip()
    if item.mechanism == stream.ROTATION:
        return STREAM
    if item.mechanism == stream.EMBEDDING_SHIFT or "embedding" in item.where.split(" (")[0].split():
        return EMBEDDING
    if item.mechanism == outputs.UNREAD and "position" in item.where:
        return EMBEDDING
    return HEAD


def order_of(place: str) -> tuple[int, str, int]:
    """Sorting key: embedding, encoder layers, decoder layers, stream, head."""
    layer = layer_of(place)
    if layer is not None:
        return (1 if layer[0] != "decoder" else 2, layer[0], layer[1])
    return ({EMBEDDING: 0, STREAM: 3, HEAD: 4}[place], "", 0)


def ranges(numbers: Iterable[int]) -> str:
    """Write sorted integers as ranges: ``0-3, 5, 7-9``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def layers_in_words(labels: Iterable[str]) -> str:
    """Gather labels: layers into ranges, one a stack, other places once each."""
    stacks: dict[str, set[int]] = {}
    others: dict[str, None] = {}
    for label in labels:
        layer = layer_of(label)
        if layer is None:
            others[label] = None
        else:
            stacks.setdefault(layer[0], set()).add(layer[1])
    words = []
    for stack, numbers in sorted(stacks.items(), reverse=True):
        plural = "layers" if len(numbers) > 1 else "layer"
        words.append(f"{stack} {plural} {ranges(numbers)}".strip())
    return ", ".join([*words, *others])
