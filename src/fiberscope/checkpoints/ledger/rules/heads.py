"""Changes of basis inside attention heads: queries against keys, values against outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.wiring import Point, Role, Wiring
from fiberscope.symmetry import (
    GeneralLinear,
    Kind,
    RotaryCommutant,
    ScaledSlot,
    Scaling,
    Slot,
    Symmetry,
)

QUERY_KEY = "query/key basis change"
QUERY_KEY_GAIN = "query/key gain product"
QUERY_KEY_SCALE = "scale of normalised queries and keys"
VALUE_OUTPUT = "value/output basis change"


def orbit_dimension(width: int, left: int, right: int) -> int:
    """Dimension of the GL(width)-orbit of a generic factor pair.

    Factors of shapes ``(width, left)`` and ``(width, right)``; a stabilizer appears only when the
    width exceeds both.
    """
    return width**2 - max(0, width - left) * max(0, width - right)


def query_inputs(point: Point, attention: Attention) -> int:
    """Independent inputs of one query row: directions that reach it, and a live constant."""
    constant = attention.query_bias is not None or point.norm.bias is not None
    return point.width - point.blind + int(constant)


def key_inputs(point: Point, attention: Attention, *, rotated: bool) -> int:
    """Independent inputs of one key row; an unrotated row's constant has no effect."""
    constant = attention.key_bias is not None or point.norm.bias is not None
    return point.width - point.blind + int(constant and rotated)


def unrotated_rows(attention: Attention) -> int:
    """Rows of a key that carry no position."""
    rotated = attention.rotary.rotated if attention.rotary else 0
    return attention.key_width - rotated


def attention_items(wiring: Wiring) -> Iterator[Item]:
    """Query/key and value/output changes of basis of every layer."""
    for attention in wiring.attentions:
        if attention.query_norm is None:
            yield _query_key(wiring, attention)
        else:
            yield _gain_product(attention)
            yield _query_key_scale(attention)
        yield _value_output(wiring, attention)


def _query_key(wiring: Wiring, a: Attention) -> Item:
    query, key = wiring.point_of(a, Role.QUERY), wiring.point_of(a, Role.KEY)
    free = unrotated_rows(a)
    left = a.heads_per_group * query_inputs(query, a)
    dimension = orbit_dimension(free, left, key_inputs(key, a, rotated=False))
    for planes in Counter(a.rotary.frequencies if a.rotary else ()).values():
        right = key_inputs(key, a, rotated=True)
        dimension += 2 * orbit_dimension(planes, left, right)

    def build() -> Symmetry:
        slots = [Slot(a.query, 2), Slot(a.key, 1, dual=True)]
        if a.query_bias is not None:
            slots.append(Slot(a.query_bias, 2))
        if a.key_bias is not None:
            slots.append(Slot(a.key_bias, 1, dual=True))
        name = f"{a.label}: {QUERY_KEY}"
        if a.rotary is None:
            return GeneralLinear(name, tuple(slots))
        return RotaryCommutant(name, tuple(slots), a.rotary.planes, a.rotary.frequencies)

    return Item(QUERY_KEY, a.layer, a.groups * dimension, build, a.label)


def _gain_product(a: Attention) -> Item:
    """With RMS-normalised queries and keys only the product of their two gains is seen."""
    planes = a.rotary.planes if a.rotary else ()
    coordinate = [0] * a.key_width
    for number, plane in enumerate(planes):
        for row in plane:
            coordinate[row] = number
    rotated = {row for plane in planes for row in plane}
    rest = [row for row in range(a.key_width) if row not in rotated]
    for number, row in enumerate(rest):
        coordinate[row] = len(planes) + number
    size = len(planes) + len(rest)

    def build() -> Symmetry:
        assert a.query_norm is not None and a.key_norm is not None
        assert a.query_norm.gain is not None and a.key_norm.gain is not None
        slots = (
            ScaledSlot(a.query_norm.gain, 0, 1, tuple(coordinate)),
            ScaledSlot(a.key_norm.gain, 0, -1, tuple(coordinate)),
        )
        return Scaling(f"{a.label}: {QUERY_KEY_GAIN}", size, slots)

    return Item(QUERY_KEY_GAIN, a.layer, size, build, a.label)


def _query_key_scale(a: Attention) -> Item:
    """Normalising undoes the scale of each head's queries and keys, up to epsilon."""
    assert a.query_norm is not None and a.key_norm is not None
    heads = a.groups * a.heads_per_group
    epsilons = (a.query_norm.epsilon, a.key_norm.epsilon)
    kind = Kind.APPROXIMATE if any(epsilons) else Kind.EXACT

    def build() -> Symmetry:
        query, key = tuple(range(heads)), tuple(range(heads, heads + a.groups))
        slots = [ScaledSlot(a.query, (0, 1), 1, query), ScaledSlot(a.key, 0, 1, key)]
        if a.query_bias is not None:
            slots.append(ScaledSlot(a.query_bias, (0, 1), 1, query))
        if a.key_bias is not None:
            slots.append(ScaledSlot(a.key_bias, 0, 1, key))
        return Scaling(
            f"{a.label}: {QUERY_KEY_SCALE}",
            heads + a.groups,
            slots,
            positive=True,
            kind=kind,
            broken_by=f"norm epsilon {max(epsilons):g}" if any(epsilons) else "",
        )

    return Item(
        QUERY_KEY_SCALE, a.layer, heads + a.groups, build, a.label, kind=kind, epsilons=epsilons
    )


def _value_output(wiring: Wiring, a: Attention) -> Item:
    point, segment = wiring.point_of(a, Role.VALUE), wiring.segment_of(a)
    left = point.width - point.blind
    right = a.heads_per_group * (segment.width - segment.blind)
    dimension = a.groups * orbit_dimension(a.value_width, left, right)

    def build() -> Symmetry:
        slots = [Slot(a.value, 1), Slot(a.output, 2, dual=True)]
        if a.value_bias is not None:
            slots.append(Slot(a.value_bias, 1))
        return GeneralLinear(f"{a.label}: {VALUE_OUTPUT}", tuple(slots))

    return Item(VALUE_OUTPUT, a.layer, dimension, build, a.label)
