"""Everything written along the residual stream, and the end of it: tables, biases, unembedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.canonical.fixed_rows import looked_up
from fiberscope.checkpoints.canonical.frame import COARSE, Frame
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.points import Folded, PointForm, Style
from fiberscope.checkpoints.canonical.workspace import (
    ROUNDINGS,
    Workspace,
    is_rounding,
    without_mean,
)
from fiberscope.checkpoints.ledger.rules.constants import norm_bias_is_free
from fiberscope.checkpoints.ledger.rules.outputs import absorbing_table, written_blindly
from fiberscope.checkpoints.ledger.wiring import Segment, Wiring
from fiberscope.parameters import View

Array = NDArray[np.float64]


def read_writer(
    view: View, axis: int, segment: Segment, frame: Frame, work: Workspace, style: Style
) -> tuple[Array, bool]:
    """Vectors that a matrix writes, along the last axis, centred where nobody reads their mean.

    Returns
    -------
    vectors
        In the new frame.
    changed
        Whether they differ from what is stored by more than its rounding.
    """
    vectors = work.read(view, frame.order if frame.exact else None, axis)
    changed = not frame.identity
    spacing = work.spacing(view)
    if segment.blind and style.centre:
        means = vectors.mean(axis=-1)
        if changed or not is_rounding(means, vectors, spacing):
            without_mean(vectors, means, spacing)
            changed = True
    if frame.exact:
        frame.negate(vectors)
    else:
        vectors = frame.turned(vectors, spacing)
    return vectors, changed


@dataclass
class Constants:
    """Constant vectors, in the new frame, on their way into the output biases that take them."""

    work: Workspace
    added: dict[View, Array] = field(default_factory=dict)

    def add(self, bias: View, vector: Array) -> None:
        """Add a constant to one bias."""
        self.added[bias] = self.added.get(bias, np.zeros(bias.shape)) + vector

    def write(self, segment: Segment, frame: Frame, style: Style) -> None:
        """Write the biases of a segment: each step's sum in its first, centred, in the frame."""
        work = self.work
        for _, biases in segment.biases:
            old = {bias: work.read(bias) for bias in biases}
            new = {b: frame.apply(old[b]) + self.added.get(b, 0.0) for b in biases}
            if style.constants and len(biases) > 1:
                new[biases[0]] = sum(new.values(), np.zeros(biases[0].shape))
                new |= {bias: np.zeros(bias.shape) for bias in biases[1:]}
            for bias, value in new.items():
                changed = not frame.identity or not np.array_equal(value, old[bias])
                if segment.blind and style.centre:
                    mean = value.mean()
                    if changed or not is_rounding(mean, value, work.spacing(bias)):
                        value = value - mean
                        changed = True
                if changed:
                    work.write(bias, value)


def write_tables(
    wiring: Wiring,
    frames: Mapping[int, Frame],
    work: Workspace,
    style: Style,
) -> None:
    """Embedding tables: shifts between them settled, centred, in the frame.

    ``frames`` has the frame of every segment by identity.
    """
    if style.constants:
        _settle_tied(wiring, work)
        for segment in wiring.segments:
            _settle_sums(segment, wiring, work)
    done: set[View] = set()
    turned: set[tuple[str, int]] = set()
    for segment in wiring.segments:
        frame = frames[id(segment)]
        for writer in segment.writers:
            if writer.layer is not None or writer.view in done:
                continue
            done.add(writer.view)
            if segment.blind and style.centre and not writer.tied:
                _centre(writer.view, writer.axis, work)
            if not frame.identity:
                _turn(writer.view, writer.axis, frame, work, turned)
    if wiring.tied:
        _turn_output_only(wiring, frames, work, turned)


def _values(view: View, work: Workspace) -> Array:
    """A table with what has been written to it, float64."""
    window = view.window(work.current(view.tensor))
    return np.array(window, dtype=np.float64, order="C") + view.offset


def _centre(view: View, axis: int, work: Workspace) -> None:
    values = _values(view, work)
    means = values.mean(axis=axis, keepdims=True)
    if is_rounding(np.squeeze(means, axis), values, work.spacing(view), axis=axis):
        return
    work.write(view, values - means)


def _turn(
    view: View, axis: int, frame: Frame, work: Workspace, turned: set[tuple[str, int]]
) -> None:
    """Change the frame of a table; a whole tensor at once, exactly where numbers only move."""
    shape = view.stored_shape
    whole = len(shape) == 2 and shape[1] == view.shape[-1] and axis in (-1, len(view.shape) - 1)
    if whole:
        if (view.tensor, 1) in turned:
            return
        turned.add((view.tensor, 1))
        current = work.current(view.tensor)
        if frame.exact:
            work.replace(view.tensor, frame.apply(current))
        else:
            work.replace(view.tensor, _rotated(current, frame, work.spacing(view)))
        return
    vectors = np.moveaxis(_values(view, work), axis, -1)
    work.write(view, np.moveaxis(frame.apply(vectors), -1, axis))


