"""Discrete symmetries: permutations, and the components of the continuous groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lgamma, log, log10

from fiberscope.checkpoints.architecture.program import (
    Activation,
    Attention,
    Mlp,
    NormKind,
)
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.rules import heads, mlp, norms, stream
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index
from fiberscope.checkpoints.ledger.wiring import StreamGroup, Wiring
from fiberscope.parameters import View
from fiberscope.symmetry import (
    Kind,
    Permutation,
    QuarterTurn,
    ScaledSlot,
    SignFlip,
    Slot,
    Symmetry,
)

GROUP_PERMUTATION = "permutation of key/value groups"
HEAD_PERMUTATION = "permutation of query heads in a group"
NEURON_PERMUTATION = "permutation of neurons"
COMPONENTS = "components of continuous groups"
ODD_SIGNS = "signs in front of odd activations"
ROW_SIGNS = "signs of query and key rows and their gains"
QUARTER_TURNS = "quarter turns of normalised planes"
HALF_TURNS = "half turns of normalised planes in one group"
COORDINATE_PERMUTATION = "permutation of residual coordinates"
COORDINATE_SIGNS = "signs of residual coordinates"
GLOBAL_SIGN = "sign of the whole residual stream"


def log10_factorial(n: int) -> float:
    """``log10(n!)``."""
    return lgamma(n + 1) / log(10)


def discrete_items(wiring: Wiring, continuous: list[Item]) -> Iterator[Item]:
    """All discrete symmetries; the continuous items tell how many components their groups have."""
    for sharing in sharing_positions(wiring.attentions):
        yield from _heads(sharing)
    for attention in wiring.attentions:
        if attention.query_norm is not None and attention.key_norm is not None:
            yield from _normalised(attention)
    for layer in wiring.mlps:
        yield _neurons(layer)
        if layer.activation is Activation.ODD:
            yield _odd(layer)
    yield from _head(wiring)
    yield from _components(wiring, continuous)
    for group in wiring.stream_groups:
        yield from _coordinates(wiring, group, continuous)


def _item(mechanism: str, layer: int | None, order: float, build: object, where: str) -> Item:
    return Item(
        mechanism,
        layer,
        0,
        build,  # type: ignore[arg-type]
        where,
        kind=Kind.DISCRETE,
        log10_order=order,
    )


def sharing_positions(attentions: Sequence[Attention]) -> list[tuple[Attention, ...]]:
    """Attentions gathered by the position table that their heads' scores read, the owner first.

    The heads of all layers that add one table are named by its columns; those without a table
    stand alone.
    """
    gathered: list[list[Attention]] = []
    owner: list[Attention] | None = None
    for attention in attentions:
        if attention.position_table is not None:
            owner = [attention]
            gathered.append(owner)
        elif attention.relative_positions is not None and owner is not None:
            owner.append(attention)
        else:
            gathered.append([attention])
    return [tuple(sharing) for sharing in gathered]


def sharing_place(sharing: tuple[Attention, ...]) -> str:
    """The place of attentions whose heads can only be permuted together, in words."""
    label = sharing[0].label
    return label if len(sharing) == 1 else f"{label} and all that share its positions"


def _heads(sharing: tuple[Attention, ...]) -> Iterator[Item]:
    a = sharing[0]
    layer = a.layer if len(sharing) == 1 else None
    where = sharing_place(sharing)
    views: list[View | None] = []
    for each in sharing:
        views += [each.query, each.key, each.value, each.output]
        views += [each.query_bias, each.key_bias, each.value_bias]

    def groups() -> Symmetry:
        slots = [Slot(view, 0) for view in views if view is not None]
        if a.position_table is not None:
            slots.append(Slot(a.position_table, 1))
        return Permutation(f"{where}: {GROUP_PERMUTATION}", a.groups, slots)

    def inside() -> Symmetry:
        slots = [Slot(view, 1) for view in (a.query, a.output, a.query_bias) if view is not None]
        return Permutation(
            f"{a.label}: {HEAD_PERMUTATION}", a.heads_per_group, slots, copies=a.groups
        )

    if a.groups > 1:
        order = log10_factorial(a.groups)
        yield _item(GROUP_PERMUTATION, layer, order, groups, where)
    if a.heads_per_group > 1 and a.position_table is None:
        order = a.groups * log10_factorial(a.heads_per_group)
        yield _item(HEAD_PERMUTATION, a.layer, order, inside, a.label)


def _normalised(a: Attention) -> Iterator[Item]:
    """Queries and keys behind norms of their own: signs, and turns that keep or exchange gains.

    A row of all queries (or all keys) changes sign with its gain; a plane of all queries and keys
    turns by a quarter and its gains change places; a plane of one group's queries and keys turns by
    a half. A half turn in all groups is a quarter turn twice (and one of signs), so the order
    counts it once.
    """
    assert a.query_norm is not None and a.key_norm is not None
    gains = a.query_norm.gain, a.key_norm.gain
    width = a.key_width
    planes = tuple(a.rotary.planes) if a.rotary else ()
    units = [*planes, *((row,) for row in unrotated_index(a).tolist())]
    queries = [view for view in (a.query, a.query_bias) if view is not None]
    keys = [view for view in (a.key, a.key_bias) if view is not None]

    def signs() -> Symmetry:
        slots = []
        sides = ((queries, 2, gains[0], 0), (keys, 1, gains[1], width))
        for views, axis, gain, start in sides:
            numbers = tuple(range(start, start + width))
            slots += [ScaledSlot(view, axis, 1, numbers) for view in views]
            if gain is not None:
                slots.append(ScaledSlot(gain, 0, 1, numbers))
        return SignFlip(f"{a.label}: {ROW_SIGNS}", 2 * width, slots)

    def quarters() -> Symmetry:
        rows = [Slot(view, 2) for view in queries] + [Slot(view, 1) for view in keys]
        turned = [Slot(gain, 0) for gain in gains if gain is not None]
        return QuarterTurn(f"{a.label}: {QUARTER_TURNS}", planes, rows, turned)

    def halves() -> Symmetry:
        unit = {row: number for number, rows in enumerate(units) for row in rows}
        numbers = tuple(g * len(units) + unit[r] for g in range(a.groups) for r in range(width))
        slots = [ScaledSlot(view, (0, 2), 1, numbers) for view in queries]
        slots += [ScaledSlot(view, (0, 1), 1, numbers) for view in keys]
        return SignFlip(f"{a.label}: {HALF_TURNS}", a.groups * len(units), slots)

    two = log10(2)
    if all(gain is not None for gain in gains):
        yield _item(ROW_SIGNS, a.layer, 2 * width * two, signs, a.label)
    if planes:
        yield _item(QUARTER_TURNS, a.layer, len(planes) * two, quarters, a.label)
    if a.groups > 1:
        yield _item(HALF_TURNS, a.layer, (a.groups - 1) * len(units) * two, halves, a.label)


def _neurons(m: Mlp) -> Item:
    def build() -> Symmetry:
        rows = [m.up, m.up_bias, m.gate, m.gate_bias]
        slots = [Slot(view, 0) for view in rows if view is not None]
        slots.append(Slot(m.down, 1))
        return Permutation(f"{m.label}: {NEURON_PERMUTATION}", m.neurons, slots)

    return _item(NEURON_PERMUTATION, m.layer, log10_factorial(m.neurons), build, m.label)


def _odd(m: Mlp) -> Item:
    """An odd activation passes a sign on to the down projection."""

    def build() -> Symmetry:
        rows = (m.gate, m.gate_bias) if m.gate is not None else (m.up, m.up_bias)
        slots = [ScaledSlot(view, 0) for view in rows if view is not None]
        slots.append(ScaledSlot(m.down, 1))
        return SignFlip(f"{m.label}: {ODD_SIGNS}", m.neurons, slots)

    return _item(ODD_SIGNS, m.layer, m.neurons * log10(2), build, m.label)


def _head(wiring: Wiring) -> Iterator[Item]:
    """Units of a dense layer in the head, unless a tied table fixes their order."""
    head = wiring.head
    if head is None or head.dense is None or (head.norm is not None and wiring.tied):
        return
    dense, norm = head.dense, head.norm
    units = dense.weight.shape[0]

    def permute() -> Symmetry:
        slots = [Slot(dense.weight, 0), Slot(head.output, 1)]
        views = [dense.bias, norm.gain if norm else None, norm.bias if norm else None]
        slots += [Slot(view, 0) for view in views if view is not None]
        return Permutation(f"{dense.label}: {NEURON_PERMUTATION}", units, slots)

    def flip() -> Symmetry:
        slots = [ScaledSlot(dense.weight, 0), ScaledSlot(head.output, 1)]
        if dense.bias is not None:
            slots.append(ScaledSlot(dense.bias, 0))
        return SignFlip(f"{dense.label}: {ODD_SIGNS}", units, slots)

    yield _item(NEURON_PERMUTATION, None, log10_factorial(units), permute, dense.label)
    if dense.activation is Activation.ODD and norm is None:
        yield _item(ODD_SIGNS, None, units * log10(2), flip, dense.label)


def _components(wiring: Wiring, continuous: list[Item]) -> Iterator[Item]:
    """GL(n) and O(n) have two components, every nonzero real factor has two signs."""
    signed = {norms.NORM_GAIN, mlp.GATED, heads.QUERY_KEY_GAIN}
    by_layer: dict[int | None, float] = {}
    for item in continuous:
        order = 0.0
        if item.mechanism in signed:
            order = item.dimension * log10(2)
        elif item.mechanism == stream.ROTATION:
            order = log10(2)
        by_layer[item.layer] = by_layer.get(item.layer, 0.0) + order
    for attention in wiring.attentions:
        matrices = 1 + (attention.query_norm is None and heads.unrotated_rows(attention) > 0)
        order = attention.groups * matrices * log10(2)
        by_layer[attention.layer] = by_layer.get(attention.layer, 0.0) + order
    for layer, order in by_layer.items():
        if order:
            where = "model" if layer is None else f"layer {layer}"
            yield _item(COMPONENTS, layer, order, None, where)


def _coordinates(wiring: Wiring, group: StreamGroup, continuous: list[Item]) -> Iterator[Item]:
    """Residual coordinates can be renamed where no rotation contains the renaming."""
    if any(item.mechanism == stream.ROTATION for item in continuous):
        return
    names = {id(norm) for segment in group.segments for norm in segment.readers}
    points = [point for point in wiring.points if id(point.norm) in names]
    if any(point.observed for point in points):
        return
    width = group.segments[0].width
    kinds = {point.norm.kind for point in points}
    places: dict[tuple[View, int], Slot] = {}
    for segment in group.segments:
        for writer in segment.writers:
            places[writer.view, writer.axis] = Slot(writer.view, writer.axis)
    for point in points:
        for reader in point.readers:
            if not reader.tied:
                axis = len(reader.weight.shape) - 1
                places[reader.weight, axis] = Slot(reader.weight, axis)
    if any(writer.tied for segment in group.segments for writer in segment.writers):
        for view in wiring.output_only:
            places[view, len(view.shape) - 1] = Slot(view, len(view.shape) - 1)
    turned = list(places.values())
    biases = [point.norm.bias for point in points if point.norm.bias is not None]
    gains = [point.norm.gain for point in points if point.norm.gain is not None]
    # A tied table is read behind the head's dense layer: its columns name that layer's units too.
    transform = _transform(wiring, group)

    def permute() -> Symmetry:
        moved = [*turned, *(Slot(view, 0) for view in [*gains, *biases, *transform])]
        return Permutation(COORDINATE_PERMUTATION, width, moved)

    def coordinate_signs() -> Symmetry:
        moved = [ScaledSlot(slot.view, slot.axis) for slot in turned]
        return SignFlip(COORDINATE_SIGNS, width, moved)

    def global_sign() -> Symmetry:
        one = (0,)
        views = [slot.view for slot in turned] + biases
        if transform and wiring.head is not None and wiring.head.norm is not None:
            norm = wiring.head.norm
            views += [view for view in (norm.gain, norm.bias) if view is not None]
        return SignFlip(GLOBAL_SIGN, 1, [ScaledSlot(view, (), 1, one) for view in views])

    where = " and ".join(item.label for item in group.streams)
    yield _item(COORDINATE_PERMUTATION, None, log10_factorial(width), permute, where)
    if kinds == {NormKind.RMS} and not transform:
        yield _item(COORDINATE_SIGNS, None, width * log10(2), coordinate_signs, where)
    else:
        yield _item(GLOBAL_SIGN, None, log10(2), global_sign, where)


def _transform(wiring: Wiring, group: StreamGroup) -> list[View]:
    """The head's dense rows, bias and norm, when a tied table is read behind them."""
    head = wiring.head
    tied = any(writer.tied for segment in group.segments for writer in segment.writers)
    if not tied or head is None or head.dense is None or head.norm is None:
        return []
    views = [head.dense.weight, head.dense.bias, head.norm.gain, head.norm.bias]
    return [view for view in views if view is not None]
