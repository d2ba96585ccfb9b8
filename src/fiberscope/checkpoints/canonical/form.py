"""The canonical form of a whole checkpoint, one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Attention, Mlp, Norm
from fiberscope.checkpoints.canonical.attention import TIE, Heads, write_heads
from fiberscope.checkpoints.canonical.cancelling import deviation_of_sum
from fiberscope.checkpoints.canonical.ending import head_tensors, settle_head
from fiberscope.checkpoints.canonical.frame import IDENTITY, Frame, coupled, find_frame
from fiberscope.checkpoints.canonical.neurons import Neurons, degree_of
from fiberscope.checkpoints.canonical.places import Places, descending
from fiberscope.checkpoints.canonical.points import (
    Folded,
    PointForm,
    Style,
    fold,
    point_form,
    point_frames,
    unfold,
)
from fiberscope.checkpoints.canonical.settling import settle_heads, settle_neurons
from fiberscope.checkpoints.canonical.stream import (
    Constants,
    drop_unread,
    reached_buckets,
    read_writer,
    settle_positions,
    settle_tied_bias,
    write_tables,
)
from fiberscope.checkpoints.canonical.workspace import Workspace
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.rules.constants import norm_bias_is_free
from fiberscope.checkpoints.ledger.rules.discrete import GROUP_PERMUTATION, sharing_positions
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, Wiring
from fiberscope.checkpoints.threads import in_order, limited
from fiberscope.parameters import View

Array = NDArray[np.float64]
Progress = Callable[[int, int, str], None]
Tensors = Iterator[tuple[str, NDArray[Any]]]


ALLOWANCE = 64_000_000
"""Parameters of the blocks that are computed at the same time; a larger block is alone."""


@dataclass
class _Found:
    """What one block tells the others: ties, and constants on their way to output biases."""

    places: Places = field(default_factory=Places)
    constants: list[tuple[View, Array, float]] = field(default_factory=list)


@dataclass
class _Step:
    """One block: what to do, the tensors it needs, and whether it needs all earlier steps done."""

    label: str
    run: Callable[[_Found], None]
    tensors: tuple[str, ...]
    alone: bool = False


class CanonicalForm:
    """Computes a canonical form block by block.

    Parameters
    ----------
    wiring
        Of the architecture under the observable.
    items
        The ledger's entries: they say which frames are free.
    work
        Where tensors are read and written.
    style
        Which parts of the form are wanted.
    """

    def __init__(
        self, wiring: Wiring, items: Sequence[Item], work: Workspace, style: Style | None = None
    ) -> None:
        self.wiring, self.work = wiring, work
        self.items = list(items)
        self.style = style or Style()
        self.places = Places()
        self.constants = Constants(work)
        self._forms: dict[int, PointForm] = {}
        self._frames: list[Frame] = []
        self._frame_of_point: dict[int, Frame] = {}
        self._frame_of_segment: dict[int, Frame] = {}
        self._fixed_orders: dict[int, NDArray[np.int64]] = {}

    def tensors(self, progress: Progress | None = None) -> Tensors:
        """All tensors of the architecture, finished ones as they come.

        Blocks that share no tensor are computed in a few threads; what they find is put together
        in their order, so that the result does not depend on the number of threads.
        """
        self._find_frames(progress)
        for point in self.wiring.points:
            self._form(point)
        steps = [*self._steps()]
        last = {name: number for number, step in enumerate(steps) for name in step.tensors}
        start = 0
        while start < len(steps):
            stop = self._independent(steps, start)
            sizes = [self._size(step) for step in steps[start:stop]]
            tasks = [
                (size, partial(self._done, step))
                for size, step in zip(sizes, steps[start:stop], strict=True)
            ]
            threads = 1 if sum(sorted(sizes)[-2:]) <= ALLOWANCE else None
            with limited(threads):
                for number, found in enumerate(in_order(tasks, ALLOWANCE), start):
                    step = steps[number]
                    if progress is not None:
                        progress(number, len(steps), step.label)
                    self.places.extend(found.places)
                    for bias, vector, deviation in found.constants:
                        self.constants.add(bias, vector, deviation)
                    for name in dict.fromkeys(step.tensors):
                        if last[name] == number:
                            yield name, self.work.release(name)
            start = stop
        for name in self.wiring.architecture.tensors:
            if name not in last:
                yield name, self.work.release(name)

    def _independent(self, steps: list[_Step], start: int) -> int:
        """The end of a run of steps that share no tensor."""
        taken: set[str] = set()
        for number in range(start, len(steps)):
            step = steps[number]
            if number > start and (step.alone or taken & set(step.tensors)):
                return number
            taken |= set(step.tensors)
            if step.alone:
                return number + 1
        return len(steps)

    def _size(self, step: _Step) -> int:
        shapes = self.wiring.architecture.tensors
        return sum(prod(shapes[name]) for name in dict.fromkeys(step.tensors))

    def _done(self, step: _Step) -> _Found:
        found = _Found()
        step.run(found)
        for name in dict.fromkeys(step.tensors):
            self.work.finish(name)
        return found

    # Frames and norms.

    def _find_frames(self, progress: Progress | None) -> None:
        wiring = self.wiring
        for group in wiring.stream_groups:
            if progress is not None:
                progress(0, 1, "frame of the residual stream")
            frame = IDENTITY
            if self.style.frame:
                frame = find_frame(wiring, group, self.items, self.work, self.places)
            self._frames.append(frame)
            for segment in group.segments:
                self._frame_of_segment[id(segment)] = frame
        self._frame_of_point = point_frames(wiring, self._frames)

    def _form(self, point: Point) -> PointForm:
        found = self._forms.get(id(point))
        if found is None:
            frame = self._frame_of_point[id(point)]
            found = point_form(point, frame, self.work, self.style, self.places)
            self._forms[id(point)] = found
        return found

    def _fold(self, reader: Reader, point: Point) -> Folded:
        return fold(reader, self._form(point), self.work)

    # Steps.

    def _steps(self) -> Iterator[_Step]:
        wiring = self.wiring
        tables = {
            writer.view.tensor
            for segment in wiring.segments
            for writer in segment.writers
            if writer.layer is None
        }
        tables |= {unread.view.tensor for unread in wiring.unread}
        tables |= {a.position_table.tensor for a in wiring.attentions if a.position_table}
        biases: set[str] = set()
        if wiring.tied and wiring.head is not None and wiring.head.output_bias is not None:
            biases.add(wiring.head.output_bias.tensor)
        named = any(attention.position_table for attention in wiring.attentions)
        yield _Step("embedding", self._tables, (*tables, *biases), alone=named)
        blocks: list[tuple[int, Attention | Mlp]] = []
        blocks += [(attention.layer, attention) for attention in wiring.attentions]
        blocks += [(mlp.layer, mlp) for mlp in wiring.mlps]
        for _, block in sorted(blocks, key=lambda pair: pair[0]):
            if isinstance(block, Attention):
                yield self._attention_step(block)
            else:
                yield self._mlp_step(block)
        if wiring.head is not None:
            yield _Step(wiring.head.label, self._head, head_tensors(wiring))
        small = self._small_tensors()
        yield _Step("norms and biases", self._norms_and_biases, small, alone=True)

    def _tables(self, found: _Found) -> None:
        wiring, work, style = self.wiring, self.work, self.style
        if wiring.tied_point is not None:
            form = self._form(wiring.tied_point)
            settle_tied_bias(wiring, form, work, style, found.places)
        settle_positions(wiring, work, style)
        self._order_by_positions(found.places)
        write_tables(wiring, self._frame_of_segment, work, style)
        drop_unread(wiring, work, style, found.places)

    def _order_by_positions(self, places: Places) -> None:
        """Heads that a position table names are sorted by its columns, in all layers alike."""
        if not self.style.order:
            return
        for sharing in sharing_positions(self.wiring.attentions):
            owner = sharing[0]
            table = owner.position_table
            if table is None:
                continue
            values = np.array(
                table.window(self.work.current(table.tensor)), dtype=np.float64, order="C"
            )
            reached = values[reached_buckets(self.wiring, table)]
            keys = np.linalg.norm(reached - reached.mean(axis=0), axis=(0, 2))
            spacing = self.work.spacing(table)
            order, ties, settled = descending(keys, TIE * spacing, 2.0 * spacing)
            places.add(GROUP_PERMUTATION, None, owner.label, ties)
            # What is written anyway is sorted exactly: rounding is added to it once more.
            if settled and table.tensor not in self.work.moved:
                order = np.arange(len(keys))
            elif (order[1:] < order[:-1]).any():
                self.work.write(table, values[:, order])
            for attention in sharing:
                self._fixed_orders[id(attention)] = order

    def _attention_step(self, a: Attention) -> _Step:
        views = [a.query, a.key, a.value, a.output, a.query_bias, a.key_bias, a.value_bias]
        names = tuple(view.tensor for view in views if view is not None)
        return _Step(a.label, partial(self._attention, a), names)

    def _attention(self, a: Attention, found: _Found) -> None:
        wiring, work, style = self.wiring, self.work, self.style
        parts = {
            role: self._fold(wiring.reader_of(a, role), wiring.point_of(a, role))
            for role in (Role.QUERY, Role.KEY, Role.VALUE)
        }
        segment = wiring.segment_of(a)
        frame = self._frame_of_segment[id(segment)]
        output, changed = read_writer(a.output, 3, segment, frame, work, style)
        value = parts[Role.VALUE]
        biases = value.reader.absorbing_biases
        if biases and style.constants and value.constant is not None:
            if not value.no_constant:
                lands = np.einsum("gmsd,gs->d", output, value.constant)
                found.constants.append((biases[0], lands, _landing(output, value)))
            value.drop_constant()
        heads = Heads(
            a,
            parts[Role.QUERY],
            parts[Role.KEY],
            value,
            output,
            changed,
            work.spacing(a.query, a.key, a.value, a.output),
            lambda gain: self._rounded_gain(a, gain),
            self._inner_gain(a.query_norm),
            self._inner_gain(a.key_norm),
        )
        order = self._fixed_orders.get(id(a))
        settle_heads(heads, segment, style, found.places, order)
        for part in parts.values():
            unfold(part, work, found.places)
        write_heads(heads, work)

    def _inner_gain(self, norm: Norm | None) -> Array | None:
        return None if norm is None or norm.gain is None else self.work.read(norm.gain)

    def _rounded_gain(self, a: Attention, gain: Array) -> Array:
        norm = a.query_norm
        assert norm is not None and norm.gain is not None
        return self.work.rounded_as(norm.gain, gain)

    def _mlp_step(self, m: Mlp) -> _Step:
        views = [m.up, m.gate, m.down, m.up_bias, m.gate_bias]
        names = tuple(view.tensor for view in views if view is not None)
        return _Step(m.label, partial(self._mlp, m), names)

    def _mlp(self, m: Mlp, found: _Found) -> None:
        wiring, work = self.wiring, self.work
        point = wiring.point_reading(m.up)
        readers = {reader.weight: reader for reader in point.readers}
        up = self._fold(readers[m.up], point)
        gate = None if m.gate is None else self._fold(readers[m.gate], point)
        segment = wiring.segment_writing(m.down)
        frame = self._frame_of_segment[id(segment)]
        down, changed = read_writer(m.down, 0, segment, frame, work, self.style)
        neurons = Neurons(
            m.label,
            m.layer,
            up if gate is None else gate,
            None if gate is None else up,
            down,
            changed,
            degree_of(m.activation, m.activation_name),
            m.activation is Activation.ODD,
            m.activation_name,
            work.spacing(m.up, m.gate, m.down),
        )
        settle_neurons(neurons, segment, self.style, found.places, work, m.down)
        unfold(up, work, found.places)
        if gate is not None:
            unfold(gate, work, found.places)
        if neurons.down_changed:
            work.write(m.down, neurons.down.T)

    def _head(self, found: _Found) -> None:
        """Dense layer and unembedding; a tied unembedding is done with the tables."""
        outer = self._coupled_frame()
        settle_head(self.wiring, self._fold, outer, self.style, found.places, self.work)

    def _coupled_frame(self) -> Frame:
        """Frame of the stream whose coordinates name the dense layer's units; else the identity."""
        wiring = self.wiring
        for group, frame in zip(wiring.stream_groups, self._frames, strict=True):
            if coupled(wiring, group):
                return frame
        return IDENTITY

    # Norms and biases, once all readers have seen them as they were.

    def _small_tensors(self) -> tuple[str, ...]:
        names = []
        for point in self.wiring.points:
            names += [v.tensor for v in (point.norm.gain, point.norm.bias) if v is not None]
        for segment in self.wiring.segments:
            names += [bias.tensor for _, biases in segment.biases for bias in biases]
        for attention in self.wiring.attentions:
            for norm in (attention.query_norm, attention.key_norm):
                if norm is not None and norm.gain is not None:
                    names.append(norm.gain.tensor)
        return tuple(dict.fromkeys(names))

    def _norms_and_biases(self, found: _Found) -> None:
        work, wiring = self.work, self.wiring
        outer = self._coupled_frame()
        for point in wiring.points:
            form = self._form(point)
            gain, bias = form.new_gain, form.new_bias
            if point is wiring.tied_point and not outer.identity:
                sign = 1.0 if outer.signs is None else outer.signs
                gain = None if gain is None else outer.reorder(gain) * sign
                bias = None if bias is None else outer.apply(bias)
            if point.carried and self.style.constants and norm_bias_is_free(point):
                assert form.bias is not None and form.new_bias is not None
                moved = form.frame.apply(form.bias) - form.new_bias
                if moved.any():
                    spacing = work.spacing(point.norm.bias)
                    largest = np.square(np.abs(moved).max(keepdims=True))
                    deviation = float(deviation_of_sum(largest, spacing)[0])
                    self.constants.add(point.carried_biases[0], moved, deviation)
            norm = point.norm
            if norm.gain is not None and gain is not None and not _same(form.gain, gain):
                work.write(norm.gain, gain)
            if norm.bias is not None and bias is not None and not _same(form.bias, bias):
                work.write(norm.bias, bias)
        for segment in wiring.segments:
            frame = self._frame_of_segment[id(segment)]
            self.constants.write(segment, frame, self.style, found.places)


def _same(old: Array | None, new: Array) -> bool:
    return old is not None and np.array_equal(old, new)


def _landing(output: Array, value: Folded) -> float:
    """How far rounding moves what constant values add to a stream, at most."""
    assert value.constant is not None
    squares = 2.0 * value.constant**2 * value.spacing**2 / 12.0
    if value.deviation is not None:
        squares = squares + value.deviation**2
    return float(np.sqrt(np.einsum("gmsd,gmsd,gs->d", output, output, squares).max()))
