"""Neurons in canonical form: scales and signs fixed, in the order of what they read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation
from fiberscope.checkpoints.canonical.attention import TIE
from fiberscope.checkpoints.canonical.equal_neurons import (
    Sets,
    equal_gates,
    factor_jointly,
    merge_equal,
)
from fiberscope.checkpoints.canonical.places import Places, descending
from fiberscope.checkpoints.canonical.points import Folded, Style
from fiberscope.checkpoints.canonical.readers import reference, signed_norm
from fiberscope.checkpoints.canonical.workspace import ROUNDINGS, relative_noise, taken
from fiberscope.checkpoints.forward.activations import ACTIVATIONS
from fiberscope.checkpoints.ledger.rules.discrete import NEURON_PERMUTATION, ODD_SIGNS
from fiberscope.checkpoints.ledger.rules.mlp import GATED

Array = NDArray[np.float64]


@dataclass
class Neurons:
    """Units of one hidden layer.

    Attributes
    ----------
    gate
        What the activation reads: the gate, or the only rows there are.
    up
        The rows that multiply a gate's activation; None where there is no gate.
    down
        What every unit writes, shape ``(f, outputs)``.
    power
        Degree of a positively homogeneous activation, None for others.
    odd
        Whether the activation passes signs on.
    additive
        Whether only the sum of what the units write is seen (no norm stands behind them).
    """

    label: str
    layer: int | None
    gate: Folded
    up: Folded | None
    down: Array
    down_changed: bool
    power: int | None
    odd: bool
    activation_name: str
    spacing: float
    additive: bool = True


def canonical_neurons(neurons: Neurons, style: Style, places: Places) -> int:
    """Bring one layer of units to canonical form, in place; how many nearly read the same."""
    if style.drop:
        _drop_dead(neurons, places)
    sets: Sets = []
    near = 0
    if style.balance and style.order and neurons.additive:
        if neurons.up is None:
            near = merge_equal(neurons, places)
        else:
            sets, near = equal_gates(neurons, places)
    together = np.zeros(len(neurons.down), dtype=np.int64)
    for number, members in enumerate(sets, 1):
        together[members] = number
    if style.balance:
        _scale(neurons, places, together == 0)
    if style.order:
        if neurons.odd:
            _signs(neurons, neurons.gate, ODD_SIGNS, places)
        together = _sort(neurons, places, together)
    if sets:
        sets = [np.flatnonzero(together == number) for number in range(1, len(sets) + 1)]
        factor_jointly(neurons, sets, places)
    return near


def degree_of(activation: Activation, name: str) -> int | None:
    """Degree of a positively homogeneous activation, None for others."""
    if activation is not Activation.HOMOGENEOUS:
        return None
    return 2 if name == "relu2" else 1


def rows_with_constant(part: Folded) -> Array:
    """Rows with their constant as a last column, zero or not: references count columns."""
    if part.constant is None:
        return part.rows
    return np.concatenate([part.rows, part.constant[:, None]], axis=1)


def _lengths(part: Folded) -> Array:
    squares = np.einsum("ij,ij->i", part.rows, part.rows)
    if part.constant is not None:
        squares = squares + part.constant**2
    return np.sqrt(squares)


def _multiply(part: Folded, factor: Array) -> None:
    part.rows *= factor[:, None]
    if part.constant is not None:
        part.constant = part.constant * factor
    if part.deviation is not None:
        part.deviation = part.deviation * np.abs(factor)
    part.changed = True


def _scale(neurons: Neurons, places: Places, alone: NDArray[np.bool_]) -> None:
    """Spread every freely movable scale evenly: lengths of the parts agree.

    Signs are fixed of units that are ``alone``: those of others follow from their joint factors,
    and so do the lengths of gates that can be scaled.

    With ``|down| = c``, gate ``g`` of degree p and up ``u``: factors x on the gate and y on up
    divide down by ``x^p y``.
    """
    if neurons.up is None and neurons.power is None:
        return
    down = np.linalg.norm(neurons.down, axis=1)
    tolerance = ROUNDINGS * neurons.spacing
    power = neurons.power
    parts: list[tuple[Folded, int]] = []
    if neurons.up is not None:
        parts.append((neurons.up, 1))
    if power is not None:
        parts.append((neurons.gate, power))
    lengths = [_lengths(part) for part, _ in parts]
    live = (down > 0) & np.logical_and.reduce([length > 0 for length in lengths])
    # The common length: log of it is the weighted mean of the logs.
    total = 1 + sum(degree for _, degree in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.log(down)
        for length, (_, degree) in zip(lengths, parts, strict=True):
            mean = mean + degree * np.log(length)
        common = np.where(live, np.exp(mean / total), 1.0)
    settled = True
    factors = []
    free = alone if power is not None else np.ones_like(alone)
    for length in lengths:
        factor = np.divide(common, length, out=np.ones_like(length), where=(length > 0) & free)
        factors.append(factor)
        settled &= bool((np.abs(factor - 1) <= tolerance).all())
    if settled:
        noise = relative_noise(neurons.down, neurons.spacing)
        for part, _ in parts:
            other = relative_noise(rows_with_constant(part), neurons.spacing)
            noise = np.maximum(noise, other)
        settled = all(bool((np.abs(factor - 1) <= noise).all()) for factor in factors)
    if neurons.up is not None:
        signed = signed_norm(rows_with_constant(neurons.up))
        _note_signs(neurons, lengths[0] * alone, neurons.up, GATED, places)
        settled &= not _negative(lengths[0], neurons, neurons.up, alone)
        factors[0] = factors[0] * np.where(alone & (signed < 0), -1.0, 1.0)
    # A dead unit's down is scaled to length 1 where it is all that is left.
    left = ~live & (down > 0) & free & alone
    wanted = np.where(left, 1.0, down)
    settled &= bool((np.abs(wanted - down) <= tolerance).all())
    bare = left & (lengths[0] == 0) if neurons.up is not None else np.zeros_like(left)
    if not _faces_reference(neurons, bare):
        settled = False
    if settled:
        return
    whole = np.ones(len(down))
    for factor, (part, degree) in zip(factors, parts, strict=True):
        _multiply(part, factor)
        whole *= factor**degree
    neurons.down /= whole[:, None]
    neurons.down[left] *= (1.0 / np.linalg.norm(neurons.down[left], axis=1))[:, None]
    _turn_to_reference(neurons, bare)
    neurons.down_changed = True


def _faces_reference(neurons: Neurons, bare: NDArray[np.bool_]) -> bool:
    """Whether what units without rows write has the sign of the reference, up to rounding.

    Their signs move with nothing else, so nothing else fixes them.
    """
    if not bare.any():
        return True
    down = neurons.down[bare]
    inner = down @ reference(down.shape[1])
    return bool((inner >= -ROUNDINGS * neurons.spacing * np.linalg.norm(down, axis=1)).all())


def _turn_to_reference(neurons: Neurons, bare: NDArray[np.bool_]) -> None:
    if bare.any():
        down = neurons.down[bare]
        neurons.down[bare] = down * np.where(signed_norm(down) < 0, -1.0, 1.0)[:, None]


def _negative(
    lengths: Array, neurons: Neurons, part: Folded, alone: NDArray[np.bool_] | None = None
) -> bool:
    bound = ROUNDINGS * neurons.spacing * lengths / np.sqrt(part.rows.shape[1])
    negative = _inner(part) < -bound
    return bool((negative if alone is None else negative & alone).any())


def _inner(part: Folded) -> Array:
    rows = rows_with_constant(part)
    return np.asarray(rows @ reference(rows.shape[-1])) / np.sqrt(rows.shape[-1])


def _note_signs(
    neurons: Neurons, lengths: Array, part: Folded, mechanism: str, places: Places
) -> None:
    bound = TIE * neurons.spacing * lengths / np.sqrt(part.rows.shape[1])
    close = np.abs(_inner(part)) <= bound
    close &= lengths > 0
    places.add(mechanism, neurons.layer, f"{neurons.label}, signs", np.flatnonzero(close).tolist())


def _signs(neurons: Neurons, part: Folded, mechanism: str, places: Places) -> None:
    """Positive product of every row with the reference; an odd activation passes the sign on."""
    signed = signed_norm(rows_with_constant(part))
    lengths = _lengths(part)
    _note_signs(neurons, lengths, part, mechanism, places)
    bare = (lengths == 0) & neurons.down.any(axis=1)
    if not _negative(lengths, neurons, part) and _faces_reference(neurons, bare):
        return
    sign = np.where(signed < 0, -1.0, 1.0)
    _multiply(part, sign)
    neurons.down = neurons.down * sign[:, None]
    _turn_to_reference(neurons, bare)
    neurons.down_changed = True


def _sort(neurons: Neurons, places: Places, together: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort the units; returns the number of the set of equal gates each position belongs to."""
    keys = _lengths(neurons.gate)

    def writes() -> Array:
        found = np.linalg.norm(neurons.down, axis=1)
        # Without rows the length can be anything, and is 1: units differ by their direction.
        silent = keys == 0
        found[silent] = neurons.down[silent] @ reference(neurons.down.shape[1])
        # The order inside such a set is that of its joint factors.
        found[together > 0] = 0.0
        return found

    order, ties, settled = descending(
        keys,
        TIE * neurons.spacing,
        lambda: relative_noise(rows_with_constant(neurons.gate), neurons.spacing),
        writes,
    )
    sets = together[order]
    silent = keys[order] == 0
    ties = [
        place
        for place in ties
        # Neither units with joint factors nor units of zeros make the form less unique.
        if (sets[place] == 0 or sets[place] != sets[place + 1])
        and not (silent[place + 1] and neurons.additive and neurons.up is None)
    ]
    places.add(NEURON_PERMUTATION, neurons.layer, neurons.label, ties)
    parts = [part for part in (neurons.gate, neurons.up) if part is not None]
    rewritten = neurons.down_changed and all(part.changed for part in parts)
    # What is written anyway is sorted exactly: rounding is added to it once more.
    if (settled and not rewritten) or (order[1:] > order[:-1]).all():
        return together
    for part in parts:
        part.rows = taken(part.rows, order)
        if part.constant is not None:
            part.constant = part.constant[order]
        if part.deviation is not None:
            part.deviation = part.deviation[order]
        if part.lost is not None:
            part.lost = part.lost[order]
        if part.summed is not None:
            part.summed = part.summed[order]
        part.changed = True
    neurons.down = neurons.down[order]
    neurons.down_changed = True
    return sets


