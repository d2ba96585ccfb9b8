"""The second route: count what is identified, without counting a single symmetry.

Effective coordinates: fold gains into readers, drop the direction 1 where a LayerNorm hides it,
merge constants that are only seen as a sum, and replace every factor pair by its product. What is
left is the dimension of the canonical form. This file must not use the symmetry rules: it is the
check on them.
"""

from __future__ import annotations

from collections import Counter

from fiberscope.checkpoints.architecture.program import (
    Activation,
    Attention,
    Head,
    NormKind,
    Observable,
)
from fiberscope.checkpoints.ledger.wiring import Point, Role, Segment, StreamGroup, Wiring
from fiberscope.parameters import View


def effective_coordinates(wiring: Wiring) -> int:
    """Number of effective coordinates of the function at generic weights.

    Unlike the union of the symmetries it stays right for heads wider than their inputs.
    """
    total = sum(_attention(wiring, attention) for attention in wiring.attentions)
    for mlp in wiring.mlps:
        segment = wiring.segment_writing(mlp.down)
        rows = [(mlp.up, mlp.up_bias)]
        if mlp.gate is not None:
            rows.append((mlp.gate, mlp.gate_bias))
        for view, bias in rows:
            point = wiring.point_reading(view)
            total += mlp.neurons * _inputs(point, bias)
        total += mlp.neurons * (segment.width - segment.blind)
        total -= mlp.neurons * (mlp.gate is not None)
        total -= mlp.neurons * (mlp.activation is Activation.HOMOGENEOUS)
    for segment in wiring.segments:
        total += len(segment.biases) * (segment.width - segment.blind)
    total += _tables(wiring)
    total += sum(_norm(point) for point in wiring.points)
    if wiring.head is not None:
        total += _head(wiring, wiring.head)
    total -= sum(_rotations(wiring, group) for group in wiring.stream_groups)
    return total


def product_coordinates(width: int, left: int, right: int) -> int:
    """Dimension of the products of generic factors ``(width, left)`` and ``(width, right)``."""
    rank = min(width, left, right)
    return rank * (left + right - rank)


def _constant(point: Point, bias: View | None) -> int:
    return int(bias is not None or point.norm.bias is not None)


def _inputs(point: Point, bias: View | None) -> int:
    return point.width - point.blind + _constant(point, bias)


def _attention(wiring: Wiring, a: Attention) -> int:
    query, key = wiring.point_reading(a.query), wiring.point_reading(a.key)
    value, segment = wiring.point_reading(a.value), wiring.segment_writing(a.output)
    heads, total = a.groups * a.heads_per_group, 0
    planes = a.rotary.planes if a.rotary else ()
    rotated = 2 * len(planes)
    query_inputs, key_inputs = _inputs(query, a.query_bias), _inputs(key, a.key_bias)
    if a.query_norm is None:
        stacked = a.heads_per_group * query_inputs
        # The constant of an unrotated key row is equal for all keys: softmax cancels it.
        unrotated = product_coordinates(a.key_width - rotated, stacked, key.width - key.blind)
        turned = sum(
            2 * product_coordinates(block, stacked, key_inputs)
            for block in Counter(a.rotary.frequencies if a.rotary else ()).values()
        )
        total += a.groups * (unrotated + turned)
    else:
        total += a.key_width * (heads * query_inputs + a.groups * key_inputs)
        # Of the 2 r gains, each rotated plane (two rows) and each unrotated row hides one.
        total += 2 * a.key_width - len(planes) - (a.key_width - rotated)
    seen = segment.width - segment.blind
    total += a.groups * product_coordinates(
        a.value_width, value.width - value.blind, a.heads_per_group * seen
    )
    if _constant(value, a.value_bias) and not _absorbed(wiring, a, segment):
        total += min(a.groups * a.value_width, seen)
    if a.position_table is not None:
        unread = sum(u.view.size for u in wiring.unread if u.view.tensor == a.position_table.tensor)
        total += a.position_table.size - heads - unread
    return total


def _absorbed(wiring: Wiring, a: Attention, segment: Segment) -> bool:
    """Whether biases are added to the segment in the step in which the attention writes."""
    return (a.layer, wiring.reader_of(a, Role.VALUE).absorbing_biases) in segment.biases


