"""What softmax does not show: shifts of all logits or of all scores; and unread parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import NormKind, Observable
from fiberscope.checkpoints.ledger.item import Item, Overlap
from fiberscope.checkpoints.ledger.rules import shift_terms
from fiberscope.checkpoints.ledger.rules.constants import (
    INPUT_DIRECTION,
    free_directions,
    input_direction,
)
from fiberscope.checkpoints.ledger.wiring import Point, Role, Wiring
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import Symmetry, Translation

UNEMBEDDING_SHIFT = "unembedding shift"
SCORE_SHIFT = "relative position bias"
UNREAD = "unread parameters"

Arrays = dict[str, NDArray[Any]]


def output_items(wiring: Wiring) -> Iterator[Item]:
    """All rules of this file."""
    if (item := _unembedding_shift(wiring)) is not None:
        yield item
    yield from _tied_directions(wiring)
    for attention in wiring.attentions:
        if attention.position_table is not None:
            yield _score_shift(attention.label, attention.layer, attention.position_table)
    for unread in wiring.unread:
        yield _unread(unread.label, unread.view)


def output_overlaps(wiring: Wiring) -> Iterator[Overlap]:
    """All rows moving along 1/gain, compensated in the bias, is counted as input direction."""
    head = wiring.head
    if wiring.observable is not Observable.PROBABILITIES or head is None:
        return
    if head.output_bias is None or wiring.tied:
        return
    for point in wiring.points:
        for reader in point.readers:
            if (
                reader.role is Role.OUTPUT
                and point.norm.kind is NormKind.LAYER
                and free_directions(reader, point)
            ):
                yield Overlap(
                    (UNEMBEDDING_SHIFT, INPUT_DIRECTION),
                    1,
                    "moving all unembedding rows along 1/gain is also a shift of all their biases",
                )


def absorbing_table(wiring: Wiring, tensor: str) -> View | None:
    """A free table that is always added together with the tied one."""
    for segment in wiring.segments:
        for tables in segment.embedding.sums if segment.embedding else ():
            if any(table.tensor == tensor for table in tables):
                for table in tables:
                    if table.tensor != tensor:
                        return table
    return None


def _tied_directions(wiring: Wiring) -> Iterator[Item]:
    """Input directions behind the last LayerNorm that a tied table keeps.

    Its rows are embeddings too, so they cannot move one by one. All at once they can, where a bias
    takes the constant of the logits and another table the constant of the embedding;
    under probabilities that is an unembedding shift already. Rows no input looks up are free.
    """
    head = wiring.head
    if head is None or not wiring.tied:
        return
    point = next(p for p in wiring.points if any(r.role is Role.OUTPUT for r in p.readers))
    bias = head.output_bias
    if not point.blind or (bias is None and point.norm.bias is not None):
        return
    into = absorbing_table(wiring, head.output.tensor)
    if wiring.observable is Observable.LOGITS and into is not None:
        yield _moving_rows(point, head.output, bias, slice(None), into, head.label)
    for view in wiring.output_only:
        row = first_row(view)
        rows = slice(row, row + view.shape[0])
        for position in range(rows.start, rows.stop):
            part = slice(position, position + 1)
            yield _moving_rows(point, view, bias, part, None, "row that no input looks up")


def first_row(view: View) -> int:
    """Index in the stored table of the first row of a contiguous part of it."""
    # Addresses tell without touching the memory of a table of this size.
    stored = np.empty(view.stored_shape, dtype=np.int8)
    start = view.window(stored).__array_interface__["data"][0]
    return int(start - stored.__array_interface__["data"][0]) // max(1, stored.strides[0])


def _moving_rows(
    point: Point, view: View, bias: View | None, entries: slice, into: View | None, where: str
) -> Item:
    """Move rows together along ``u = 1/gain``: their logits move by ``u . bias``."""

    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            u, constant = input_direction(point, parameters)
            moved = [(view, np.broadcast_to(shift * u, view.shape))]
            if bias is not None:
                whole = np.zeros(bias.shape, dtype=shift.dtype)
                whole[entries] = -shift * constant
                moved.append((bias, whole))
            if into is not None:
                moved.append((into, np.broadcast_to(-shift * u, into.shape)))
            return moved

        def linear(parameters: Parameters) -> shift_terms.Terms:
            u, constant = input_direction(point, dict(parameters))
            moves = [(view, u, 1.0)] + ([(into, u, -1.0)] if into is not None else [])
            taken = None if bias is None else (bias, entries, -float(constant))
            return shift_terms.all_rows(moves, taken)

        name = f"{where}: {INPUT_DIRECTION}"
        return Translation(name, (1,), [view, bias, into], increments, linear=linear)

    return Item(INPUT_DIRECTION, None, 1, build, where)


def written_blindly(wiring: Wiring, tensor: str) -> bool:
    """Whether the tied table is written where nobody sees the ones vector."""
    return all(
        segment.blind
        for segment in wiring.segments
        if any(writer.view.tensor == tensor for writer in segment.writers)
    )


def _unembedding_shift(wiring: Wiring) -> Item | None:
    """Softmax cancels what is added to all logits: a common shift of all rows, and of all biases.

    A tied table moves as an embedding too: a position table can take that back, and behind
    LayerNorms a move along the ones vector goes unseen anyway.
    """
    head = wiring.head
    if wiring.observable is not Observable.PROBABILITIES or head is None:
        return None
    output, bias = head.output, head.output_bias
    into = absorbing_table(wiring, output.tensor) if wiring.tied else None
    along_ones = wiring.tied and into is None and written_blindly(wiring, output.tensor)
    rows = output.shape[1] if not wiring.tied or into is not None else int(along_ones)
    size = rows + (1 if bias is not None else 0)
    if size == 0:
        return None

    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            moved = []
            if rows:
                # One coordinate along the ones vector broadcasts over the width by itself.
                moved.append((output, np.broadcast_to(shift[:rows], output.shape)))
                if into is not None:
                    moved.append((into, np.broadcast_to(-shift[:rows], into.shape)))
            if bias is not None:
                moved.append((bias, np.broadcast_to(shift[rows:], bias.shape)))
            return moved

        return Translation(
            UNEMBEDDING_SHIFT,
            (size,),
            [output, bias, into],
            increments,
            linear=lambda _: shift_terms.common_rows(output, into, bias, rows),
        )

    return Item(UNEMBEDDING_SHIFT, None, size, build, head.label)


def _score_shift(label: str, layer: int, table: View) -> Item:
    """Softmax cancels what is added to the scores of all keys: one constant per head and table."""
    heads = table.size // table.shape[0]

    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            return [(table, np.broadcast_to(shift.reshape(table.shape[1:]), table.shape))]

        return Translation(
            f"{label}: {SCORE_SHIFT}",
            (heads,),
            [table],
            increments,
            linear=lambda _: shift_terms.common_entries(table),
        )

    return Item(SCORE_SHIFT, layer, heads, build, label)


def _unread(label: str, view: View) -> Item:
    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            return [(view, shift)]

        return Translation(
            f"{label}: {UNREAD}",
            view.shape,
            [view],
            increments,
            linear=lambda _: shift_terms.own_entries(view),
        )

    return Item(UNREAD, None, view.size, build, label)
