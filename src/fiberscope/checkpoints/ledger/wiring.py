"""Where the streams of an architecture are read and written, for one observable.

Two kinds of place carry all symmetry rules: a *point* is a normalised value and the linear maps
that read it; a *segment* is a sum of writers that is only ever seen through norms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import prod

from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Embedding,
    Head,
    Mlp,
    Norm,
    Normalize,
    NormKind,
    Observable,
    Stream,
    Unread,
)
from fiberscope.errors import InputError
from fiberscope.parameters import View


class Role(Enum):
    """What a linear reader computes."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    UP = "MLP up"
    GATE = "MLP gate"
    DENSE = "head dense"
    OUTPUT = "unembedding"


@dataclass(frozen=True)
class Reader:
    """A linear map of a point: weight with the input axis last, and its bias."""

    role: Role
    label: str
    layer: int | None
    weight: View
    bias: View | None
    tied: bool = False
    attention: Attention | None = None
    absorbing_biases: tuple[View, ...] = ()
    """For values: the biases added to the stream together with the attention's output."""
    lands_on: Segment | None = None
    """For values: the segment that the attention writes to."""

    @property
    def outputs(self) -> int:
        """Number of output units."""
        return prod(self.weight.shape[:-1])


@dataclass
class Point:
    """A norm's output and everything that reads it."""

    norm: Norm
    layer: int | None
    readers: list[Reader] = field(default_factory=list)
    observed: bool = False
    carried: bool = False
    """Post-norm: the value itself is added to the next segment."""
    carried_biases: tuple[View, ...] = ()
    """Biases added together with the carried value."""

    @property
    def width(self) -> int:
        """Width of the stream."""
        view = self.norm.gain or self.norm.bias
        if view is not None:
            return view.shape[0]
        return self.readers[0].weight.shape[-1]

    @property
    def blind(self) -> int:
        """Directions that never reach a reader: the mean, behind a LayerNorm."""
        return 1 if self.norm.kind is NormKind.LAYER else 0

    @property
    def only_linear(self) -> bool:
        """Whether linear maps are all that reads the point, none of them tied."""
        return not (self.observed or self.carried or any(reader.tied for reader in self.readers))


@dataclass(frozen=True, eq=False)
class Writer:
    """Vectors added to the stream: a view and which of its axes runs along the stream."""

    label: str
    layer: int | None
    view: View
    axis: int
    tied: bool = False

    @property
    def vectors(self) -> int:
        """Number of vectors."""
        return self.view.size // self.view.shape[self.axis]


@dataclass(eq=False)
class Segment:
    """A sum of writers, and the point it carries on from (post-norm)."""

    width: int
    label: str
    writers: list[Writer] = field(default_factory=list)
    readers: list[Norm] = field(default_factory=list)
    carries: Point | None = None
    embedding: Embedding | None = None
    biases: list[tuple[int, tuple[View, ...]]] = field(default_factory=list)
    """Layer and biases of every step that adds any: only the sum of one step's is seen."""
    read_directly: bool = False

    @cached_property
    def blind(self) -> int:
        """1 when nobody sees what is written along the ones vector; asked for once wired."""
        layer_norms = all(norm.kind is NormKind.LAYER for norm in self.readers)
        return 1 if layer_norms and self.readers and not self.read_directly else 0


@dataclass
class Wiring:
    """Everything the rules look at."""

    architecture: Architecture
    observable: Observable
    points: list[Point]
    segments: list[Segment]
    stream_groups: list[StreamGroup]
    attentions: list[Attention]
    mlps: list[Mlp]
    head: Head | None
    """The head when it is observed."""
    tied: bool
    unread: list[Unread]
    output_only: tuple[View, ...] = ()
    """Rows of a tied table that no input looks up, so that only the head reads them."""

    def segment_of(self, attention: Attention) -> Segment:
        """The segment an attention writes to."""
        return self.segment_writing(attention.output)

    def point_of(self, attention: Attention, role: Role) -> Point:
        """The point that queries, keys or values of an attention read."""
        return self._readings[id(attention), role][0]

    def reader_of(self, attention: Attention, role: Role) -> Reader:
        """The queries, keys or values of an attention."""
        return self._readings[id(attention), role][1]

    def segment_writing(self, view: View) -> Segment:
        """The first segment that a view is written to."""
        return self._written_to[view]

    def point_reading(self, view: View) -> Point:
        """The first point that a linear map reads."""
        return self._read_at[view]

    @cached_property
    def tied_point(self) -> Point | None:
        """The point that a tied unembedding reads."""
        return next((p for p in self.points if any(r.tied for r in p.readers)), None)

    # Built once: a search for every layer would be quadratic in the depth.

    @cached_property
    def _written_to(self) -> dict[View, Segment]:
        found: dict[View, Segment] = {}
        for segment in self.segments:
            for writer in segment.writers:
                found.setdefault(writer.view, segment)
        return found

    @cached_property
    def _read_at(self) -> dict[View, Point]:
        found: dict[View, Point] = {}
        for point in self.points:
            for reader in point.readers:
                found.setdefault(reader.weight, point)
        return found

    @cached_property
    def _readings(self) -> dict[tuple[int, Role], tuple[Point, Reader]]:
        return {
            (id(reader.attention), reader.role): (point, reader)
            for point in self.points
            for reader in point.readers
            if reader.attention is not None
        }


