"""Steps for sets of heads or neurons that are seen as a whole: a factorisation is chosen for them.

The mixing is fitted so that the first model's set lands on the second's. It acts where the members
are equal as stored, so what hides their equality (bases of queries and keys, scales, shifts behind
a LayerNorm) is undone first; the steps that follow match those again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Attention, Mlp
from fiberscope.checkpoints.canonical.readers import constant_of, visible_rows
from fiberscope.checkpoints.canonical.sections import coordinate
from fiberscope.checkpoints.equality.factors import fit_basis
from fiberscope.checkpoints.equality.heads import HeadMatch
from fiberscope.checkpoints.equality.mixed_heads import MixedHeads
from fiberscope.checkpoints.equality.neuron_fit import NeuronMatch
from fiberscope.checkpoints.equality.rotary_order import plane_order
from fiberscope.checkpoints.equality.witness_steps import Arrays, Steps
from fiberscope.checkpoints.ledger.rules import discrete, heads
from fiberscope.checkpoints.ledger.rules.constants import INPUT_DIRECTION, KEY_BIAS
from fiberscope.checkpoints.moves.catalogue import Key
from fiberscope.checkpoints.moves.exceptional import (
    GROUP_MIXING,
    HEAD_SHIFT,
    NEURON_MIXING,
    NEURON_SHIFT,
)
from fiberscope.parameters import View

Array = NDArray[np.float64]
ARRIVED = 0.05
"""Relative size of what a mixing leaves over at which it counts as none."""


def equalise(steps: Steps, view: View | None, sets: Sequence[tuple[Any, Any]]) -> None:
    """Give rows of a reader, or entries of a bias, the free part of others.

    Parameters
    ----------
    sets
        Pairs of places along the view's first axes: from where, and to where.
    """
    if view is None:
        return
    for key, item in steps.catalogue.items.items():
        if item.mechanism not in (INPUT_DIRECTION, KEY_BIAS):
            continue
        symmetry = steps.catalogue.symmetry(key)
        views = getattr(symmetry, "views", ())
        if not views or views[0] != view:
            continue
        now = coordinate(item, steps.catalogue.wiring, steps.moved)
        lead = view.shape[: 2 if any(isinstance(place, tuple) for place, _ in sets) else 1]
        if now.size % int(np.prod(lead)):
            continue  # a coordinate of sums rather than of rows
        wanted = now.reshape(*lead, -1).copy()
        for source, place in sets:
            wanted[place] = wanted[source]
        steps.take_if_finite(key, wanted.reshape(now.shape) - now)


# --- heads --------------------------------------------------------------------------------------


def stored_basis(attention: Attention, matrix: Array) -> Array:
    """A change of basis of rows in plane order, in the order in which they are stored."""
    rows = plane_order(attention)
    result = np.zeros_like(matrix)
    result[:, rows[:, None], rows[None, :]] = matrix
    return result


def value_bases(found: HeadMatch) -> Array:
    """Changes of basis of the values, group by group; those of several mixed groups come later."""
    result: Array = found.value_output.copy()
    for mixed in found.mixed:
        if len(mixed.groups) == 1:
            result[mixed.groups[0]] = mixed.matrix
        else:
            result[list(mixed.groups)] = np.eye(result.shape[-1])
    return result


def mix_heads(steps: Steps, attention: Attention, found: HeadMatch) -> None:
    """Mix groups that attend alike, and move outputs between heads with one query.

    Queries, keys and values are in the second model's bases already, those of several mixed groups
    excepted.
    """
    for group, members in found.merged:
        _shift_outputs(steps, attention, group, members)
    if found.is_split:
        steps.notes.append(
            f"{attention.label}: a head has become several by no move that witnesses know"
        )
    if found.is_summed:
        steps.notes.append(
            f"{attention.label}: heads that attend alike add the same sum, but have been merged or "
            "split by no move that witnesses know; the witness leaves this layer's heads"
        )
    for mixed in found.mixed:
        if len(mixed.groups) > 1:
            _mix_groups(steps, attention, found, mixed)
        for group, sets in zip(mixed.groups, mixed.shared, strict=True):
            for members in sets:
                _shift_outputs(steps, attention, group, members)


def _mix_groups(steps: Steps, attention: Attention, found: HeadMatch, mixed: MixedHeads) -> None:
    place = (attention.layer, attention.label)
    groups, count = list(mixed.groups), attention.groups
    named = f"{attention.label}: groups {', '.join(map(str, groups))}"
    bases = _common_bases(attention, mixed)
    order = np.broadcast_to(
        np.arange(attention.heads_per_group), (count, attention.heads_per_group)
    )
    order = order.copy()
    order[groups] = mixed.heads
    permutation = Key(discrete.HEAD_PERMUTATION, *place)
    renamed = steps.has(permutation) and bool((order != np.arange(order.shape[1])).any())
    if bases is None:
        steps.notes.append(f"{named} attend alike up to a turn that no mechanism lists")
        return
    mechanism, there, back = bases
    if renamed:
        steps.take(permutation, order)
    steps.take(Key(mechanism, *place), there)
    same = [(groups[0], group) for group in groups[1:]]
    for view in (attention.query, attention.key, attention.key_bias):
        equalise(steps, view, same)
    data = {"groups": np.array(groups)}
    if not steps.take(Key(GROUP_MIXING, *place, groups[0]), mixed.matrix, data):
        steps.notes.append(f"{named} attend alike, but are not equal as stored: they stay unmixed")
    steps.take(Key(mechanism, *place), back)
    if renamed:
        steps.take(permutation, np.argsort(order, axis=1))


def _common_bases(attention: Attention, mixed: MixedHeads) -> tuple[str, Array, Array] | None:
    """Mechanism and elements that bring all members to the first one's queries, and back."""
    groups, count, width = list(mixed.groups), attention.groups, attention.key_width
    bases = np.broadcast_to(np.eye(width), (count, width, width)).copy()
    bases[groups] = stored_basis(attention, mixed.scores)
    if attention.query_norm is None:
        return heads.QUERY_KEY, bases, np.asarray(np.linalg.inv(bases))
    signs = np.round(np.einsum("grr->gr", bases))
    if np.abs(bases - signs[:, :, None] * np.eye(width)).max() > 1e-9 or count < 2:
        return None
    half = half_turns(attention, bases)
    return discrete.HALF_TURNS, half, half