def _rotated(array: NDArray[Any], frame: Frame, spacing: float) -> NDArray[Any]:
    """A rotated table, a chunk at a time."""
    moved = np.empty(array.shape, dtype=np.float32 if spacing >= COARSE else np.float64)
    step = max(1, (1 << 22) // array.shape[1])
    for start in range(0, len(array), step):
        moved[start : start + step] = frame.turned(
            array[start : start + step].astype(np.float64), spacing
        )
    return moved


def _turn_output_only(
    wiring: Wiring,
    frames: Mapping[int, Frame],
    work: Workspace,
    turned: set[tuple[str, int]],
) -> None:
    """Rows of a tied table that no input looks up turn with the others."""
    for segment in wiring.segments:
        if any(writer.tied for writer in segment.writers):
            frame = frames[id(segment)]
            for view in wiring.output_only:
                if not frame.identity:
                    _turn(view, len(view.shape) - 1, frame, work, turned)


def _settle_sums(segment: Segment, wiring: Wiring, work: Workspace) -> None:
    """Of tables that are always added together all but the first have mean row zero."""
    if segment.embedding is None:
        return
    tied = {writer.view.tensor for writer in segment.writers if writer.tied}
    for tables in segment.embedding.sums:
        free = [table for table in tables if table.tensor not in tied]
        for table in free[1:]:
            values = _values(table, work)
            keep = looked_up(wiring, table)
            mean = values[keep].mean(axis=0)
            if is_rounding(mean, values[keep], work.spacing(table), axis=0):
                continue
            work.write(table, values - mean)
            work.write(free[0], _values(free[0], work) + mean)


def _settle_tied(wiring: Wiring, work: Workspace) -> None:
    """Shifts of a tied table that a bias, the softmax and another table take back."""
    head = wiring.head
    point = wiring.tied_point
    if head is None or not wiring.tied or point is None:
        return
    table, bias = head.output, head.output_bias
    into = absorbing_table(wiring, table.tensor)
    probabilities = wiring.observable is Observable.PROBABILITIES
    gain = np.ones(point.width) if point.norm.gain is None else work.read(point.norm.gain)
    safe = bool(point.blind) and bool(gain.all())
    along = safe and bias is not None
    keep = looked_up(wiring, table)
    moving = probabilities and (into is not None or written_blindly(wiring, table.tensor))
    if not moving and not (along and (into is not None or wiring.output_only)):
        return
    values = _values(table, work)
    spacing = work.spacing(table)
    lost = np.zeros(values.shape)
    if moving or into is not None:
        mean = values[keep].mean(axis=0)
        if probabilities and into is None:
            mean = np.full_like(mean, mean.mean())
        elif not probabilities:
            mean = (mean @ gain) / len(mean) / gain
        settled = is_rounding(mean, values[keep], spacing, axis=0)
        if not settled and (not probabilities or into is not None or moving):
            lost += mean
            if into is not None:
                work.write(into, _values(into, work) + mean)
    if along and wiring.output_only:
        rows = ~keep
        tilt = ((values - lost)[rows] @ gain) / values.shape[1]
        if not is_rounding(tilt, (values - lost)[rows] * gain, spacing):
            lost[rows] += tilt[:, None] / gain
    if not lost.any():
        return
    work.write(table, values - lost)
    if bias is not None and point.norm.bias is not None and not norm_bias_is_free(point):
        work.write(bias, _values(bias, work) + lost @ work.read(point.norm.bias))


def settle_tied_bias(wiring: Wiring, form: PointForm, work: Workspace, style: Style) -> None:
    """The bias of a tied unembedding takes the constant of the norm's bias."""
    head = wiring.head
    if head is None or not wiring.tied or head.output_bias is None:
        return
    bias = head.output_bias
    value = _values(bias, work)
    changed = False
    if style.constants and (lost := form.lost()) is not None and lost.any():
        value = value + _values(head.output, work) @ lost
        changed = True
    if wiring.observable is Observable.PROBABILITIES and style.constants:
        mean = value[looked_up(wiring, head.output)].mean()
        if changed or abs(mean) > ROUNDINGS * work.spacing(bias) * np.sqrt(np.mean(value**2)):
            value = value - mean
            changed = True
    if changed:
        work.write(bias, value)


def settle_unembedding(output: Folded, wiring: Wiring, style: Style) -> None:
    """Softmax cancels what all logits share: rows and constants of the unembedding sum to zero."""
    if wiring.observable is not Observable.PROBABILITIES or not style.constants:
        return
    means = output.rows.mean(axis=0)
    if not is_rounding(means, output.rows, output.spacing, axis=0):
        output.rows = output.rows - means
        output.changed = True
    if output.constant is not None:
        mean = output.constant.mean()
        allowed = ROUNDINGS * output.spacing * np.sqrt(np.mean(output.constant**2))
        if output.small_constant is not None:
            # Constants without a bias are sums of what is stored, and have its rounding.
            allowed += np.linalg.norm(output.small_constant) / output.constant.size
        if abs(mean) > allowed:
            output.constant = output.constant - mean
            output.changed = True


def settle_positions(wiring: Wiring, work: Workspace, style: Style) -> None:
    """Softmax cancels what all keys share: every head's column of a position table sums to zero."""
    if not style.constants:
        return
    for attention in wiring.attentions:
        table = attention.position_table
        if table is None:
            continue
        values = _values(table, work)
        reached = reached_buckets(wiring, table)
        mean = values[reached].mean(axis=0)
        if not is_rounding(mean, values[reached], work.spacing(table), axis=0):
            work.write(table, values - mean)


def reached_buckets(wiring: Wiring, table: View) -> NDArray[np.bool_]:
    """Buckets of a position table that some distance reaches."""
    marks = np.ones(table.stored_shape, dtype=np.int8)
    for unread in wiring.unread:
        if unread.view.tensor == table.tensor:
            unread.view.window(marks)[...] = 0
    seen = table.window(marks).reshape(table.shape[0], -1)
    return np.asarray(seen.any(axis=1))


def drop_unread(wiring: Wiring, work: Workspace, style: Style, places: Places) -> None:
    """Parameters that nothing reads are zero."""
    if style.keep_unread or not style.constants:
        return
    for unread in wiring.unread:
        values = _values(unread.view, work)
        if values.any():
            places.note_dead("unread parameters", int(np.count_nonzero(values)))
            work.write(unread.view, np.zeros(unread.view.shape))
