"""Moves of what nobody reads: factors whose partner is zero, and planes with equal gains.

A neuron whose gate, up or down vector is zero adds nothing, and neither does a head without values
or outputs: the other factors can be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.canonical.readers import constant_of, visible_rows
from fiberscope.checkpoints.ledger.wiring import Wiring
from fiberscope.checkpoints.moves.exceptional import (
    EQUAL_TURNS,
    SILENT_HEADS,
    SILENT_NEURONS,
    Exceptional,
)
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import OrthogonalCommutant, Slot, Translation
from fiberscope.symmetry.base import touched

ARGUMENT, UP, DOWN = "argument", "up", "down"
NEURON_FACTORS = (ARGUMENT, UP, DOWN)
OUTPUT, VALUE, QUERY, KEY, ONE_OUTPUT = "output", "value", "query", "key", "one output"
HEAD_FACTORS = (OUTPUT, VALUE, QUERY, KEY, ONE_OUTPUT)
STRICT = 1e4
"""Zero must be meant: a premise counts this many times what equal numbers may differ by."""

Arrays = dict[str, NDArray[Any]]
Part = tuple[View, tuple[Any, ...]]
"""A view, and which of its entries."""


def neuron_parts(mlp: Mlp, neurons: NDArray[np.int64]) -> dict[str, list[Part]]:
    """The entries of some neurons, factor by factor."""
    rows = (np.asarray(neurons),)
    found: dict[str, list[Part]] = {}
    sides = {ARGUMENT: (mlp.up, mlp.up_bias)}
    if mlp.gate is not None:
        sides = {ARGUMENT: (mlp.gate, mlp.gate_bias), UP: (mlp.up, mlp.up_bias)}
    for name, views in sides.items():
        found[name] = [(view, rows) for view in views if view is not None]
    found[DOWN] = [(mlp.down, (slice(None), np.asarray(neurons)))]
    return found


def silent_neurons(mlp: Mlp, neurons: NDArray[np.int64], zero: str, wiring: Wiring) -> Exceptional:
    """Shifts of all factors but ``zero``, which is zero for these neurons."""
    index = np.asarray(neurons, dtype=np.int64)
    if index.ndim != 1 or not len(index) or len(np.unique(index)) != len(index):
        raise ValueError("different neurons are needed")
    if index.min() < 0 or index.max() >= mlp.neurons:
        raise ValueError("no such neuron")
    parts = neuron_parts(mlp, index)
    free = [part for name, found in parts.items() if name != zero for part in found]
    sizes = neuron_sizes(mlp, wiring)[zero]
    return _shift(
        f"{mlp.label}: {SILENT_NEURONS}",
        free,
        lambda p: float(sizes(p)[index].max()),
        [view for view, _ in parts[zero]],
    )


def neuron_sizes(mlp: Mlp, wiring: Wiring) -> dict[str, Callable[[Parameters], Any]]:
    """Sizes of every neuron's factors, as they are seen, relative to the largest."""
    found: dict[str, Callable[[Parameters], Any]] = {}
    readers = {ARGUMENT: mlp.up} if mlp.gate is None else {ARGUMENT: mlp.gate, UP: mlp.up}
    for name, view in readers.items():
        found[name] = partial(_seen, view, wiring)
    found[DOWN] = lambda p: _relative(np.abs(mlp.down.read(p)).max(axis=0))
    return found


def _seen(view: View, wiring: Wiring, parameters: Parameters) -> Any:
    return _relative(seen_sizes(view, wiring, parameters))


def head_parts(a: Attention, group: int, head: int) -> dict[str, tuple[list[Part], list[str]]]:
    """For every factor that may be zero: its entries, and the factors that are free then."""
    g: tuple[int, ...] = (group,)
    sides: dict[str, list[Part]] = {
        OUTPUT: [(a.output, g)],
        VALUE: [(v, g) for v in (a.value, a.value_bias) if v is not None],
        QUERY: [(v, g) for v in (a.query, a.query_bias) if v is not None],
        KEY: [(v, g) for v in (a.key, a.key_bias) if v is not None],
    }
    one: tuple[int, ...] = (group, head)
    sides["one query"] = [(v, one) for v in (a.query, a.query_bias) if v is not None]
    sides[ONE_OUTPUT] = [(a.output, one)]
    free = {
        OUTPUT: [VALUE, QUERY, KEY],
        VALUE: [OUTPUT, QUERY, KEY],
        QUERY: [KEY],
        KEY: [QUERY],
        ONE_OUTPUT: ["one query"],
        "one query": [],
    }
    return {name: (sides[name], free[name]) for name in sides}