def _drop_dead(neurons: Neurons, places: Places) -> None:
    """Units that write nothing or never switch: every part of them is zero."""
    dead = ~neurons.down.any(axis=1)
    for part in (neurons.gate, neurons.up):
        if part is None:
            continue
        if part is neurons.gate and not _vanishes_at_zero(neurons):
            continue
        silent = ~part.rows.any(axis=1)
        if part.constant is not None:
            silent &= part.constant == 0
        dead |= silent
    if not dead.any():
        return
    changed = False
    for part in (neurons.gate, neurons.up):
        if part is None:
            continue
        live = part.rows[dead].any() or (part.constant is not None and part.constant[dead].any())
        if live:
            part.rows[dead] = 0.0
            if part.constant is not None:
                part.constant = part.constant.copy()
                part.constant[dead] = 0.0
            part.changed = changed = True
    if neurons.down[dead].any():
        neurons.down[dead] = 0.0
        neurons.down_changed = changed = True
    places.note_dead("neurons without effect", int(dead.sum()) if changed else 0)


def _vanishes_at_zero(neurons: Neurons) -> bool:
    """Whether the activation maps 0 to 0, so that a row of zeros never switches."""
    return bool(ACTIVATIONS[neurons.activation_name](np.zeros(1))[0] == 0.0)
