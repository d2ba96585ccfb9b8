"""Attention in canonical form: balanced factors and planes, groups and heads in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.canonical.balancing import BalancedPairs, balance
from fiberscope.checkpoints.canonical.cancelling import tolerated
from fiberscope.checkpoints.canonical.equal_heads import note_equal_heads
from fiberscope.checkpoints.canonical.places import Places, descending
from fiberscope.checkpoints.canonical.planes import balance_planes, order_gains
from fiberscope.checkpoints.canonical.points import Folded, Style
from fiberscope.checkpoints.canonical.value_constants import settle_kernel
from fiberscope.checkpoints.canonical.workspace import FLOOR, Workspace
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index
from fiberscope.checkpoints.ledger.rules.discrete import GROUP_PERMUTATION, HEAD_PERMUTATION
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, VALUE_OUTPUT
from fiberscope.checkpoints.ledger.wiring import Segment

Array = NDArray[np.float64]

TIE = 16.0
"""Two units tie when their keys differ by no more than this many spacings of the storage."""

DEVIATIONS = 4.0
"""Standard deviations of rounding by which a head's size can have moved."""


@dataclass
class Heads:
    """An attention's circuits, in the new frame.

    Attributes
    ----------
    query, key, value
        Folded readers; rows of shapes ``(G, m, r, d)``, ``(G, r, d)`` and ``(G, s, d)``.
    output
        Shape ``(G, m, s, d)``.
    output_changed
        Whether it differs from what is stored.
    round_gain
        How gains will be rounded when they are written.
    query_gain, key_gain
        Gains of normalised queries and keys, as used; None where there are none.
    """

    attention: Attention
    query: Folded
    key: Folded
    value: Folded
    output: Array
    output_changed: bool
    spacing: float
    round_gain: Callable[[Array], Array]
    query_gain: Array | None = None
    key_gain: Array | None = None
    gains_changed: bool = False
    group_order: NDArray[np.int64] | None = None


def canonical_heads(
    heads: Heads,
    segment: Segment,
    style: Style,
    places: Places,
    fixed_order: NDArray[np.int64] | None,
) -> None:
    """Bring one attention to canonical form, in place.

    Parameters
    ----------
    fixed_order
        Order of the groups where a position table names them; then no head is sorted here.
    """
    drop_dead_key_constants(heads)
    if not heads.value.reader.absorbing_biases and style.constants:
        settle_kernel(heads, segment)
    exact = _ordered_and_balanced(heads, style, places, fixed_order)
    changed = any(part.changed for part in (heads.query, heads.key, heads.value))
    if not exact and (changed or heads.output_changed):
        # What is written anyway is sorted exactly: rounding is added to it once more.
        kept = None if fixed_order is None else np.arange(len(fixed_order))
        _ordered_and_balanced(heads, style, Places(), kept, strict=True)


def _ordered_and_balanced(
    heads: Heads,
    style: Style,
    places: Places,
    fixed_order: NDArray[np.int64] | None,
    *,
    strict: bool = False,
) -> bool:
    """Sort, ``strict`` or up to rounding, and balance; whether the order falls exactly."""
    attention = heads.attention
    sizes = head_sizes(heads)
    exact = True
    if style.order:
        if attention.heads_per_group > 1:
            exact = _sort_heads(heads, sizes, places, strict)
        exact &= _sort_groups(heads, sizes, places, fixed_order, strict)
    if style.balance:
        uncertain = 0.0
        if attention.query_norm is None:
            uncertain = _query_key(heads, places)
        else:
            order_gains(heads, places)
        note_equal_heads(heads, places, uncertain)
        _value_output(heads, places)
        if style.drop:
            _drop_silent_heads(heads, places)
    return exact


def drop_dead_key_constants(heads: Heads) -> None:
    """Softmax cancels what is equal for all keys: constants of rows without position."""
    key = heads.key
    if key.constant is None or heads.attention.key_norm is not None:
        return
    dead = unrotated_index(heads.attention)
    constant = key.constant[:, dead]
    small = np.zeros(1)
    if key.reader.bias is None and key.small_constant is not None:
        small = key.small_constant[:, dead]
    if (np.abs(constant) > small).any():
        key.changed = True
    key.constant = key.constant.copy()
    key.constant[:, dead] = 0.0
    if key.deviation is not None:
        key.deviation = key.deviation.copy()
        key.deviation[:, dead] = 0.0


def head_sizes(heads: Heads) -> Array:
    """Frobenius norms of every head's value/output product, shape ``(G, m)``."""
    value, output = heads.value.rows, heads.output
    gram = value @ value.swapaxes(-1, -2)
    outer = output @ output.swapaxes(-1, -2)
    squares = np.einsum("gst,gmst->gm", gram, outer)
    return np.sqrt(np.maximum(squares, 0.0))