def _tables(wiring: Wiring) -> int:
    """Embedding rows, less the constants that can move between tables."""
    total, counted = 0, set()
    for segment in wiring.segments:
        if segment.embedding is None:
            continue
        seen = segment.width - segment.blind
        tied = {w.view.tensor for w in segment.writers if w.tied}
        for table in segment.embedding.tables:
            if table.rows in counted:
                continue
            counted.add(table.rows)
            rows = table.rows.size // segment.width
            total += rows * (segment.width if table.rows.tensor in tied else seen)
        for tables in segment.embedding.sums:
            free = sum(table.tensor not in tied for table in tables)
            total -= max(0, free - 1) * seen
    return total


def _norm(point: Point) -> int:
    """Gains and biases that cannot be folded away."""
    tied = any(reader.tied for reader in point.readers)
    total = 0
    if point.norm.gain is not None and (point.observed or point.carried or tied):
        total += point.width
    if point.norm.bias is not None:
        merged_in_head = all(r.bias is not None for r in point.readers if r.tied)
        if point.observed or (point.carried and not point.carried_biases) or not merged_in_head:
            total += point.width
    return total


def _head(wiring: Wiring, head: Head) -> int:
    total = 0
    labels = head.output.shape[0]
    if head.dense is not None:
        point = wiring.point_reading(head.dense.weight)
        units = head.dense.weight.shape[0]
        total += units * _inputs(point, head.dense.bias)
        if head.norm is None and head.dense.activation is Activation.HOMOGENEOUS:
            total -= units
    direct = head.dense is not None and head.norm is None
    if direct:
        inputs, constant = head.output.shape[1], int(head.output_bias is not None)
    else:
        point = next(p for p in wiring.points if any(r.role is Role.OUTPUT for r in p.readers))
        inputs, constant = point.width - point.blind, _constant(point, head.output_bias)
    softmax = wiring.observable is Observable.PROBABILITIES
    if wiring.tied:
        has_bias = head.output_bias is not None
        total += labels * has_bias
        only = sum(view.shape[0] for view in wiring.output_only)
        total += only * (inputs + int(constant and not has_bias))
        if not softmax and _rows_move_together(wiring, head, point):
            total -= 1
        if softmax:
            tied = [s for s in wiring.segments if any(w.tied for w in s.writers)]
            movable = any(
                len(tables) > 1 and any(t.tensor == head.output.tensor for t in tables)
                for segment in tied
                for tables in (segment.embedding.sums if segment.embedding else ())
            )
            hidden = min(segment.blind for segment in tied)
            total -= (head.output.shape[1] if movable else hidden) + has_bias
    else:
        total += (labels - int(softmax)) * (inputs + constant)
    return total


def _rows_move_together(wiring: Wiring, head: Head, point: Point) -> bool:
    """Whether all rows of a tied table can move along 1/gain at once without being noticed.

    The logits then move by one constant, which a bias takes; the embedding moves too, which
    another table takes.
    """
    if not point.blind or (head.output_bias is None and point.norm.bias is not None):
        return False
    tied = [s for s in wiring.segments if any(w.tied for w in s.writers)]
    return any(
        len(tables) > 1 and any(t.tensor == head.output.tensor for t in tables)
        for segment in tied
        for tables in (segment.embedding.sums if segment.embedding else ())
    )


def _rotations(wiring: Wiring, group: StreamGroup) -> int:
    """An untied pre-norm stream is known only up to a rotation."""
    norms = [norm for segment in group.segments for norm in segment.readers]
    names = {id(norm) for norm in norms}
    points = [point for point in wiring.points if id(point.norm) in names]
    tied = any(writer.tied for segment in group.segments for writer in segment.writers)
    if not group.pre_norm or tied or any(p.observed or p.carried for p in points):
        return 0
    kinds = {norm.kind for norm in norms}
    if len(kinds) != 1:
        return 0
    turning = group.segments[0].width - int(kinds == {NormKind.LAYER})
    return turning * (turning - 1) // 2