def half_turns(attention: Attention, turn: Array) -> Array:
    """Signs of the planes and unrotated rows of every group, of diagonal turns ``(G, r, r)``."""
    planes = attention.rotary.planes if attention.rotary else ()
    rotated = {row for plane in planes for row in plane}
    rows = [first for first, _ in planes]
    rows += [row for row in range(attention.key_width) if row not in rotated]
    signs = turn[:, rows, rows]
    return np.asarray(np.where(signs < 0, -1.0, 1.0).reshape(-1))


def _shift_outputs(steps: Steps, attention: Attention, group: int, members: Sequence[int]) -> None:
    """Move outputs between heads with one query until they are the second model's."""
    first = members[0]
    same = [((group, first), (group, head)) for head in members[1:]]
    equalise(steps, attention.query, same)
    shift = attention.output.read(steps.target) - attention.output.read(steps.moved)
    rest = list(members[1:])
    data = {"group": np.array(group), "heads": np.array(members)}
    key = Key(HEAD_SHIFT, attention.layer, attention.label, 1000 * group + first)
    if not steps.take(key, np.asarray(shift[group, rest], dtype=np.float64), data):
        named = f"{attention.label}: heads {', '.join(map(str, members))} of group {group}"
        steps.notes.append(
            f"{named} attend alike, but are not equal as stored: they stay as they are"
        )


# --- neurons ------------------------------------------------------------------------------------


