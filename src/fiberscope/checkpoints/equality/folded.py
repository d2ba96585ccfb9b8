"""The neutral form: every constant, gain and unread direction folded away.

What is left of a checkpoint are circuits on which only changes of basis, scalings, permutations
and the frame of the residual stream still act. With ``x`` a normalised value, a reader
``W (gain * x + bias) + b`` becomes ``(W diag(gain)) x + (b + W bias)``; behind a LayerNorm ``x``
sums to zero, so the rows are centred, and where every reader of the stream is a LayerNorm, so is
what is written. Constant values pass through the outputs into the step's bias. Nothing is divided
by, so zero gains need no special case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import (
    Attention,
    Mlp,
    Norm,
    NormKind,
    Observable,
)
from fiberscope.checkpoints.equality.folded_parts import (
    FoldedAttention,
    FoldedMlp,
    Vectors,
    average_of,
)
from fiberscope.checkpoints.equality.noisy import Noisy
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.equality.rotary_order import (
    ordered_rotary,
    other_layout,
    plane_order,
    score_scale,
)
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger.rules.constants import norm_bias_is_free, unrotated_index
from fiberscope.checkpoints.ledger.rules.discrete import sharing_positions
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, Segment
from fiberscope.parameters import View

T = TypeVar("T", Noisy, Rows)

Shifts = dict[str, list[tuple[View, Noisy]]]
"""Constants added to the rows of some views of a tensor."""


class FoldedModel:
    """Neutral form of a stored model, one block at a time."""

    def __init__(self, model: StoredModel, *, other_rotary_layout: bool = False) -> None:
        self.model = model
        self.wiring = model.wiring
        self.other_rotary_layout = other_rotary_layout
        self._tensors: dict[str, NDArray[Any]] = {}

    # --- building blocks -------------------------------------------------------------------

    def _gain(self, point: Point) -> Noisy | None:
        return None if point.norm.gain is None else self.model.read(point.norm.gain)

    def _constant_input(self, point: Point) -> Noisy | None:
        return None if point.norm.bias is None else self.model.read(point.norm.bias)

    def reader(self, reader: Reader, point: Point) -> tuple[Rows, Noisy | None]:
        """Folded rows ``(n, d)`` of a linear map, and its constant in the map's own shape."""
        view = reader.weight
        # Tables are looked at several times, so they stay.
        held = self._held(view) if reader.role is Role.OUTPUT else self.model.stored(view)
        rows = Rows(held.reshape(-1, held.shape[-1]), view.offset, squares=self.model.squares(view))
        constant = None if reader.bias is None else self.model.read(reader.bias)
        if (bias := self._constant_input(point)) is not None:
            brought = rows.dot(bias).reshaped(*view.shape[:-1])
            constant = brought if constant is None else constant + brought
        layer = point.norm.kind is NormKind.LAYER
        return replace(rows, gain=self._gain(point), level=layer), constant

    def write(self, array: T, segment: Segment, axis: int = -1) -> T:
        """What a writer adds, less what nobody reads; an array of numbers is changed in place."""
        if not segment.blind:
            return array
        if isinstance(array, Noisy) and axis == -1:
            array.fold(None, centred=True)
            return array
        return array.centred(axis)

    # --- blocks ----------------------------------------------------------------------------

    def attention(self, attention: Attention) -> FoldedAttention:
        """Neutral form of one attention."""
        wiring, a = self.wiring, attention
        parts: dict[Role, tuple[Stack, Noisy | None]] = {}
        for role in (Role.QUERY, Role.KEY, Role.VALUE):
            reader = wiring.reader_of(a, role)
            folded, constant = self.reader(reader, wiring.point_of(a, role))
            parts[role] = Stack(folded, reader.weight.shape[:-1]), constant
        key, key_constant = parts[Role.KEY]
        if key_constant is not None and a.key_norm is None:
            dead = unrotated_index(a)
            key_constant.value[:, dead] = 0.0
            key_constant.variance[:, dead] = 0.0
            if len(dead) == a.key_width:
                key_constant = None
        table = None
        owner = self._tables.get(id(a))
        if owner is not None and owner.position_table is not None:
            whole = self.model.read(owner.position_table)
            whole = Noisy(whole.value.transpose(1, 2, 0), whole.variance.transpose(1, 2, 0))
            live = self._live_buckets(owner, whole.shape[-1])
            table = whole.take(live, 2).centred(-1)
        stored = self.model.stored(a.output)
        squares = self.model.squares(a.output)
        flat = stored.reshape(-1, stored.shape[-1])
        written = Rows(flat, a.output.offset, squares=squares)
        output = Stack(self.write(written, wiring.segment_of(a)), a.output.shape[:-1])
        query, query_constant = parts[Role.QUERY]
        if self.other_rotary_layout and a.rotary is not None:
            a = replace(a, rotary=other_layout(a.rotary))
        rows = plane_order(a)
        scale = 1.0 if a.query_norm is not None else score_scale(a)
        return FoldedAttention(
            replace(a, rotary=ordered_rotary(a)),
            query.take(rows, 2).scaled(scale),
            key.take(rows, 1),
            parts[Role.VALUE][0],
            output,
            None if query_constant is None else query_constant.take(rows, 2).scaled(scale),
            None if key_constant is None else key_constant.take(rows, 1),
            self._norm_gain(a.query_norm, rows),
            self._norm_gain(a.key_norm, rows),
            table,
        )

    def _norm_gain(self, norm: Norm | None, rows: NDArray[np.int64]) -> Noisy | None:
        if norm is None or norm.gain is None:
            return None
        return self.model.read(norm.gain).take(rows, 0)

    @once
    def _tables(self) -> dict[int, Attention]:
        """For every attention that adds a position table, the attention that owns it.

        Layers that share a table have their heads named by its columns.
        """
        shared = sharing_positions(self.wiring.attentions)
        return {id(each): sharing[0] for sharing in shared for each in sharing}

    def _live_buckets(self, a: Attention, buckets: int) -> list[int]:
        """Buckets that some distance reaches: the others are unread parameters."""
        assert a.position_table is not None
        marks = np.ones(self.model.architecture.tensors[a.position_table.tensor])
        for unread in self.wiring.unread:
            if unread.view.tensor == a.position_table.tensor:
                unread.view.window(marks)[...] = 0.0
        seen = a.position_table.window(marks).reshape(buckets, -1)
        return [bucket for bucket in range(buckets) if seen[bucket].any()]

    def mlp(self, mlp: Mlp) -> FoldedMlp:
        """Neutral form of one MLP."""
        wiring, m = self.wiring, mlp
        point = wiring.point_reading(m.up)
        readers = {reader.weight: reader for reader in point.readers}
        up, up_constant = self.reader(readers[m.up], point)
        gate = gate_constant = None
        if m.gate is not None:
            gate, gate_constant = self.reader(readers[m.gate], point)
        written = m.down.permute(1, 0)
        squares = self.model.squares(written)
        down = Rows(self.model.stored(written), written.offset, squares=squares)
        down = self.write(down, wiring.segment_writing(m.down))
        return FoldedMlp(m.label, m.layer, m, up, down, up_constant, gate, gate_constant)

    # --- vectors along the stream ----------------------------------------------------------

    @once
    def tables(self) -> list[Vectors]:
        """Embedding tables, constants moved between them to a fixed place."""
        found: list[Vectors] = []
        seen: set[View] = set()
        for segment in self.wiring.segments:
            if segment.embedding is None:
                continue
            writers = [writer for writer in segment.writers if writer.layer is None]
            shifts = self._moved_constants(segment)
            for writer in writers:
                rows = self._table(writer.view, shifts, segment.width)
                moved = any(by.value.any() for _, by in shifts.get(writer.view.tensor, ()))
                blind = bool(segment.blind)
                if writer.view not in seen:  # encoder and decoder can share a table
                    found.append(
                        Vectors(
                            writer.label,
                            self.write(rows, segment),
                            untouched=not (blind or moved or writer.view.offset),
                            centred=blind,
                        )
                    )
                seen.add(writer.view)
        return found

    def _held(self, view: View) -> NDArray[Any]:
        """A table in its stored format; tables are looked at several times, so they stay."""
        if view.tensor not in self._tensors:
            self._tensors[view.tensor] = self.model.tensor(view.tensor)
        return view.window(self._tensors[view.tensor])

    def _table(self, view: View, shifts: Shifts, width: int) -> Rows:
        """A table with the constants moved so far."""
        stored = self._held(view).reshape(-1, width)
        masks = []
        for part, by in shifts.get(view.tensor, ()):
            marks = np.zeros(view.stored_shape, dtype=np.bool_)
            part.window(marks)[...] = True
            masks.append((view.window(marks).reshape(-1, width)[:, 0].copy(), by))
        return Rows(stored, view.offset, tuple(masks))

    def _moved_constants(self, segment: Segment) -> Shifts:
        """Give every table of a sum but one the mean zero; a tied table keeps its own."""
        shifts: Shifts = {}
        tied = {writer.view.tensor for writer in segment.writers if writer.tied}
        embedding = segment.embedding
        assert embedding is not None
        width = segment.width
        parts: dict[View, None] = {}
        into: dict[View, None] = {}
        for tables in embedding.sums:
            free = [table for table in tables if table.tensor not in tied]
            held = [table for table in tables if table.tensor in tied]
            if held and free:
                parts |= dict.fromkeys(held)
                into |= dict.fromkeys(free[:1])
        if parts:
            # A row that no input looks up has a freedom of its own and must not count.
            looked_up = [w.view for w in segment.writers if w.tied and w.layer is None]
            for moved in self._tied_constant([self._table(v, shifts, width) for v in looked_up]):
                for view in parts:
                    _shift(shifts, view, moved.scaled(-1.0))
                for view in into:
                    _shift(shifts, view, moved)
        for tables in embedding.sums:
            free = [table for table in tables if table.tensor not in tied]
            for table in free[1:]:
                for mean in average_of([self._table(table, shifts, width)]):
                    _shift(shifts, table, mean.scaled(-1.0))
                    _shift(shifts, free[0], mean)
        return shifts

    def _tied_constant(self, rows: list[Rows]) -> list[Noisy]:
        """The common part of a tied table's rows that another table could carry, as a sum."""
        point, head = self.wiring.tied_point, self.wiring.head
        if point is None or head is None:
            return []
        width = rows[0].shape[1]
        parts = average_of(rows)
        if self.wiring.observable is Observable.PROBABILITIES:
            return parts
        if point.norm.kind is not NormKind.LAYER:
            return []
        if head.output_bias is None and point.norm.bias is not None:
            return []
        gain = self._gain(point) or Noisy.exact(np.ones(width))
        if not gain.value.all():
            return []
        mean = sum(parts[1:], start=parts[0])
        along = mean.dot(gain)
        inverse = Noisy(1.0 / gain.value, gain.variance / gain.value**4)
        return [inverse.times(Noisy(along.value / width, along.variance / width**2))]

    @once
    def kept(self) -> list[Vectors]:
        """Gains and biases that no linear map can take over, and are determined themselves."""
        return self.kept_vectors()

    def kept_vectors(self) -> list[Vectors]:
        """Gains and biases that no linear map can take over, and are determined themselves."""
        found = []
        for point in self.wiring.points:
            if point.norm.gain is not None and not point.only_linear:
                gain = self.model.read(point.norm.gain)
                head = self.wiring.head
                signed = head is not None and point.norm is head.norm
                kind = "signed gain" if signed else "gain"
                found.append(Vectors(f"{point.norm.label} gain", gain.reshaped(1, -1), kind))
            if point.norm.bias is not None and self._keeps_bias(point):
                bias = self.model.read(point.norm.bias)
                found.append(Vectors(f"{point.norm.label} bias", bias.reshaped(1, -1)))
        return found

    @staticmethod
    def _keeps_bias(point: Point) -> bool:
        return not point.only_linear and not norm_bias_is_free(point)

    @once
    def constants(self) -> list[Vectors]:
        """What every step adds whatever the input: biases, constant values, carried biases."""
        found = []
        for number, segment in enumerate(self.wiring.segments):
            absorbed = set()
            for step, (layer, biases) in enumerate(segment.biases):
                total = Noisy.exact(np.zeros(segment.width))
                for bias in biases:
                    total = total + self.model.read(bias)
                for a in self.wiring.attentions:
                    reader = self.wiring.reader_of(a, Role.VALUE)
                    if reader.absorbing_biases == biases:
                        absorbed.add(id(a))
                        if (lands := self._constant_values(a)) is not None:
                            total = total + lands
                carried = segment.carries
                if (
                    carried is not None
                    and carried.carried_biases == biases
                    and carried.norm.bias is not None
                    and norm_bias_is_free(carried)
                ):
                    total = total + self.model.read(carried.norm.bias)
                rows = self.write(total.reshaped(1, -1), segment)
                found.append(Vectors(f"{_place(layer)} constant {number}.{step}", rows))
            for a in self.wiring.attentions:
                reader = self.wiring.reader_of(a, Role.VALUE)
                if reader.lands_on is not segment or id(a) in absorbed or reader.absorbing_biases:
                    continue
                if (lands := self._constant_values(a)) is not None:
                    rows = self.write(lands.reshaped(1, -1), segment)
                    found.append(Vectors(f"{a.label} constant", rows))
        return found

    def _constant_values(self, a: Attention) -> Noisy | None:
        """What the constant part of the values adds to the stream."""
        reader, point = self.wiring.reader_of(a, Role.VALUE), self.wiring.point_of(a, Role.VALUE)
        if reader.bias is None and point.norm.bias is None:
            return None
        constant = self.reader(reader, point)[1]
        if constant is None:
            return None
        if a.output.shape[1] == 1:
            stored = self.model.stored(a.output)
            rows = Rows(stored.reshape(-1, stored.shape[-1]), a.output.offset)
            return rows.combined(constant.reshaped(-1))
        # Heads that share values share their rounding too: they are added up first.
        output = self.model.read(a.output)
        summed = Noisy(output.value.sum(axis=1), output.variance.sum(axis=1))
        flat = summed.reshaped(-1, summed.shape[-1])
        across = Noisy(flat.value.T, flat.variance.T)
        return across.dot(constant.reshaped(-1))

    # --- the head --------------------------------------------------------------------------

    @once
    def unembedding(self) -> tuple[Vectors | None, Noisy | None]:
        """Rows that read the last norm, ``(labels, d)``, and the constants of the logits.

        None for a tied table that is compared as an embedding already. The rows live on the
        stream, or on the units of the head's dense layer when there is one.
        """
        for point in self.wiring.points:
            for reader in point.readers:
                if reader.role is Role.OUTPUT:
                    return self._unembedding(reader, point)
        head = self.wiring.head
        if head is None or head.dense is None or head.norm is not None:
            return None, None
        bias = None if head.output_bias is None else self.model.read(head.output_bias)
        rows = Rows(self._held(head.output), head.output.offset)
        if self.wiring.observable is Observable.PROBABILITIES:
            rows = rows.centred(0)
            bias = None if bias is None else bias.centred(0)
        return Vectors(head.label, rows), bias

    def _unembedding(self, reader: Reader, point: Point) -> tuple[Vectors | None, Noisy | None]:
        rows, constant = self.reader(reader, point)
        if constant is not None and reader.bias is None and self._keeps_bias(point):
            constant = None  # the norm's bias is compared itself
        if self.wiring.observable is Observable.PROBABILITIES:
            rows = rows.centred(0)
            constant = None if constant is None else constant.centred(0)
        plain = (
            reader.tied
            and point.norm.kind is NormKind.RMS
            and self.wiring.observable is not Observable.PROBABILITIES
        )
        return (
            None
            if plain
            else Vectors(reader.label, rows, centred=point.norm.kind is NormKind.LAYER)
        ), constant

    @once
    def dense(self) -> FoldedMlp | None:
        """The head's dense layer as neurons: down are the columns of the unembedding."""
        head = self.wiring.head
        if head is None or head.dense is None:
            return None
        point = self.wiring.point_reading(head.dense.weight)
        reader = next(r for r in point.readers if r.role is Role.DENSE)
        up, constant = self.reader(reader, point)
        rows, _ = self.unembedding
        assert rows is not None
        whole = rows.array
        down = Noisy(np.ascontiguousarray(whole.value.T), whole.variance.T)
        return FoldedMlp(head.dense.label, None, None, up, down, constant)


def _shift(shifts: Shifts, view: View, by: Noisy) -> None:
    shifts.setdefault(view.tensor, []).append((view, by))


def _place(layer: int | None) -> str:
    return "embedding" if layer is None else f"layer {layer}"