def head_uncertainty(heads: Heads) -> Array:
    """How far the rounding of both factors can have moved :func:`head_sizes`, shape ``(G, m)``.

    ``O (V + dV) + dO V`` with independent relative roundings of spacing e differs from ``O V`` by
    ``e / sqrt(12) * sqrt(2 sum_s |O_s|^2 |V_s|^2)`` (root mean square): far more than e times the
    product where much cancels in it, behind an ill-conditioned change of basis.
    """
    values = np.einsum("gsd,gsd->gs", heads.value.rows, heads.value.rows)
    outputs = np.einsum("gmsd,gmsd->gms", heads.output, heads.output)
    squares = np.einsum("gs,gms->gm", values, outputs)
    return np.asarray(DEVIATIONS * heads.spacing * np.sqrt(squares / 6.0))


def _sort_heads(heads: Heads, sizes: Array, places: Places, strict: bool) -> bool:
    """Sort the heads of every group; whether their sizes fall exactly now."""
    attention = heads.attention
    tolerance = TIE * heads.spacing
    uncertain = head_uncertainty(heads)
    orders, settled = [], True
    for group in range(attention.groups):
        order, ties, kept = descending(
            sizes[group], tolerance, heads.spacing, uncertain=uncertain[group]
        )
        places.add(HEAD_PERMUTATION, attention.layer, f"{attention.label}, group {group}", ties)
        orders.append(order)
        settled &= kept
    index = np.stack(orders)
    falls = bool((index[:, 1:] > index[:, :-1]).all())
    if falls or (settled and not strict):
        return falls
    heads.query.rows = np.take_along_axis(heads.query.rows, index[:, :, None, None], axis=1)
    if heads.query.constant is not None:
        heads.query.constant = np.take_along_axis(heads.query.constant, index[:, :, None], axis=1)
    if heads.query.deviation is not None:
        deviation = np.take_along_axis(heads.query.deviation, index[:, :, None], axis=1)
        heads.query.deviation = deviation
    if heads.query.lost is not None:
        heads.query.lost = np.take_along_axis(heads.query.lost, index[:, :, None], axis=1)
    heads.output = np.take_along_axis(heads.output, index[:, :, None, None], axis=1)
    sizes[:] = np.take_along_axis(sizes, index, axis=1)
    heads.query.changed = heads.output_changed = True
    return True


def _sort_groups(
    heads: Heads,
    sizes: Array,
    places: Places,
    fixed: NDArray[np.int64] | None,
    strict: bool,
) -> bool:
    """Sort the groups; whether their sizes fall exactly now, or their order is given."""
    attention = heads.attention
    if attention.groups == 1:
        return True
    if fixed is None:
        keys = np.sqrt((sizes**2).sum(axis=1))
        uncertain = np.linalg.norm(head_uncertainty(heads), axis=1)
        order, ties, settled = descending(
            keys, TIE * heads.spacing, heads.spacing, uncertain=uncertain
        )
        places.add(GROUP_PERMUTATION, attention.layer, attention.label, ties)
        falls = bool((order[1:] > order[:-1]).all())
        if falls or (settled and not strict):
            return falls
    else:
        order = fixed
        if np.array_equal(order, np.arange(len(order))):
            return True
    heads.group_order = order
    for part in (heads.query, heads.key, heads.value):
        part.rows = part.rows[order]
        if part.constant is not None:
            part.constant = part.constant[order]
        if part.deviation is not None:
            part.deviation = part.deviation[order]
        if part.lost is not None:
            part.lost = part.lost[order]
        part.changed = True
    heads.output = heads.output[order]
    heads.output_changed = True
    return True


def _lost(part: Folded) -> Array:
    """Squared length of what each row was rounded with and has no longer."""
    found = np.zeros(part.rows.shape[:-1])
    if part.lost is not None:
        found += part.rows.shape[-1] * part.lost**2
    if part.deviation is not None:
        found += 12.0 * (part.deviation / part.spacing) ** 2
    return found


def _stacked(query: Array, constant: Array | None) -> Array:
    """Queries of a group side by side, constants as a last column: ``(G, n, m (d + 1))``."""
    rows = query if constant is None else np.concatenate([query, constant[..., None]], axis=-1)
    return rows.swapaxes(1, 2).reshape(rows.shape[0], rows.shape[2], -1)