def silent_heads(a: Attention, group: int, head: int, zero: str, wiring: Wiring) -> Exceptional:
    """Shifts of the factors that are free where ``zero`` is zero, in one group or one head."""
    if not (0 <= group < a.groups and 0 <= head < a.heads_per_group and zero in HEAD_FACTORS):
        raise ValueError("no such head")
    parts = head_parts(a, group, head)
    free = [part for name in parts[zero][1] for part in parts[name][0]]

    def premise(parameters: Parameters) -> float:
        return float(head_sizes(a, wiring, parameters)[zero][group, head])

    return _shift(f"{a.label}: {SILENT_HEADS}", free, premise, [view for view, _ in parts[zero][0]])


def head_sizes(a: Attention, wiring: Wiring, parameters: Parameters) -> dict[str, Any]:
    """Sizes of what every head's factors are, relative to the largest: shape ``(G, m)`` each."""
    shape = (a.groups, a.heads_per_group)
    output = _relative(np.abs(a.output.read(parameters)).max(axis=(2, 3)))
    found = {ONE_OUTPUT: output, OUTPUT: output.max(axis=1, keepdims=True)}
    for name, view in ((VALUE, a.value), (QUERY, a.query), (KEY, a.key)):
        size = _relative(seen_sizes(view, wiring, parameters))
        found[name] = size.reshape(a.groups, -1).max(axis=1, keepdims=True)
    return {name: np.broadcast_to(size, shape) for name, size in found.items()}


def seen_sizes(view: View, wiring: Wiring, parameters: Parameters) -> Any:
    """Largest entry of every row as it is seen, its constant included."""
    point = wiring.point_reading(view)
    reader = next(reader for reader in point.readers if reader.weight == view)
    rows = np.abs(visible_rows(reader, point, parameters)).max(axis=-1)
    return np.maximum(rows, np.abs(constant_of(reader, point, parameters)))


def _relative(sizes: Any) -> Any:
    largest = float(sizes.max(initial=0.0))
    return sizes / largest if largest else sizes


def _shift(
    name: str,
    free: Sequence[Part],
    premise: Callable[[Parameters], float],
    read: Sequence[View],
) -> Exceptional:
    sizes = [int(np.zeros(view.shape)[index].size) for view, index in free]

    def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
        moved, start = [], 0
        for (view, index), size in zip(free, sizes, strict=True):
            whole = np.zeros(view.shape, dtype=shift.dtype)
            chosen = whole[index]
            whole[index] = shift[start : start + size].reshape(chosen.shape)
            start += size
            moved.append((view, whole))
        return moved

    views = [view for view, _ in free]
    symmetry = Translation(name, (sum(sizes),), views, increments)
    return Exceptional(symmetry, lambda p: STRICT * premise(p), touched(*read))


def gathered(free: Sequence[Part], parameters: Mapping[str, Any]) -> NDArray[np.float64]:
    """The entries of some parts, one after the other."""
    found = [np.asarray(view.read(parameters))[index].reshape(-1) for view, index in free]
    return np.concatenate([np.zeros(0), *found]).astype(np.float64)


def equal_turns(a: Attention, planes: NDArray[np.int64]) -> Exceptional:
    """Turns by any angle of planes whose two gains are equal, for queries and for keys.

    An element holds one orthogonal matrix a group, which turns these planes only.
    """
    index = np.asarray(planes, dtype=np.int64)
    if a.rotary is None or a.query_norm is None or a.key_norm is None:
        raise ValueError("queries and keys are not normalised and turned")
    if not len(index) or index.min() < 0 or index.max() >= len(a.rotary.planes):
        raise ValueError("no such plane")
    gains = [norm.gain for norm in (a.query_norm, a.key_norm) if norm.gain is not None]
    slots = [Slot(a.query, 2), Slot(a.key, 1)]
    slots += [Slot(view, axis) for view, axis in ((a.query_bias, 2), (a.key_bias, 1)) if view]
    turned = [a.rotary.planes[k] for k in index]
    frequencies = [a.rotary.frequencies[k] for k in index]

    def premise(parameters: Parameters) -> float:
        worst = 0.0
        for gain in gains:
            values = np.asarray(gain.read(parameters))
            pairs = values[np.array(turned)]
            worst = max(worst, float(np.abs(np.diff(pairs, axis=1)).max() / np.abs(values).max()))
        return worst

    name = f"{a.label}: {EQUAL_TURNS}"
    symmetry = OrthogonalCommutant(name, tuple(slots), turned, frequencies)
    return Exceptional(symmetry, premise, touched(*gains))
