"""The transformation as a witness: an alignment turned into steps of the ledger's symmetries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import (
    Activation,
    Architecture,
    Attention,
    Mlp,
    Observable,
)
from fiberscope.checkpoints.canonical.sections import coordinate, in_order, step_to
from fiberscope.checkpoints.equality.alignment import Alignment
from fiberscope.checkpoints.equality.frame import is_centred_wiring
from fiberscope.checkpoints.equality.heads import HeadMatch
from fiberscope.checkpoints.equality.neuron_fit import NeuronMatch
from fiberscope.checkpoints.equality.witness_mixed import (
    half_turns,
    mix_heads,
    mix_neurons,
    mixed_places,
    scale_to_first,
    stored_basis,
    value_bases,
)
from fiberscope.checkpoints.equality.witness_silent import free_heads, free_neurons
from fiberscope.checkpoints.equality.witness_steps import Steps
from fiberscope.checkpoints.ledger.rules import discrete, heads, mlp, stream
from fiberscope.checkpoints.ledger.rules.constants import INPUT_DIRECTION, NORM_BIAS
from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.exceptional import (
    DEAD_COLUMNS,
    EQUAL_GAINS,
    EQUAL_TURNS,
    UNSEEN_GAIN,
)
from fiberscope.checkpoints.moves.witness import Witness
from fiberscope.symmetry import Kind, ones_complement

Array = NDArray[np.float64]


def witness_of(
    alignment: Alignment,
    architecture: Architecture,
    observable: Observable,
    first: Mapping[str, NDArray[Any]],
    second: Mapping[str, NDArray[Any]],
) -> tuple[Witness, tuple[str, ...]]:
    """The steps that carry ``first`` to ``second``, both in float64 and of one architecture.

    Returns
    -------
    Witness
        All steps.
    tuple of str
        What no step could do: sets of equal heads or neurons for which no mixing exists.
    """
    catalogue = Catalogue(architecture, observable)
    steps = Steps(catalogue, first, second)
    for step in _zero_gains(catalogue, first):
        steps.take(step.key, step.element, step.data)
    _linear_steps(alignment, steps)
    fitted = {mlp.GATED, mlp.HOMOGENEOUS}
    keys = {id(item): key for key, item in catalogue.items.items()}
    for item in in_order(catalogue.items.values()):
        if item.kind is Kind.APPROXIMATE or item.mechanism in fitted:
            continue
        wanted = coordinate(item, catalogue.wiring, second)
        element = step_to(item, catalogue.wiring, steps.moved, wanted)
        if item.mechanism in (INPUT_DIRECTION, NORM_BIAS):
            # Along 1 / gain, a direction that a post-norm stream with a zero gain has not.
            steps.take_if_finite(keys[id(item)], element)
        else:
            steps.take(keys[id(item)], element)
    for attention in catalogue.wiring.attentions:
        free_heads(steps, attention)
    for block in catalogue.wiring.mlps:
        if (neurons := alignment.neurons.get(block.label)) is not None:
            free_neurons(steps, block, np.flatnonzero(neurons.order < 0))
    return steps.witness(architecture, observable), tuple(steps.notes)


def _zero_gains(catalogue: Catalogue, first: Mapping[str, Array]) -> Iterator[Step]:
    """Make gains of zero one, their unread columns zero: what comes later divides by gains."""
    if not {stream.ROTATION, INPUT_DIRECTION} & {key.mechanism for key in catalogue.items}:
        return
    for point in catalogue.wiring.points:
        gain, bias = point.norm.gain, point.norm.bias
        if gain is None or not point.only_linear:
            continue
        features = np.flatnonzero(gain.read(first) == 0)
        if not len(features):
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


def _linear_steps(alignment: Alignment, steps: Steps) -> None:
    catalogue = steps.catalogue
    for step in _frame(alignment, catalogue):
        steps.take(step.key, step.element, step.data)
    for sharing in discrete.sharing_positions(catalogue.wiring.attentions):
        owner = alignment.heads.get(sharing[0].label)
        if len(sharing) > 1 and owner is not None:
            where = discrete.sharing_place(sharing)
            _take(steps, {discrete.GROUP_PERMUTATION: owner.groups[None]}, None, where)
    for attention in catalogue.wiring.attentions:
        found = alignment.heads.get(attention.label)
        if found is not None and found.groups.size:
            _heads(steps, attention, found)
    for block in catalogue.wiring.mlps:
        if (neurons := alignment.neurons.get(block.label)) is not None:
            _neurons(steps, neurons, block)
    head = catalogue.wiring.head
    if head is not None and head.dense is not None:
        neurons = alignment.neurons.get(head.dense.label)
        if neurons is not None:
            values = {discrete.NEURON_PERMUTATION: _complete(neurons.order)[None]}
            values |= _argument_scales(head.dense.activation, neurons.up_scale)
            _take(steps, values, None, head.dense.label)


def _take(steps: Steps, values: Mapping[str, Any], layer: int | None, where: str) -> None:
    for mechanism, element in values.items():
        key = Key(mechanism, layer, where)
        if steps.has(key):
            steps.take(key, element)


def _heads(steps: Steps, attention: Attention, found: HeadMatch) -> None:
    place = (attention.layer, attention.label)
    values: dict[str, Any] = {
        discrete.GROUP_PERMUTATION: found.groups[None],  # alone; shared tables come first
        discrete.HEAD_PERMUTATION: found.heads,
        heads.VALUE_OUTPUT: value_bases(found),
    }
    if found.query_key is not None:
        values[heads.QUERY_KEY] = stored_basis(attention, found.query_key)
    _take(steps, values, *place)
    if found.turn is not None:
        _turns(steps, attention, stored_basis(attention, found.turn))
    mix_heads(steps, attention, found)
    if found.turn is not None:
        _take(steps, {discrete.ROW_SIGNS: _gain_signs(attention, steps.target)}, *place)


def _gain_signs(attention: Attention, parameters: Mapping[str, NDArray[Any]]) -> Array:
    """Signs of the gains of queries, then of keys."""
    assert attention.query_norm is not None and attention.key_norm is not None
    parts = []
    for norm in (attention.query_norm, attention.key_norm):
        assert norm.gain is not None
        parts.append(np.where(norm.gain.read(parameters) < 0, -1.0, 1.0))
    return np.concatenate(parts)


def _turns(steps: Steps, attention: Attention, turn: Array) -> None:
    """Make gains positive, then turn planes by quarters everywhere and by halves in groups."""
    place = (attention.layer, attention.label)
    _take(steps, {discrete.ROW_SIGNS: _gain_signs(attention, steps.moved)}, *place)
    planes = np.array(attention.rotary.planes if attention.rotary else ()).reshape(-1, 2)
    first, second = planes.T
    rest = turn.copy()
    quarters = np.abs(turn[:, second, first]).mean(axis=0) > np.sqrt(0.5)
    _take(steps, {discrete.QUARTER_TURNS: quarters.astype(np.int64)}, *place)
    for plane in np.flatnonzero(quarters):
        x, y = planes[plane]
        # What is left after a quarter turn: turn = rest @ [[0, -1], [1, 0]].
        rest[:, x, x], rest[:, y, y] = turn[:, y, x], turn[:, y, x]
        rest[:, y, x], rest[:, x, y] = -turn[:, x, x], turn[:, x, x]
    angled = np.flatnonzero((np.abs(rest[:, second, first]) > 1e-12).any(axis=0))
    if angled.size:
        turned = np.broadcast_to(np.eye(attention.key_width), rest.shape).copy()
        for x, y in planes[angled]:
            pair = np.array([x, y])
            turned[:, pair[:, None], pair] = rest[:, pair[:, None], pair]
            rest[:, pair[:, None], pair] = np.eye(2)
        steps.take(Key(EQUAL_TURNS, *place), turned, {"planes": angled})
    signs = half_turns(attention, rest)
    if steps.has(Key(discrete.HALF_TURNS, *place)):
        _take(steps, {discrete.HALF_TURNS: signs}, *place)
        return
    # One group: half turns are signs of rows and gains together.
    rows = np.ones(attention.key_width)
    rotated = {int(row) for row in planes.reshape(-1)}
    free = [row for row in range(attention.key_width) if row not in rotated]
    for unit, where in zip(signs, [*planes, *([row] for row in free)], strict=True):
        rows[where] = unit
    _take(steps, {discrete.ROW_SIGNS: np.concatenate([rows, rows])}, *place)
    numbers = np.concatenate([signs[: len(planes)], rows[free]])
    _take(steps, {heads.QUERY_KEY_GAIN: numbers}, *place)


def _complete(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Dead neurons take the places that are left."""
    order = order.copy()
    spare = np.setdiff1d(np.arange(len(order)), order)
    order[order < 0] = spare[: int((order < 0).sum())]
    return order


def _argument_scales(activation: Activation, factors: Array) -> dict[str, Any]:
    if activation is Activation.HOMOGENEOUS:
        return {mlp.HOMOGENEOUS: factors}
    if activation is Activation.ODD:
        return {discrete.ODD_SIGNS: factors}
    return {}


def _neurons(steps: Steps, found: NeuronMatch, block: Mlp) -> None:
    place = (block.layer, block.label)
    order = _complete(found.order)
    sets = mixed_places(found, order)
    _take(steps, {discrete.NEURON_PERMUTATION: order[None]}, *place)
    there, back = scale_to_first(steps, block, sets)
    up, argument = (
        found.up_scale.copy(),
        np.array(found.up_scale if block.gate is None else found.gate_scale),
    )
    mixed = np.concatenate([np.zeros(0, dtype=np.int64), *sets])
    up[mixed], argument[mixed] = 1.0, there[mixed]
    if block.gate is not None:
        _take(steps, {mlp.GATED: up}, *place)
    _take(steps, _argument_scales(block.activation, argument), *place)
    if sets:
        mix_neurons(steps, block, found, sets, back)
        _take(steps, _argument_scales(block.activation, back), *place)


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