@dataclass
class StreamGroup:
    """Streams that share a table, so that they can only be rotated or scaled together."""

    streams: list[Stream]
    segments: list[Segment]
    points: list[Point]
    pre_norm: bool


def wire(architecture: Architecture, observable: Observable) -> Wiring:
    """Lay out points and segments for one observable.

    Raises
    ------
    InputError
        If the observable needs a head that the class does not have, or is constant.
    """
    head = None if observable is Observable.HIDDEN else architecture.head
    if head is None and observable is not Observable.HIDDEN:
        raise InputError(
            f"{architecture.name} has no head, so there are no {observable.value} to observe; "
            "use --observable hidden"
        )
    if head is not None and observable is Observable.PROBABILITIES and head.output.shape[0] == 1:
        raise InputError(
            f"{architecture.name} has one label, whose probability is 1 whatever the parameters; "
            "use --observable logits"
        )
    tied = head is not None and architecture.tied
    tied_tensor = head.output.tensor if head is not None and tied else None
    unread = _unread(architecture, head)

    points: list[Point] = []
    point_behind: dict[int, Point] = {}
    segments: list[Segment] = []
    groups: list[StreamGroup] = []
    attentions: list[Attention] = []
    mlps: list[Mlp] = []
    ends: dict[str, Point] = {}

    for number, stream in enumerate(architecture.streams):
        first_segment, first_point = len(segments), len(points)
        segment = Segment(stream.width, stream.label, embedding=stream.embedding)
        segments.append(segment)
        for table in stream.embedding.tables:
            axis = len(table.rows.shape) - 1
            segment.writers.append(
                Writer(table.label, None, table.rows, axis, table.rows.tensor == tied_tensor)
            )
        current: Point | None = None
        pre_norm = True
        layer: int | None = None
        for step in stream.steps:
            if isinstance(step, Normalize):
                segment.readers.append(step.norm)
                current = Point(step.norm, layer)
                points.append(current)
                segment = Segment(stream.width, stream.label, carries=current)
                segments.append(segment)
                pre_norm = False
                continue
            layer = step.layer
            biases = tuple(
                bias
                for branch in step.branches
                for sublayer in branch.sublayers
                if (bias := _output_bias(sublayer)) is not None
            )
            for branch in step.branches:
                if branch.norm is not None:
                    known = point_behind.get(id(branch.norm))
                    point = known or Point(branch.norm, step.layer)
                    if known is None:
                        point_behind[id(branch.norm)] = point
                        points.append(point)
                        segment.readers.append(branch.norm)
                else:
                    if current is None or segment.writers:
                        raise ValueError(f"layer {step.layer} reads a sum without a norm")
                    point = current
                for sublayer in branch.sublayers:
                    if isinstance(sublayer, Attention):
                        attentions.append(sublayer)
                    else:
                        mlps.append(sublayer)
                    for reader in _readers(sublayer, biases, segment):
                        memory = isinstance(sublayer, Attention) and sublayer.memory
                        if memory and reader.role in (Role.KEY, Role.VALUE):
                            ends[str(memory)].readers.append(reader)
                        else:
                            point.readers.append(reader)
            if segment.carries is not None and not segment.writers:
                segment.carries.carried = True
                segment.carries.carried_biases = biases
            for branch in step.branches:
                for sublayer in branch.sublayers:
                    segment.writers += _writers(sublayer)
            if biases:
                segment.biases.append((step.layer, biases))
        if stream.final is not None:
            end = Point(stream.final, None)
            points.append(end)
            segment.readers.append(stream.final)
        else:
            if current is None or segment.writers:
                raise ValueError(f"{stream.label} ends in a sum without a norm")
            end = current
            segments.remove(segment)
        ends[stream.label] = end
        if number == len(architecture.streams) - 1:
            _finish(end, head, tied, points)
        groups.append(
            StreamGroup([stream], segments[first_segment:], points[first_point:], pre_norm)
        )
    return Wiring(
        architecture,
        observable,
        points,
        segments,
        _merge(groups),
        attentions,
        mlps,
        head,
        tied,
        unread,
        tuple(u.view for u in architecture.unread_without_head if u.view.tensor == tied_tensor),
    )


