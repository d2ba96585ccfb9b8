"""Where the parameters stand along each shift or scaling of the ledger: coordinates of an orbit.

For a translation by ``s`` the coordinate rises by ``s``, for a scaling by ``c`` it is multiplied by
``c``, so that the element which leads to a wanted coordinate can be read off. Matching all
mechanisms in the order of :data:`ORDER` leads from one point of an orbit of their union to another:
no step disturbs a coordinate that is already matched.

Why this order: gains scale biases and readers, so they come first, with the other scalings, whose
coordinates are computed from rows that no shift changes (gain folded in, mean removed behind a
LayerNorm, the norm's bias counted as a constant). Then shifts from norms to readers to output
biases, then along the stream; a norm's bias moves readers along their free input directions,
those move reader biases, values' biases move output biases. Sums over rows come before single
rows. Changes of basis, rotations and permutations belong between the gains and everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.readers import constant_of, signed_norm, visible_rows
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.rules.constants import (
    ALONG_ONES,
    INPUT_DIRECTION,
    KEY_BIAS,
    NORM_BIAS,
    PARALLEL_BIAS,
    VALUE_BIAS,
    key_constant_rows,
    unrotated_index,
    value_kernel,
)
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY_GAIN, QUERY_KEY_SCALE
from fiberscope.checkpoints.ledger.rules.mlp import GATED, HEAD_SCALE, HOMOGENEOUS
from fiberscope.checkpoints.ledger.rules.norms import NORM_GAIN
from fiberscope.checkpoints.ledger.rules.outputs import (
    SCORE_SHIFT,
    UNEMBEDDING_SHIFT,
    UNREAD,
    first_row,
)
from fiberscope.checkpoints.ledger.rules.stream import EMBEDDING_SHIFT, STREAM_SCALE
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, Wiring, Writer
from fiberscope.errors import InputError
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import Element, Scaling, Symmetry, Translation

SCALINGS = (
    NORM_GAIN,
    QUERY_KEY_GAIN,
    STREAM_SCALE,
    QUERY_KEY_SCALE,
    HEAD_SCALE,
    GATED,
    HOMOGENEOUS,
)
SHIFTS = (
    NORM_BIAS,
    UNEMBEDDING_SHIFT,
    INPUT_DIRECTION,
    KEY_BIAS,
    VALUE_BIAS,
    PARALLEL_BIAS,
    EMBEDDING_SHIFT,
    ALONG_ONES,
    SCORE_SHIFT,
    UNREAD,
)
ORDER = SCALINGS + SHIFTS
"""Mechanisms with a coordinate, in the order in which matching them all works."""

Array = NDArray[np.float64]


def has_coordinate(item: Item) -> bool:
    """Whether an entry of the ledger is a shift or a scaling, and so has a coordinate."""
    return item.build is not None and item.mechanism in ORDER and item.dimension > 0


def in_order(items: Iterable[Item]) -> list[Item]:
    """The entries that have a coordinate, sorted so that matching one after the other works."""
    rank = {mechanism: place for place, mechanism in enumerate(ORDER)}
    return sorted(filter(has_coordinate, items), key=lambda item: rank[item.mechanism])


def coordinate(item: Item, wiring: Wiring, parameters: Parameters) -> Array:
    """Where the parameters stand along the symmetry of one entry.

    Returns
    -------
    ndarray of float64
        In the shape of the symmetry's elements. Acting by ``s`` makes it ``coordinate + s``
        (translations) or ``coordinate * s`` (scalings).

    Raises
    ------
    ValueError
        If the entry has no coordinate (a change of basis, a rotation, a discrete symmetry).
    """
    if not has_coordinate(item) or item.build is None:
        raise ValueError(f"{item.mechanism} is no shift or scaling and has no coordinate")
    symmetry = item.build()
    found = _COORDINATES[item.mechanism](item, symmetry, wiring, parameters)
    return np.asarray(found, dtype=np.float64).reshape(np.shape(symmetry.identity()))


def step_to(item: Item, wiring: Wiring, parameters: Parameters, target: Element) -> Array:
    """The element that moves the parameters to a wanted coordinate.

    A factor whose coordinate is zero on either side is left at 1: nothing leads from zero to
    another value, and a zero gain or row is a point with more freedom than the entry describes.

    Returns
    -------
    ndarray of float64
        ``target - coordinate`` or ``target / coordinate``, in the shape of the elements.

    Raises
    ------
    ValueError
        As :func:`coordinate`.
    InputError
        If a positive scaling would need a negative factor.
    """
    now = coordinate(item, wiring, parameters)
    wanted = np.asarray(target, dtype=np.float64).reshape(now.shape)
    assert item.build is not None
    symmetry = item.build()
    if isinstance(symmetry, Translation):
        return wanted - now
    assert isinstance(symmetry, Scaling)
    possible = (now != 0) & (wanted != 0)
    factor = np.divide(wanted, now, out=np.ones_like(now), where=possible)
    if symmetry.positive and (factor < 0).any():
        raise InputError(f"{symmetry.name} has only positive factors and cannot change a sign")
    return factor


def neutral(item: Item, wiring: Wiring, parameters: Parameters) -> Array:
    """The coordinate of the neutral form: zero for shifts, one for gains.

    Norm biases are an exception: where a reader has no bias to take the constant, a norm's bias
    cannot vanish, and its neutral value is the norm's gain (one after the gains are). The other
    scalings stay where they are.
    """
    now = coordinate(item, wiring, parameters)
    if item.mechanism in (NORM_GAIN, QUERY_KEY_GAIN):
        return np.ones_like(now)
    if item.mechanism in SCALINGS:
        return now
    if item.mechanism == NORM_BIAS:
        point = _point_of_norm(item, wiring)
        if any(reader.bias is None and not reader.tied for reader in point.readers):
            gain = point.norm.gain
            return np.ones_like(now) if gain is None else gain.read(parameters).astype(np.float64)
    return np.zeros_like(now)


def _views(symmetry: Symmetry) -> tuple[View, ...]:
    if isinstance(symmetry, Translation):
        return symmetry.views
    assert isinstance(symmetry, Scaling)
    return tuple(slot.view for slot in symmetry.slots)


def _read(view: View, parameters: Parameters) -> Array:
    return view.read(parameters).astype(np.float64, copy=False)


def _reader(view: View, wiring: Wiring) -> tuple[Point, Reader]:
    point = wiring.point_reading(view)
    return point, next(reader for reader in point.readers if reader.weight == view)


def _point_of_norm(item: Item, wiring: Wiring) -> Point:
    assert item.build is not None
    first = _views(item.build())[0]
    return next(p for p in wiring.points if first in (p.norm.gain, p.norm.bias))


# Scalings.


def _first_view(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    """Gain, norm bias, unread values: the coordinate is the parameter itself."""
    return _read(_views(symmetry)[0], parameters)


def _query_key_gain(
    item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters
) -> Array:
    """Signed length of the query gain's entries that share a factor."""
    assert isinstance(symmetry, Scaling)
    slot = symmetry.slots[0]
    gains, places = _read(slot.view, parameters), np.asarray(slot.coordinate)
    return np.array(
        [signed_norm(gains[places == number][None])[0] for number in range(symmetry.size)]
    )