def mixed_places(found: NeuronMatch, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Where the members of every set are after the permutation, those of the second model first."""
    places = []
    for members, wanted in found.mixed:
        here = np.flatnonzero(np.isin(order, members))
        places.append(np.concatenate([np.intersect1d(wanted, here), np.setdiff1d(here, wanted)]))
    return places


def scale_to_first(
    steps: Steps, block: Mlp, sets: Sequence[NDArray[np.int64]]
) -> tuple[Array, Array]:
    """Factors of a set's arguments to the second model's first one, and from there to its own."""
    there, back = np.ones(block.neurons), np.ones(block.neurons)
    if block.activation is Activation.GENERIC:
        return there, back
    view = block.up if block.gate is None else block.gate
    now, wanted = (_rows(steps, view, arrays) for arrays in (steps.moved, steps.target))
    for places in sets:
        lead = wanted[places[0]]
        for place in places:
            for factors, row, goal in ((there, now[place], lead), (back, lead, wanted[place])):
                along, size = float(row @ goal), float(row @ row)
                if along == 0 or size == 0:
                    continue
                sign = along > 0 or block.activation is Activation.HOMOGENEOUS
                ratio = np.sqrt(float(goal @ goal) / size)
                factors[place] = (
                    ratio if block.activation is Activation.HOMOGENEOUS else (1.0 if sign else -1.0)
                )
    return there, back


def mix_neurons(
    steps: Steps,
    block: Mlp,
    found: NeuronMatch,
    sets: Sequence[NDArray[np.int64]],
    back: Array,
) -> None:
    """Mix neurons with one gate, or move outputs between neurons with one argument.

    Parameters
    ----------
    sets
        Their places now.
    back
        What will scale the arguments afterwards.
    """
    power = 0
    if block.activation is Activation.HOMOGENEOUS:
        power = 2 if block.activation_name == "relu2" else 1
    elif block.activation is Activation.ODD:
        power = 1
    for places, (_, wanted) in zip(sets, found.mixed, strict=True):
        named = f"{block.label}: neurons {', '.join(map(str, places[:6]))}"
        named += ", ..." if len(places) > 6 else ""
        kept = len(np.intersect1d(places, wanted))
        if kept < len(wanted):
            steps.notes.append(f"{named} have become {len(wanted)} by no move that witnesses know")
            continue
        pairs = [(int(places[0]), int(place)) for place in places[1:]]
        for view in (block.gate,) if block.gate is not None else (block.up,):
            equalise(steps, view, pairs)
        down = [
            np.asarray(block.down.read(arrays)[:, places], dtype=np.float64)
            for arrays in (steps.moved, steps.target)
        ]
        down[1] = down[1] * back[places] ** power
        down[1][:, kept:] = 0.0
        key = (block.layer, block.label, int(places[0]))
        data = {"neurons": places}
        if block.gate is None:
            shift = (down[1] - down[0])[:, 1:].T
            done = steps.take(Key(NEURON_SHIFT, *key), shift, data)
        else:
            matrix = _mixing(steps, block, places, kept, down)
            if matrix is None:
                steps.notes.append(f"{named} have one gate, but no invertible mixing relates them")
                continue
            done = steps.take(Key(NEURON_MIXING, *key), matrix, data)
        if not done:
            steps.notes.append(f"{named} respond alike, but are not equal as stored: left alone")


def _rows(steps: Steps, view: View, arrays: Arrays | Any) -> Array:
    """Rows of a reader as they are seen, with their constants, shape ``(f, d + 1)``."""
    point = steps.catalogue.wiring.point_reading(view)
    reader = next(reader for reader in point.readers if reader.weight == view)
    rows = visible_rows(reader, point, arrays)
    return np.concatenate([rows, constant_of(reader, point, arrays)[:, None]], axis=1)


def _mixing(
    steps: Steps, block: Mlp, places: NDArray[np.int64], kept: int, down: Sequence[Array]
) -> Array | None:
    """The matrix that carries up rows and down columns of a set to the second model's."""
    up = [_rows(steps, block.up, arrays)[places] for arrays in (steps.moved, steps.target)]
    columns = [part.T for part in down]
    segment = steps.catalogue.wiring.segment_writing(block.down)
    if segment.blind:
        columns = [part - part.mean(axis=1, keepdims=True) for part in columns]
    if kept < len(places):
        matrix = _merging(up, columns, kept)
    else:
        change = fit_basis(
            up[0][None],
            up[1][None],
            columns[0][None],
            columns[1][None],
            np.square(up[1]).mean(axis=1)[None] * 1e-30,
            np.square(columns[1]).mean(axis=1)[None] * 1e-30,
        )
        matrix = change.matrix[0]
    if matrix is None or not np.isfinite(matrix).all():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        dual = np.linalg.pinv(matrix).T
    for by, pair in ((matrix, up), (dual, columns)):
        left = (by @ pair[0] - pair[1])[:kept]
        if not np.linalg.norm(left) <= ARRIVED * np.linalg.norm(pair[1][:kept]):
            return None
    return np.asarray(matrix)


def _merging(up: Sequence[Array], columns: Sequence[Array], kept: int) -> Array | None:
    """A mixing after which only the first neurons add something.

    Either the up rows or the down columns span no more than ``kept`` directions; the others of them
    can be made zero.
    """
    best: tuple[float, Array] | None = None
    for dual, pair in ((False, up), (True, columns)):
        left, values, right = np.linalg.svd(pair[0], full_matrices=True)
        lost = float(values[kept] / values[0]) if len(values) > kept and values[0] else 0.0
        inverse = right[:kept].T / np.where(values[:kept] > 0, values[:kept], np.inf)
        matrix = np.concatenate([pair[1][:kept] @ inverse @ left[:, :kept].T, left[:, kept:].T])
        if np.linalg.cond(matrix) > 1e8 or lost > ARRIVED:
            continue
        if best is None or lost < best[0]:
            best = lost, np.linalg.inv(matrix).T if dual else matrix
    return None if best is None else best[1]