def _unread(architecture: Architecture, head: Head | None) -> list[Unread]:
    """Parameters that the observed function never reads, the unobserved head's included."""
    found = [*architecture.unread]
    if head is not None:
        return found + list(architecture.unread_with_head)
    found += architecture.unread_without_head
    whole = architecture.head
    if whole is not None:
        views = [None if architecture.tied else whole.output, whole.output_bias]
        if whole.dense is not None:
            views += [whole.dense.weight, whole.dense.bias]
        if whole.norm is not None:
            views += [whole.norm.gain, whole.norm.bias]
        known = {unread.view for unread in found}
        found += [
            Unread(f"{whole.label} ({view.tensor})", view)
            for view in views
            if view is not None and view not in known
        ]
    return found


def _finish(end: Point, head: Head | None, tied: bool, points: list[Point]) -> None:
    """Attach the head's readers, or mark the end as observed."""
    if head is None:
        end.observed = True
        return
    last = end
    if head.dense is not None:
        dense = head.dense
        end.readers.append(Reader(Role.DENSE, dense.label, None, dense.weight, dense.bias))
        if head.norm is None:
            return
        last = Point(head.norm, None)
        points.append(last)
    last.readers.append(
        Reader(Role.OUTPUT, head.label, None, head.output, head.output_bias, tied=tied)
    )


def _merge(groups: list[StreamGroup]) -> list[StreamGroup]:
    """Join streams whose embeddings share a tensor."""
    merged: list[StreamGroup] = []
    for group in groups:
        tensors = {t.rows.tensor for s in group.streams for t in s.embedding.tables}
        for other in merged:
            shared = {t.rows.tensor for s in other.streams for t in s.embedding.tables}
            if tensors & shared:
                other.streams += group.streams
                other.segments += group.segments
                other.points += group.points
                other.pre_norm &= group.pre_norm
                break
        else:
            merged.append(group)
    return merged


def _output_bias(sublayer: Attention | Mlp) -> View | None:
    return sublayer.output_bias if isinstance(sublayer, Attention) else sublayer.down_bias


def _readers(sublayer: Attention | Mlp, biases: tuple[View, ...], segment: Segment) -> list[Reader]:
    label, layer = sublayer.label, sublayer.layer
    if isinstance(sublayer, Attention):
        a = sublayer
        return [
            Reader(Role.QUERY, f"{label} query", layer, a.query, a.query_bias, attention=a),
            Reader(Role.KEY, f"{label} key", layer, a.key, a.key_bias, attention=a),
            Reader(
                Role.VALUE,
                f"{label} value",
                layer,
                a.value,
                a.value_bias,
                attention=a,
                absorbing_biases=biases,
                lands_on=segment,
            ),
        ]
    readers = [Reader(Role.UP, f"{label} up", layer, sublayer.up, sublayer.up_bias)]
    if sublayer.gate is not None:
        readers.append(Reader(Role.GATE, f"{label} gate", layer, sublayer.gate, sublayer.gate_bias))
    return readers


def _writers(sublayer: Attention | Mlp) -> list[Writer]:
    label, layer = sublayer.label, sublayer.layer
    if isinstance(sublayer, Attention):
        writers = [Writer(f"{label} output", layer, sublayer.output, 3)]
    else:
        writers = [Writer(f"{label} down", layer, sublayer.down, 0)]
    if (bias := _output_bias(sublayer)) is not None:
        writers.append(Writer(f"{label} output bias", layer, bias, 0))
    return writers
