"""Norm gains that can be moved into the linear maps behind them."""

from __future__ import annotations

from collections.abc import Iterator

from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.wiring import Point, Wiring
from fiberscope.symmetry import ScaledSlot, Scaling, Symmetry

NORM_GAIN = "norm gain"


def gain_is_free(point: Point) -> bool:
    """Whether a norm has gains that only linear, untied maps read, so that they can take them."""
    return point.norm.gain is not None and point.only_linear and bool(point.readers)


def gain_items(wiring: Wiring) -> Iterator[Item]:
    """One gain a feature of every norm that only linear, untied maps read."""
    for point in wiring.points:
        if gain_is_free(point):
            yield _gain(point)


def _gain(point: Point) -> Item:
    def build() -> Symmetry:
        norm = point.norm
        assert norm.gain is not None
        slots = [ScaledSlot(norm.gain, 0, 1)]
        if norm.bias is not None:
            slots.append(ScaledSlot(norm.bias, 0, 1))
        slots += [
            ScaledSlot(reader.weight, len(reader.weight.shape) - 1, -1) for reader in point.readers
        ]
        return Scaling(f"{norm.label}: {NORM_GAIN}", point.width, slots)

    return Item(NORM_GAIN, point.layer, point.width, build, point.norm.label)
