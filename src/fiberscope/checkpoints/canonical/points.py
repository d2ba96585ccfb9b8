"""Norms and their readers in canonical form: gains and constants folded, free directions empty."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.cancelling import (
    DEVIATIONS,
    deviation_of_sum,
    note_cancelling,
)
from fiberscope.checkpoints.canonical.frame import IDENTITY, Frame
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.workspace import (
    Workspace,
    along_last,
    along_rest,
    dot_last,
    dot_squares,
    is_rounding,
    tiles,
    without_mean,
)
from fiberscope.checkpoints.ledger.rules.constants import norm_bias_is_free
from fiberscope.checkpoints.ledger.rules.norms import gain_is_free
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Wiring

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Style:
    """Which parts of the canonical form are wanted; all of them by default."""

    fold: bool = True
    centre: bool = True
    frame: bool = True
    balance: bool = True
    order: bool = True
    constants: bool = True
    drop: bool = False
    keep_unread: bool = False


@dataclass
class PointForm:
    """What becomes of one norm.

    Attributes
    ----------
    gain, bias
        As stored, None where there is none.
    new_gain, new_bias
        In canonical form and in the new frame.
    frame
        Of the stream that the norm reads.
    centred
        Whether rows of readers are made to sum to zero (a LayerNorm's free direction).
    """

    point: Point
    gain: Array | None
    bias: Array | None
    new_gain: Array | None
    new_bias: Array | None
    frame: Frame
    centred: bool

    @property
    def settled(self) -> bool:
        """Whether nothing changes."""
        return (
            self.frame.identity
            and _same(self.gain, self.new_gain)
            and _same(self.bias, self.new_bias)
        )

    def lost(self) -> Array | None:
        """The constant vector taken from the norm, as stored (before the frame's change)."""
        if self.bias is None or not norm_bias_is_free(self.point):
            return None
        return self.bias


def _same(old: Array | None, new: Array | None) -> bool:
    if old is None or new is None:
        return old is new
    return np.array_equal(old, new)


def point_form(
    point: Point, frame: Frame, work: Workspace, style: Style, places: Places
) -> PointForm:
    """Gains become 1 and biases 0 where readers can take them.

    Where a reader without a bias sees the norm's bias, that cannot vanish: it becomes the gain, so
    that constants lie along the direction that normalised vectors do not reach.
    """
    norm = point.norm
    gain = None if norm.gain is None else work.read(norm.gain)
    bias = None if norm.bias is None else work.read(norm.bias)
    new_gain = None if gain is None else frame.reorder(gain)
    if gain is not None and style.fold and gain_is_free(point):
        places.note_dead("weights behind a zero gain", int(np.count_nonzero(gain == 0)))
        new_gain = np.ones_like(gain)
    new_bias = None if bias is None else frame.apply(bias)
    if bias is not None and style.constants and norm_bias_is_free(point):
        unbiased = any(reader.bias is None and not reader.tied for reader in point.readers)
        new_bias = np.zeros_like(bias)
        if unbiased:
            new_bias = np.ones_like(bias) if new_gain is None else new_gain.copy()
    centred = bool(point.blind) and style.constants
    if centred and new_gain is not None and not new_gain.all():
        # Behind a zero gain that stays, the free direction is that feature's own.
        centred = False
    return PointForm(point, gain, bias, new_gain, new_bias, frame, centred)


@dataclass
class Folded:
    """A reader's rows and constants on normalised vectors, in the new frame.

    ``changed`` says whether they differ from what is stored by more than its rounding. ``lost`` is
    the mean taken from each row, and ``summed`` the size of what each constant is a sum of: what is
    stored is rounded with them. ``deviation`` is how far that rounding moves each constant.
    ``rounded`` says that the rows are what will be read again, so that nothing is to be centred.
    """

    reader: Reader
    form: PointForm
    rows: Array
    constant: Array | None
    changed: bool
    spacing: float
    small_constant: Array | None = field(default=None)
    lost: Array | None = field(default=None)
    summed: Array | None = field(default=None)
    deviation: Array | None = field(default=None)
    rounded: bool = False

    @property
    def no_constant(self) -> bool:
        """Whether the constants are zero, up to the rounding of what they are sums of."""
        if self.constant is None:
            return True
        if self.reader.bias is not None or self.small_constant is None:
            return not self.constant.any()
        return bool((np.abs(self.constant) <= self.small_constant).all())

    def drop_constant(self) -> None:
        """Set the constants to zero."""
        if not self.no_constant:
            self.changed = True
        if self.constant is not None:
            self.constant = np.zeros_like(self.constant)
        self.deviation = None


def fold(reader: Reader, form: PointForm, work: Workspace) -> Folded:
    """Read a reader, its norm's gain and bias folded in."""
    frame = form.frame
    # Numbers that only move do so before they are widened: that is cheaper.
    order = frame.order if frame.exact else None
    rows = work.read(reader.weight, order)
    bias = None if reader.bias is None else work.read(reader.bias)
    gain, norm_bias = form.gain, form.bias
    if order is not None:
        gain = None if gain is None else gain[order]
        norm_bias = None if norm_bias is None else norm_bias[order]
    spacing = work.spacing(reader.weight, form.point.norm.gain)
    constant = bias
    small: Array | None = None
    brings = norm_bias is not None and bool(norm_bias.any())
    scales = gain is not None and bool((gain != 1).any())
    changed = not form.settled
    # What the norm's bias brings, and means with the gain folded in, in one pass.
    directions = np.zeros((2, rows.shape[-1]))
    if norm_bias is not None:
        directions[0] = norm_bias
    directions[1] = (1.0 if gain is None else gain) / rows.shape[-1]
    if brings or form.centred:
        brought, means = dot_last(rows, directions)
    if norm_bias is not None:
        if brings:
            constant = brought if constant is None else constant + brought
            if reader.bias is None:
                small = 8.0 * spacing * np.sqrt(dot_squares(rows, norm_bias**2))
        elif constant is None:
            constant = np.zeros(rows.shape[:-1])
    lost = means if form.centred else None
    summed: Array | None = None
    deviation: Array | None = None
    if constant is not None:
        summed = np.zeros_like(constant) if bias is None else np.abs(bias)
        if brings and norm_bias is not None:
            squares = summed**2 + 2.0 * dot_squares(rows, norm_bias**2)
            deviation = deviation_of_sum(squares, spacing)
            summed = summed + np.abs(brought)
    carried = reader.bias is None and form.bias is not None
    if form.centred and (carried or changed):
        without_mean(rows, means, spacing, gain if scales else None)
    else:
        if scales and gain is not None:
            for part, factor in zip(tiles(rows), along_last(rows, gain), strict=True):
                part *= factor
        if form.centred and not is_rounding(means, rows, spacing):
            without_mean(rows, means, spacing)
            changed = True
    if constant is not None and deviation is not None:
        constant = _without_rounding(constant, deviation, rows)
    if frame.exact:
        frame.negate(rows)
    else:
        rows = frame.turned(rows, spacing)
    return Folded(reader, form, rows, constant, changed, spacing, small, lost, summed, deviation)


def _without_rounding(constant: Array, deviation: Array, rows: Array) -> Array:
    """Beside a row of zeros a constant that rounding explains is zero, too: nothing is read."""
    small = (constant != 0) & (np.abs(constant) <= DEVIATIONS * deviation)
    if small.any():
        small[small] = ~rows[small].any(axis=-1)
    return np.where(small, 0.0, constant) if small.any() else constant


def centre_read(folded: Folded) -> None:
    """Rows behind a LayerNorm sum to zero to rounding, whatever they have been multiplied with."""
    if not folded.form.centred:
        return
    rows = folded.rows
    (means,) = dot_last(rows, np.full((1, rows.shape[-1]), 1.0 / rows.shape[-1]))
    for part, mean in zip(tiles(rows), along_rest(rows, means), strict=True):
        part -= mean


def unfold(folded: Folded, work: Workspace, places: Places) -> None:
    """Write a reader back, for its norm's canonical gain and bias."""
    _note_constants(folded, places)
    if not folded.changed:
        return
    rows, constant = _unfolded(folded)
    bias = folded.reader.bias
    if bias is not None and constant is not None:
        work.write(bias, constant)
    work.write(folded.reader.weight, rows)


def _unfolded(folded: Folded) -> tuple[Array, Array | None]:
    """Weight and bias of a reader for its norm's canonical gain and bias."""
    form = folded.form
    if not folded.rounded:
        centre_read(folded)
    rows, constant = folded.rows, folded.constant
    gain = form.new_gain
    if gain is not None and (gain != 1).any():
        rows = np.divide(rows, gain, out=np.zeros_like(rows), where=gain != 0)
    if form.new_bias is not None and form.new_bias.any():
        brought = rows @ form.new_bias
        constant = -brought if constant is None else constant - brought
        if folded.reader.bias is None:
            rows, constant = _along_direction(rows, constant, form), None
    return rows, constant


def as_stored(folded: Folded, work: Workspace) -> None:
    """Replace rows and constants by what will be read of them once they are written."""
    form, reader = folded.form, folded.reader
    rows, constant = _unfolded(folded)
    rows = work.rounded_as(reader.weight, rows)
    if reader.bias is not None and constant is not None:
        constant = work.rounded_as(reader.bias, constant)
    if form.new_bias is not None and form.new_bias.any():
        brought = rows @ form.new_bias
        constant = brought if constant is None else constant + brought
    if folded.constant is not None:
        folded.constant = np.zeros_like(folded.constant) if constant is None else constant
    folded.rows = rows if form.new_gain is None else rows * form.new_gain
    if reader.bias is None and form.bias is not None:
        centre_read(folded)
    folded.rounded = True


def _any(values: Array | None) -> bool:
    return values is not None and bool(values.any())


def _note_constants(folded: Folded, places: Places) -> None:
    """Count constants on their way into the reader's bias that rounding decides."""
    form, reader = folded.form, folded.reader
    if folded.constant is None or folded.deviation is None or reader.bias is None:
        return
    if _any(form.new_bias):
        return
    note_cancelling(
        places, reader.layer, reader.label, folded.constant, folded.deviation, folded.spacing
    )


def _along_direction(rows: Array, constant: Array, form: PointForm) -> Array:
    """Rows that bring a constant along the direction that normalised vectors do not reach."""
    assert form.new_bias is not None
    gain = np.ones(rows.shape[-1]) if form.new_gain is None else form.new_gain
    if form.centred:
        return rows + (constant / (form.new_bias @ (1.0 / gain)))[..., None] / gain
    return rows


def point_frames(wiring: Wiring, frames: list[Frame]) -> dict[int, Frame]:
    """Frame of every point: that of its group of streams."""
    found: dict[int, Frame] = {}
    for group, frame in zip(wiring.stream_groups, frames, strict=True):
        norms = {id(norm) for segment in group.segments for norm in segment.readers}
        for point in wiring.points:
            if id(point.norm) in norms:
                found[id(point)] = frame
    return {id(point): found.get(id(point), IDENTITY) for point in wiring.points}
