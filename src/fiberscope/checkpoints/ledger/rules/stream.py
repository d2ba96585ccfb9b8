"""The residual stream: rotations, writes that nobody reads, shifts between tables, its scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import NormKind
from fiberscope.checkpoints.ledger.item import Item, Overlap
from fiberscope.checkpoints.ledger.rules import shift_terms
from fiberscope.checkpoints.ledger.rules.constants import ALONG_ONES
from fiberscope.checkpoints.ledger.wiring import Point, Segment, StreamGroup, Wiring, Writer
from fiberscope.parameters import View
from fiberscope.symmetry import (
    Kind,
    NormReaders,
    ResidualRotation,
    ScaledSlot,
    Scaling,
    Slot,
    Symmetry,
    Translation,
    ones_complement,
)

ROTATION = "residual rotation"
EMBEDDING_SHIFT = "embedding shift"
STREAM_SCALE = "scale of a normalised sum"

Arrays = dict[str, NDArray[Any]]


def stream_items(wiring: Wiring) -> Iterator[Item]:
    """All rules of the streams."""
    for group in wiring.stream_groups:
        if (item := _rotation(wiring, group)) is not None:
            yield item
        yield from _scales(wiring, group)
    for segment in wiring.segments:
        if segment.blind:
            yield from _along_ones(segment)
        yield from _shifts(segment, wiring)


def stream_overlaps(wiring: Wiring) -> Iterator[Overlap]:
    """Shifts between tables along the ones vector are also writes along 1."""
    shared = sum(
        segment.blind * max(0, len(free) - 1)
        for segment in wiring.segments
        for free in _free_sums(segment, wiring)
    )
    if shared:
        yield Overlap(
            (EMBEDDING_SHIFT, ALONG_ONES),
            shared,
            "moving the ones vector from one table to another is also writes along 1 in both",
        )


def _rotation(wiring: Wiring, group: StreamGroup) -> Item | None:
    kinds = {norm.kind for segment in group.segments for norm in segment.readers}
    if not group.pre_norm or len(kinds) != 1:
        return None
    norms = {id(norm) for segment in group.segments for norm in segment.readers}
    points = [point for point in wiring.points if id(point.norm) in norms]
    if any(not point.only_linear for point in points):
        return None
    if any(writer.tied for segment in group.segments for writer in segment.writers):
        return None
    width = group.segments[0].width
    turning = width if kinds == {NormKind.RMS} else width - 1

    def build() -> Symmetry:
        basis = np.eye(width) if turning == width else ones_complement(width)
        writers = _unique_slots(writer for segment in group.segments for writer in segment.writers)
        readers = [
            NormReaders(
                point.norm.gain,
                point.norm.bias,
                tuple(Slot(r.weight, len(r.weight.shape) - 1) for r in point.readers),
            )
            for point in points
        ]
        return ResidualRotation(ROTATION, [basis], writers, readers)

    dimension = turning * (turning - 1) // 2
    where = " and ".join(stream.label for stream in group.streams)
    return Item(ROTATION, None, dimension, build, where)


def _unique_slots(writers: Any) -> list[Slot]:
    """A table shared by two streams is one set of parameters and turns once."""
    seen: dict[View, Slot] = {}
    for writer in writers:
        seen.setdefault(writer.view, Slot(writer.view, writer.axis))
    return list(seen.values())


def _scales(wiring: Wiring, group: StreamGroup) -> Iterator[Item]:
    """Every sum that is only seen through norms can be rescaled, up to their epsilon."""
    if group.pre_norm:
        yield from _scale(wiring, group.segments, None, None)
        return
    layers = [segment.carries.layer if segment.carries else None for segment in group.segments]
    for segment, layer in zip(group.segments, layers, strict=True):
        yield from _scale(wiring, [segment], segment.carries, layer)


def _scale(
    wiring: Wiring, segments: list[Segment], carried: Point | None, layer: int | None
) -> Iterator[Item]:
    writers: dict[View, Writer] = {}
    for segment in segments:
        for writer in segment.writers:
            writers.setdefault(writer.view, writer)
    tied = any(writer.tied for writer in writers.values())
    # A tied table reads the last norm of the head; only its gain can take the scale back.
    last = wiring.tied_point
    if tied and (last is None or last.norm.gain is None):
        return
    if carried is not None and carried.norm.gain is None:
        return
    epsilons = tuple(norm.epsilon for segment in segments for norm in segment.readers)
    kind = Kind.APPROXIMATE if any(epsilons) else Kind.EXACT

    def build() -> Symmetry:
        one = (0,)
        scaled = [*writers, *(wiring.output_only if tied else ())]
        slots = [ScaledSlot(view, (), 1, one) for view in scaled]
        if carried is not None:
            slots += [
                ScaledSlot(view, (), 1, one)
                for view in (carried.norm.gain, carried.norm.bias)
                if view is not None
            ]
            slots += [ScaledSlot(reader.weight, (), -1, one) for reader in carried.readers]
        if tied and last is not None:
            slots += [
                ScaledSlot(view, (), -1, one)
                for view in (last.norm.gain, last.norm.bias)
                if view is not None
            ]
        return Scaling(
            STREAM_SCALE,
            1,
            slots,
            positive=True,
            kind=kind,
            broken_by=f"norm epsilon {max(epsilons):g}" if any(epsilons) else "",
        )

    where = " and ".join(dict.fromkeys(segment.label for segment in segments))
    yield Item(STREAM_SCALE, layer, 1, build, where, kind=kind, epsilons=epsilons)


def _along_ones(segment: Segment) -> Iterator[Item]:
    """LayerNorm removes the mean, so what is written along the ones vector is never read."""
    by_layer: dict[int | None, list[Writer]] = {}
    for writer in segment.writers:
        if not writer.tied:
            by_layer.setdefault(writer.layer, []).append(writer)
    for layer, writers in by_layer.items():
        yield _along_ones_of(layer, writers)


def _along_ones_of(layer: int | None, writers: list[Writer]) -> Item:
    counts = [writer.vectors for writer in writers]
    stops = list(accumulate(counts))

    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            moved = []
            for writer, stop, count in zip(writers, stops, counts, strict=True):
                shape = list(writer.view.shape)
                width = shape.pop(writer.axis)
                part = np.expand_dims(shift[stop - count : stop].reshape(shape), writer.axis)
                moved.append((writer.view, np.repeat(part, width, axis=writer.axis)))
            return moved

        views = [writer.view for writer in writers]
        axes = [(writer.view, writer.axis) for writer in writers]
        return Translation(
            f"{_place(layer)}: {ALONG_ONES}",
            (stops[-1],),
            views,
            increments,
            linear=lambda _: shift_terms.along_ones(axes),
        )

    return Item(ALONG_ONES, layer, stops[-1], build, _place(layer))


def _place(layer: int | None) -> str:
    return "embedding" if layer is None else f"layer {layer}"


def _free_sums(segment: Segment, wiring: Wiring) -> Iterator[list[View]]:
    """For every sum of tables, those that are not tied."""
    if segment.embedding is None:
        return
    tied = {writer.view.tensor for writer in segment.writers if writer.tied}
    for tables in segment.embedding.sums:
        yield [table for table in tables if table.tensor not in tied]


def _shifts(segment: Segment, wiring: Wiring) -> Iterator[Item]:
    """A constant can move from one table to another that is always added with it."""
    for free in _free_sums(segment, wiring):
        if len(free) > 1:
            yield _shift(segment, free)


def _shift(segment: Segment, tables: list[View]) -> Item:
    extra, width = len(tables) - 1, segment.width

    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            return [
                (tables[0], np.broadcast_to(-shift.sum(axis=0), tables[0].shape)),
                *(
                    (table, np.broadcast_to(part, table.shape))
                    for table, part in zip(tables[1:], shift, strict=True)
                ),
            ]

        return Translation(
            EMBEDDING_SHIFT,
            (extra, width),
            tables,
            increments,
            linear=lambda _: shift_terms.first_takes_back(tables, width),
        )

    return Item(EMBEDDING_SHIFT, None, extra * width, build, "embedding")