def _rows(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    """Signed length of what a neuron's row computes, constant included."""
    assert isinstance(symmetry, Scaling)
    point, reader = _reader(symmetry.slots[0].view, wiring)
    rows = np.concatenate(
        [
            visible_rows(reader, point, parameters),
            constant_of(reader, point, parameters)[..., None],
        ],
        axis=-1,
    )
    if symmetry.positive:
        return np.linalg.norm(rows, axis=-1)
    return signed_norm(rows)


def _query_key_scale(
    item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters
) -> Array:
    """Length of each head's queries, then of each group's keys."""
    lengths = []
    for view in _views(symmetry)[:2]:
        point, reader = _reader(view, wiring)
        seen = visible_rows(reader, point, parameters)
        constant = constant_of(reader, point, parameters)
        heads = seen.shape[:-2]
        squares = (seen**2).reshape(prod(heads), -1).sum(-1)
        squares += (constant**2).reshape(prod(heads), -1).sum(-1)
        lengths.append(np.sqrt(squares))
    return np.concatenate(lengths)


def _stream_scale(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    """Root mean square of the first writer, without what shifts could move."""
    view = _views(symmetry)[0]
    segment = wiring.segment_writing(view)
    writer = next(w for w in segment.writers if w.view == view)
    vectors = np.moveaxis(_read(view, parameters), writer.axis, -1).reshape(-1, segment.width)
    if len(vectors) > 1:
        vectors = vectors - vectors.mean(axis=0)
    if segment.blind:
        vectors = vectors - vectors.mean(axis=1, keepdims=True)
    return np.array([np.sqrt(np.mean(vectors**2))])


def _head_scale(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    point, reader = _reader(_views(symmetry)[0], wiring)
    seen = visible_rows(reader, point, parameters)
    constant = constant_of(reader, point, parameters)
    return np.array([np.sqrt((seen**2).sum() + (constant**2).sum())])


# Shifts.


def _input_direction(
    item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters
) -> Array:
    """Mean over the input of ``weight * gain``: a row moving by ``s / gain`` raises it by ``s``."""
    view = _views(symmetry)[0]
    if view in wiring.output_only:
        assert wiring.tied_point is not None
        return _row_means(view, wiring.tied_point, parameters)
    point, reader = _reader(view, wiring)
    means = _row_means(view, point, parameters)
    if reader.tied:
        return np.array([means[_looked_up(view, wiring)].mean()])
    if reader.bias is not None or point.norm.bias is None:
        return means.reshape(-1)
    assert reader.attention is not None
    if reader.role is Role.KEY:
        assert key_constant_rows(reader)
        return means[:, unrotated_index(reader.attention)].reshape(-1)
    if reader.absorbing_biases:
        return means.reshape(-1)
    assert reader.lands_on is not None
    kernel = value_kernel(reader.attention, reader.lands_on, dict(parameters))
    return kernel.T @ means.reshape(-1)


def _row_means(view: View, point: Point, parameters: Parameters) -> Array:
    weight = _read(view, parameters)
    gain = point.norm.gain
    if gain is None:
        return weight.mean(axis=-1)
    return weight @ _read(gain, parameters) / weight.shape[-1]


def _looked_up(view: View, wiring: Wiring) -> NDArray[np.bool_]:
    """Rows of a tied table that inputs look up; the others move one by one as well."""
    rows = np.ones(view.shape[0], dtype=bool)
    for other in wiring.output_only:
        start = first_row(other) - first_row(view)
        rows[start : start + other.shape[0]] = False
    return rows


def _unembedding_shift(
    item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters
) -> Array:
    """Mean row of the unembedding (one number where it moves along 1 only), mean of its bias."""
    head = wiring.head
    assert head is not None and isinstance(symmetry, Translation)
    looked_up = _looked_up(head.output, wiring)
    rows = int(symmetry.shape[0]) - (head.output_bias is not None)
    parts = []
    if rows:
        mean = _read(head.output, parameters)[looked_up].mean(axis=0)
        parts.append(mean if rows == len(mean) else np.array([mean.mean()]))
    if head.output_bias is not None:
        parts.append(np.array([_read(head.output_bias, parameters)[looked_up].mean()]))
    return np.concatenate(parts)


def _key_bias(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    view = _views(symmetry)[0]
    attention = next(a for a in wiring.attentions if a.key_bias == view)
    return _read(view, parameters)[:, unrotated_index(attention)]


def _value_bias(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    view = _views(symmetry)[0]
    attention = next(a for a in wiring.attentions if a.value_bias == view)
    reader = wiring.reader_of(attention, Role.VALUE)
    bias = _read(view, parameters).reshape(-1)
    if reader.absorbing_biases:
        return bias
    assert reader.lands_on is not None
    return value_kernel(attention, reader.lands_on, dict(parameters)).T @ bias


def _parallel_bias(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    return np.stack([_read(view, parameters) for view in _views(symmetry)[1:]])


def _embedding_shift(
    item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters
) -> Array:
    return np.stack([_read(view, parameters).mean(axis=0) for view in _views(symmetry)[1:]])


def _along_ones(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    means = []
    for view in _views(symmetry):
        writer = _writer(view, wiring)
        means.append(_read(view, parameters).mean(axis=writer.axis).reshape(-1))
    return np.concatenate(means)


def _writer(view: View, wiring: Wiring) -> Writer:
    segment = wiring.segment_writing(view)
    return next(writer for writer in segment.writers if writer.view == view)


def _score_shift(item: Item, symmetry: Symmetry, wiring: Wiring, parameters: Parameters) -> Array:
    """Mean over the buckets that some distance reaches."""
    view = _views(symmetry)[0]
    reached = np.ones(view.shape[0], dtype=bool)
    for unread in wiring.unread:
        if unread.view.tensor == view.tensor:
            start = first_row(unread.view) - first_row(view)
            reached[start : start + unread.view.shape[0]] = False
    return _read(view, parameters)[reached].mean(axis=0).reshape(-1)


_COORDINATES: Mapping[str, Callable[[Item, Symmetry, Wiring, Parameters], Any]] = {
    NORM_GAIN: _first_view,
    QUERY_KEY_GAIN: _query_key_gain,
    STREAM_SCALE: _stream_scale,
    QUERY_KEY_SCALE: _query_key_scale,
    HEAD_SCALE: _head_scale,
    GATED: _rows,
    HOMOGENEOUS: _rows,
    NORM_BIAS: _first_view,
    UNEMBEDDING_SHIFT: _unembedding_shift,
    INPUT_DIRECTION: _input_direction,
    KEY_BIAS: _key_bias,
    VALUE_BIAS: _value_bias,
    PARALLEL_BIAS: _parallel_bias,
    EMBEDDING_SHIFT: _embedding_shift,
    ALONG_ONES: _along_ones,
    SCORE_SHIFT: _score_shift,
    UNREAD: _first_view,
}