def _query_key(heads: Heads, places: Places) -> float:
    """Balance queries and keys; by how much rounding has moved balanced factors."""
    attention = heads.attention
    query, key = heads.query, heads.key
    if attention.rotary is not None:
        balance_planes(heads, places)
    rows = unrotated_index(attention)
    if not len(rows):
        return 0.0
    whole = len(rows) == attention.key_width
    q = query.rows if whole else query.rows[:, :, rows]
    q_constant = None
    # A column of zeros, too: the fixed reference depends on the number of columns.
    if query.constant is not None:
        q_constant = query.constant if whole else query.constant[:, :, rows]
    k = key.rows if whole else key.rows[:, rows]
    first = _stacked(q, q_constant)
    lost = _lost(query).sum(axis=1), _lost(key)
    found = balance(first, k, heads.spacing, (lost[0][:, rows], lost[1][:, rows]))
    _note(places, QUERY_KEY, heads, found)
    if found.settled:
        return 0.0
    query.changed = key.changed = True
    if query.deviation is not None and found.basis is not None:
        query.deviation = query.deviation.copy()
        squares = np.einsum("gst,gmt->gms", found.basis**2, query.deviation[:, :, rows] ** 2)
        query.deviation[:, :, rows] = np.sqrt(squares)
    groups, per_group, width = q.shape[:3]
    moved = found.first.reshape(groups, width, per_group, -1).swapaxes(1, 2)
    d = q.shape[-1]
    if q_constant is not None:
        moved = _without_rounding(moved)
    if whole:
        query.rows = np.ascontiguousarray(moved[..., :d])
        key.rows = found.second
        if q_constant is not None:
            query.constant = moved[..., d].copy()
    else:
        query.rows[:, :, rows] = moved[..., :d]
        key.rows[:, rows] = found.second
        if q_constant is not None and query.constant is not None:
            query.constant = query.constant.copy()
            query.constant[:, :, rows] = moved[..., d]
    return float(found.uncertain.max())


def _value_output(heads: Heads, places: Places) -> None:
    value = heads.value
    rows, constant = value.rows, value.constant
    if constant is not None and (not value.reader.absorbing_biases or constant.any()):
        # Constants that no bias takes are one more column of the values.
        rows = np.concatenate([rows, constant[..., None]], axis=-1)
    written = np.zeros(rows.shape[:2])
    found = balance(rows, _stacked(heads.output, None), heads.spacing, (_lost(value), written))
    _note(places, VALUE_OUTPUT, heads, found)
    if found.settled:
        return
    value.changed = heads.output_changed = True
    d = value.rows.shape[-1]
    first = found.first
    if rows.shape[-1] > d:
        first = _without_rounding(first)
        value.constant = first[..., d].copy()
        if value.deviation is not None and found.basis is not None:
            squares = np.einsum("gst,gt->gs", found.basis**2, value.deviation**2)
            value.deviation = np.sqrt(squares)
    value.rows = np.ascontiguousarray(first[..., :d])
    heads.output = _unstacked(found.second, heads)


def _without_rounding(rows: Array) -> Array:
    """Rows that read nothing but their constant, the last column, are otherwise zero."""
    size = np.einsum("...d,...d->...", rows[..., :-1], rows[..., :-1])
    noise = (size > 0) & (size <= (FLOOR * rows[..., -1]) ** 2)
    if noise.any():
        rows = rows.copy()
        rows[noise, :-1] = 0.0
    return rows


def _unstacked(second: Array, heads: Heads) -> Array:
    groups, per_group, width = heads.output.shape[:3]
    moved = second.reshape(groups, width, per_group, -1).swapaxes(1, 2)
    return np.ascontiguousarray(moved)


def _note(places: Places, mechanism: str, heads: Heads, found: BalancedPairs) -> None:
    attention = heads.attention
    groups = np.flatnonzero(found.loose)
    places.add(mechanism, attention.layer, attention.label, groups.tolist(), int(found.loose.sum()))
    groups = np.flatnonzero(found.uncertain > tolerated(heads.spacing))
    where = f"{attention.label}, rounding of the factors"
    places.add(mechanism, attention.layer, where, groups.tolist())
    cut = int(found.deficient.sum())
    places.note_dead(f"directions of heads outside the product ({mechanism})", cut)


def _drop_silent_heads(heads: Heads, places: Places) -> None:
    """A head that writes nothing: its queries (and its group's keys) are dead too."""
    silent = ~heads.output.any(axis=(2, 3))
    live_queries = heads.query.rows.any(axis=(2, 3)) & silent
    if live_queries.any():
        heads.query.rows[silent] = 0.0
        heads.query.changed = True
        places.note_dead("queries of heads that write nothing", int(live_queries.sum()))
        if heads.query.constant is not None:
            heads.query.constant = heads.query.constant.copy()
            heads.query.constant[silent] = 0.0
    groups = np.logical_and.reduce(silent, axis=1)
    for part in (heads.key, heads.value):
        live = part.rows.any(axis=(1, 2)) & groups
        if live.any():
            part.rows[groups] = 0.0
            part.changed = True
            places.note_dead("keys and values of groups that write nothing", int(live.sum()))
            if part.constant is not None:
                part.constant = part.constant.copy()
                part.constant[groups] = 0.0


def write_heads(heads: Heads, work: Workspace) -> None:
    """Write what :func:`canonical_heads` does not write through its readers."""
    attention = heads.attention
    if heads.output_changed:
        work.write(attention.output, heads.output)
    if heads.gains_changed:
        for norm, gain in (
            (attention.query_norm, heads.query_gain),
            (attention.key_norm, heads.key_gain),
        ):
            if norm is not None and norm.gain is not None and gain is not None:
                work.write(norm.gain, gain)
