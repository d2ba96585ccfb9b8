"""Everything written along the residual stream, and the end of it: tables, biases, unembedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.canonical.cancelling import deviation_of_sum, note_cancelling
from fiberscope.checkpoints.canonical.fixed_rows import looked_up
from fiberscope.checkpoints.canonical.frame import COARSE, Frame
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.points import Folded, PointForm, Style
from fiberscope.checkpoints.canonical.workspace import (
    ARITHMETIC,
    FLOOR,
    ROUNDINGS,
    Workspace,
    dot_squares,
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


def centre_written(vectors: Array, segment: Segment, style: Style) -> None:
    """Vectors that nobody sees the mean of sum to zero to rounding, however they were computed."""
    if segment.blind and style.centre:
        vectors -= vectors.mean(axis=-1, keepdims=True)


@dataclass
class Constants:
    """Constant vectors, in the new frame, on their way into the output biases that take them."""

    work: Workspace
    added: dict[View, Array] = field(default_factory=dict)
    deviations: dict[View, float] = field(default_factory=dict)

    def add(self, bias: View, vector: Array, deviation: float) -> None:
        """Add a constant to one bias, and how far rounding has moved its entries at most."""
        self.added[bias] = self.added.get(bias, np.zeros(bias.shape)) + vector
        self.deviations[bias] = float(np.hypot(self.deviations.get(bias, 0.0), deviation))

    def write(self, segment: Segment, frame: Frame, style: Style, places: Places) -> None:
        """Write the biases of a segment: each step's sum in its first, centred, in the frame."""
        work = self.work
        for layer, biases in segment.biases:
            old = {bias: work.read(bias) for bias in biases}
            new = {b: frame.apply(old[b]) + self.added.get(b, 0.0) for b in biases}
            if style.constants and len(biases) > 1:
                new[biases[0]] = sum(new.values(), np.zeros(biases[0].shape))
                new |= {bias: np.zeros(bias.shape) for bias in biases[1:]}
            settled = np.zeros(0)
            for bias, value in new.items():
                changed = not frame.identity or not np.array_equal(value, old[bias])
                if segment.blind and style.centre:
                    mean = value.mean()
                    if changed or not is_rounding(mean, value, work.spacing(bias)):
                        value = value - mean
                        changed = True
                if changed:
                    work.write(bias, value)
                settled = value if bias == biases[0] else settled
            if any(bias in self.added for bias in biases):
                # All that the step adds is in its first bias by now.
                spacing = work.spacing(*biases)
                largest = max(float(np.abs(value).max()) for value in old.values())
                deviation = float(deviation_of_sum(np.square(largest), spacing))
                for bias in biases:
                    deviation = float(np.hypot(deviation, self.deviations.get(bias, 0.0)))
                where = f"output bias of layer {layer}"
                note_cancelling(places, layer, where, settled, deviation, spacing)


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
        head = wiring.head
        exact = head is not None and wiring.tied and work.spacing(head.output) <= ARITHMETIC
        # Twice: what large shifts leave of their own rounding shows in float64 storage.
        for _ in range(2 if exact else 1):
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
        if probabilities and into is not None:
            settled = is_rounding(mean, values[keep], spacing, axis=0)
        else:
            direction = np.ones_like(gain) if probabilities else 1.0 / gain
            size = np.sqrt(np.mean(values[keep] ** 2, axis=0))
            mean, settled = _along(mean, size, direction, spacing)
        if not settled:
            lost += mean
            if into is not None:
                work.write(into, _values(into, work) + mean)
    if along and wiring.output_only:
        rows = ~keep
        left = (values - lost)[rows]
        tilt, settled = _along(left, np.abs(left), 1.0 / gain, spacing)
        if not settled:
            lost[rows] += tilt
    if not lost.any():
        return
    work.write(table, values - lost)
    if bias is not None and point.norm.bias is not None and not norm_bias_is_free(point):
        work.write(bias, _values(bias, work) + lost @ work.read(point.norm.bias))


def _along(vectors: Array, sizes: Array, direction: Array, spacing: float) -> tuple[Array, bool]:
    """Parts of vectors along a direction, and whether they are no more than rounding.

    The orthogonal part is what a shift along the direction leaves of a vector, and rounding errors
    do not grow in it, however unequal the entries of the direction are. Entries of size s are
    rounded by at most half their spacing, which adds at most ``spacing / 2 * sum |u_i| s_i`` to a
    product with u; arithmetic adds a little of the whole vector.
    """
    unit = direction / np.linalg.norm(direction)
    along = vectors @ unit
    allowed = 0.55 * spacing * (sizes @ np.abs(unit)) + FLOOR * np.linalg.norm(sizes, axis=-1)
    settled = bool((np.abs(along) <= allowed).all())
    return along[..., None] * unit, settled


def settle_tied_bias(
    wiring: Wiring, form: PointForm, work: Workspace, style: Style, places: Places
) -> None:
    """The bias of a tied unembedding takes the constant of the norm's bias."""
    head = wiring.head
    if head is None or not wiring.tied or head.output_bias is None:
        return
    bias = head.output_bias
    value = _values(bias, work)
    changed = False
    deviation: Array | None = None
    if style.constants and (lost := form.lost()) is not None and lost.any():
        table = _values(head.output, work)
        squares = value**2 + 2.0 * dot_squares(table, lost**2)
        deviation = deviation_of_sum(squares, work.spacing(bias, head.output))
        value = value + table @ lost
        changed = True
    if wiring.observable is Observable.PROBABILITIES and style.constants:
        seen = looked_up(wiring, head.output)
        mean = value[seen].mean()
        if changed or abs(mean) > ROUNDINGS * work.spacing(bias) * np.sqrt(np.mean(value**2)):
            value = value - mean
            value -= value[seen].mean()
            changed = True
    if deviation is not None:
        spacing = work.spacing(bias, head.output)
        note_cancelling(places, None, f"{head.label}, bias", value, deviation, spacing)
    if changed:
        work.write(bias, value)


def settle_unembedding(output: Folded, wiring: Wiring, style: Style) -> None:
    """Softmax cancels what all logits share: rows and constants of the unembedding sum to zero."""
    if wiring.observable is not Observable.PROBABILITIES or not style.constants:
        return
    # What is written anyway has no reason to be less exact than float64 makes it.
    means = output.rows.mean(axis=0)
    entries = output.rows
    if output.lost is not None and output.reader.bias is None:
        # Means were taken from what is stored: its rounding, and that of the means.
        entries = np.abs(output.rows + output.lost[:, None])
        entries += entries.mean(axis=1, keepdims=True)
    if output.changed or not is_rounding(means, entries, output.spacing, axis=0):
        output.rows = _twice_centred(output.rows)
        output.changed = True
    if output.constant is not None:
        mean = output.constant.mean()
        allowed = ROUNDINGS * output.spacing * np.sqrt(np.mean(output.constant**2))
        if output.small_constant is not None:
            # Constants without a bias are sums of what is stored, and have its rounding.
            allowed += np.linalg.norm(output.small_constant) / output.constant.size
        if output.changed or abs(mean) > allowed:
            output.constant = _twice_centred(output.constant)
            output.changed = True


def _twice_centred(values: Array) -> Array:
    """Less the mean over the first axis, and less what a large mean leaves of its rounding."""
    centred = values - values.mean(axis=0)
    return np.asarray(centred - centred.mean(axis=0))


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
