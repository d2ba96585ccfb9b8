"""The transformation as a witness: an alignment turned into steps of the ledger's symmetries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Architecture, Observable
from fiberscope.checkpoints.canonical.sections import coordinate, in_order, step_to
from fiberscope.checkpoints.equality.alignment import Alignment
from fiberscope.checkpoints.equality.frame import is_centred_wiring
from fiberscope.checkpoints.equality.rotary_order import plane_order
from fiberscope.checkpoints.ledger.rules import discrete, heads, mlp, stream
from fiberscope.checkpoints.ledger.rules.constants import INPUT_DIRECTION, NORM_BIAS
from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.exceptional import DEAD_COLUMNS, EQUAL_GAINS, UNSEEN_GAIN
from fiberscope.checkpoints.moves.witness import Witness
from fiberscope.symmetry import Kind, ones_complement

Array = NDArray[np.float64]


def witness_of(
    alignment: Alignment,
    architecture: Architecture,
    observable: Observable,
    first: Mapping[str, NDArray[Any]],
    second: Mapping[str, NDArray[Any]],
) -> Witness | None:
    """The steps that carry ``first`` to ``second``, both in float64 and of one architecture.

    None where the alignment mixes sets of equal neurons or heads, which it compares as a whole
    without choosing a factorisation.
    """
    if any(match.mixed for match in alignment.heads.values()):
        return None
    if any(match.mixed for match in alignment.neurons.values()):
        return None
    catalogue = Catalogue(architecture, observable)
    steps = [*_zero_gains(catalogue, first), *_linear_steps(alignment, catalogue)]
    whole = Witness(architecture, observable, tuple(steps))
    moved = whole.apply(first)
    fitted = {mlp.GATED, mlp.HOMOGENEOUS}
    keys = {id(item): key for key, item in catalogue.items.items()}
    for item in in_order(catalogue.items.values()):
        if item.kind is Kind.APPROXIMATE or item.mechanism in fitted:
            continue
        element = step_to(item, catalogue.wiring, moved, coordinate(item, catalogue.wiring, second))
        step = Step(keys[id(item)], element)
        symmetry = catalogue.symmetry(step.key)
        if item.mechanism in (INPUT_DIRECTION, NORM_BIAS):
            # Along 1 / gain, a direction that a post-norm stream with a zero gain has not.
            tried = moved | {name: moved[name].copy() for name in symmetry.touches}
            with np.errstate(divide="ignore", invalid="ignore"):
                symmetry.apply(element, tried)
            if not all(np.isfinite(tried[name]).all() for name in symmetry.touches):
                continue
            moved = tried
        else:
            symmetry.apply(element, moved)
        steps.append(step)
    return Witness(architecture, observable, tuple(steps))


def _zero_gains(catalogue: Catalogue, first: Mapping[str, Array]) -> Iterator[Step]:
    """Make gains of zero one, their unread columns zero: what comes later divides by gains."""
    if not {stream.ROTATION, INPUT_DIRECTION} & {key.mechanism for key in catalogue.items}:
        return
    for point in catalogue.wiring.points:
        gain, bias = point.norm.gain, point.norm.bias
        if gain is None or not point.only_linear:
            continue
        features = np.flatnonzero(gain.read(first) == 0)
        if len(features) in (0, point.width):
            continue
        place = (point.layer, point.norm.label)
        if bias is not None and np.any(dropped := bias.read(first)[features]):
            key = Key(NORM_BIAS, *place)
            if key not in catalogue.items or any(r.bias is None for r in point.readers):
                continue
            shift = np.zeros(point.width)
            shift[features] = -dropped
            yield Step(key, shift)
        data = {"features": features}
        columns = [
            r.weight.read(first).reshape(-1, point.width)[:, features] for r in point.readers
        ]
        yield Step(Key(DEAD_COLUMNS, *place), -np.concatenate(columns), data)
        yield Step(Key(UNSEEN_GAIN, *place), np.ones(len(features)), data)


def _linear_steps(alignment: Alignment, catalogue: Catalogue) -> Iterator[Step]:
    yield from _frame(alignment, catalogue)
    for sharing in discrete.sharing_positions(catalogue.wiring.attentions):
        owner = alignment.heads.get(sharing[0].label)
        if len(sharing) > 1 and owner is not None:
            where = discrete.sharing_place(sharing)
            yield from _steps(
                catalogue, {discrete.GROUP_PERMUTATION: owner.groups[None]}, None, where
            )
    for attention in catalogue.wiring.attentions:
        found = alignment.heads.get(attention.label)
        if found is None or not found.groups.size:
            continue
        place = (attention.layer, attention.label)
        values: dict[str, Any] = {
            discrete.GROUP_PERMUTATION: found.groups[None],  # alone; shared tables come first
            discrete.HEAD_PERMUTATION: found.heads,
            heads.VALUE_OUTPUT: found.value_output,
        }
        if found.query_key is not None:
            rows = plane_order(attention)
            matrix = np.zeros_like(found.query_key)
            matrix[:, rows[:, None], rows[None, :]] = found.query_key
            values[heads.QUERY_KEY] = matrix
        yield from _steps(catalogue, values, *place)
    for block in catalogue.wiring.mlps:
        yield from _neurons(
            alignment,
            catalogue,
            block.label,
            block.layer,
            block.gate is not None,
            block.activation,
        )
    head = catalogue.wiring.head
    if head is not None and head.dense is not None:
        yield from _neurons(
            alignment, catalogue, head.dense.label, None, False, head.dense.activation
        )


def _steps(
    catalogue: Catalogue, values: Mapping[str, Any], layer: int | None, where: str
) -> Iterator[Step]:
    for mechanism, element in values.items():
        key = Key(mechanism, layer, where)
        if key in catalogue.items:
            yield Step(key, element)


def _neurons(
    alignment: Alignment,
    catalogue: Catalogue,
    label: str,
    layer: int | None,
    gated: bool,
    activation: Activation,
) -> Iterator[Step]:
    found = alignment.neurons.get(label)
    if found is None:
        return
    order = found.order.copy()
    # Dead neurons take the places that are left.
    spare = np.setdiff1d(np.arange(len(order)), order)
    order[order < 0] = spare[: int((order < 0).sum())]
    values: dict[str, Any] = {discrete.NEURON_PERMUTATION: order[None]}
    argument = found.gate_scale if gated else found.up_scale
    if gated:
        values[mlp.GATED] = found.up_scale
    if activation is Activation.HOMOGENEOUS:
        values[mlp.HOMOGENEOUS] = argument
    if activation is Activation.ODD:
        values[discrete.ODD_SIGNS] = argument
    yield from _steps(catalogue, values, layer, label)


def _frame(alignment: Alignment, catalogue: Catalogue) -> Iterator[Step]:
    """Rotation, or renaming of coordinates with signs and rotations inside blocks."""
    frame = alignment.frame
    matrix = frame.matrix
    keys = {key.mechanism: key for key in catalogue.items}
    width = len(matrix)
    if stream.ROTATION in keys:
        turning: Array = matrix
        if is_centred_wiring(catalogue.wiring):
            basis = ones_complement(width)
            turning = basis.T @ matrix @ basis
        yield Step(keys[stream.ROTATION], (turning,))
        return
    if discrete.COORDINATE_PERMUTATION not in keys:
        return
    if frame.blocks:
        yield from _blocks(alignment, catalogue, keys)
        return
    order = np.abs(matrix).argmax(axis=1)
    signs = matrix[np.arange(width), order]
    yield Step(keys[discrete.COORDINATE_PERMUTATION], order[None])
    yield from _signs(signs, keys)


def _signs(signs: Array, keys: Mapping[str, Key]) -> Iterator[Step]:
    if discrete.COORDINATE_SIGNS in keys:
        yield Step(keys[discrete.COORDINATE_SIGNS], signs)
    elif discrete.GLOBAL_SIGN in keys:
        yield Step(keys[discrete.GLOBAL_SIGN], signs[:1])


def _blocks(alignment: Alignment, catalogue: Catalogue, keys: Mapping[str, Key]) -> Iterator[Step]:
    """Rename coordinates so that blocks lie on their images, then turn inside the blocks."""
    frame = alignment.frame
    width = len(frame.matrix)
    centred = is_centred_wiring(catalogue.wiring)
    order = np.zeros(width, dtype=np.int64)
    number = np.zeros(width, dtype=np.int64)
    signs = np.ones(width)
    # Behind a LayerNorm a block's map fixes the ones vector, up to one sign for all.
    sign = 1.0
    if centred:
        rows, columns = frame.blocks[0]
        sign = float(np.sign(frame.matrix[np.ix_(rows, columns)].sum())) or 1.0
    parts = []
    for index, (rows, columns) in sorted(
        enumerate(frame.blocks), key=lambda block: int(block[1][0].min())
    ):
        order[rows] = columns
        number[rows] = index
    relabelled = {old: new for new, old in enumerate(dict.fromkeys(number.tolist()))}
    blocks = np.array([relabelled[old] for old in number.tolist()], dtype=np.int64)
    renamed = sign * frame.matrix[:, order]
    for block in np.unique(blocks):
        members = np.flatnonzero(blocks == block)
        inner = renamed[np.ix_(members, members)]
        if len(members) == 1:
            signs[members] = inner[0, 0] * sign
            continue
        if centred:
            basis = ones_complement(len(members))
            inner = basis.T @ inner @ basis
        parts.append(inner)
        signs[members] = sign
    yield Step(keys[discrete.COORDINATE_PERMUTATION], order[None])
    place = Key(EQUAL_GAINS, None, catalogue.wiring.stream_groups[0].streams[0].label)
    yield Step(place, tuple(parts), {"blocks": blocks})
    yield from _signs(signs, keys)
