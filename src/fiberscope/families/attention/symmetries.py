"""The groups that act on the parameters of a stack of attention layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.attention.configuration import AttentionConfiguration, QueryKeyNorm
from fiberscope.parameters import View
from fiberscope.symmetry import (
    GeneralLinear,
    OrthogonalCommutant,
    Permutation,
    RotaryCommutant,
    ScaledSlot,
    Scaling,
    SignFlip,
    Slot,
    Symmetry,
    Translation,
)

Increment = tuple[View, NDArray[Any]]
Named = dict[str, NDArray[Any]]


def attention_symmetries(c: AttentionConfiguration) -> tuple[Symmetry, ...]:
    """All symmetries, layer by layer, then those of the interfaces between layers."""
    found: list[Symmetry] = []
    for layer in range(c.depth):
        roles = _Layer(c, layer)
        found += roles.query_key() + roles.value_output() + roles.permutations()
    for layer in range(c.depth - 1):
        found += _interface(_Layer(c, layer), _Layer(c, layer + 1))
    return tuple(found)


class _Layer:
    """Views of one layer's roles, and the symmetries inside the layer."""

    def __init__(self, c: AttentionConfiguration, layer: int) -> None:
        self.c, self.layer = c, layer
        self.where = "" if c.depth == 1 else f", layer {layer + 1}"

    def view(self, role: str) -> View | None:
        return self.c.view(self.layer, role)

    def need(self, role: str) -> View:
        view = self.view(role)
        assert view is not None
        return view

    def grouped(self, role: str) -> View | None:
        """The view with heads split into groups and heads inside them, where it has heads."""
        view = self.view(role)
        if view is None:
            return None
        return view.split(0, self.c.G, self.c.heads_per_group)

    def query_key(self) -> list[Symmetry]:
        """What leaves the scores alone."""
        c = self.c
        slots = _slots(
            (self.grouped("query"), 2, False),
            (self.grouped("query_bias"), 2, False),
            (self.view("key"), 1, True),
            (self.view("key_bias"), 1, True),
        )
        name = f"query/key basis{self.where}"
        if c.norm is QueryKeyNorm.NONE:
            basis = (
                RotaryCommutant(name, slots, c.planes, c.angles)
                if c.rotated
                else GeneralLinear(name, slots)
            )
            return [basis, *self._dead_key_bias()]
        if c.norm is QueryKeyNorm.PLAIN:
            return [OrthogonalCommutant(name, slots, c.planes, c.angles), self._scales()]
        return [self._scales(), *self._gain_products(), *self._row_signs()]

    def _dead_key_bias(self) -> list[Symmetry]:
        """A constant over keys cancels in the softmax; a rotated bias is no constant."""
        view = self.view("key_bias")
        if view is None or self.c.rotated == self.c.query_width:
            return []
        dead = view.slice(1, self.c.rotated, self.c.query_width)
        return [
            Translation(
                f"key bias{self.where}", dead.shape, (dead,), lambda _, shift: [(dead, shift)]
            )
        ]

    def _scales(self) -> Symmetry:
        """Normalisation forgets the length of every head's queries and every group's keys."""
        c = self.c
        slots = []
        for role, offset in (("query", 0), ("key", c.heads)):
            units = c.shape(role)[0]
            positions = tuple(range(offset, offset + units))
            for view in (self.view(role), self.view(f"{role}_bias")):
                if view is not None:
                    slots.append(ScaledSlot(view, 0, coordinate=positions))
        return Scaling(f"query and key scales{self.where}", c.heads + c.G, slots, positive=True)

    def _factors(self) -> tuple[int, tuple[int, ...]]:
        """Number of factors that commute with the rotation, and the factor of every row."""
        half = self.c.rotated // 2
        rows = range(self.c.query_width)
        factor = tuple(row % half if row < self.c.rotated else row - half for row in rows)
        return self.c.query_width - half, factor

    def _gain_products(self) -> list[Symmetry]:
        """Only products of a query and a key gain are seen, one factor for a rotated plane."""
        c = self.c
        size, factor = self._factors()
        query, key = self.need("query_gain"), self.need("key_gain")
        if c.norm is QueryKeyNorm.SHARED_GAINS:
            slots = (ScaledSlot(query, 0, 1, factor), ScaledSlot(key, 0, -1, factor))
            return [Scaling(f"query against key gain{self.where}", size, slots)]
        query = query.split(0, c.G, c.heads_per_group)
        return [
            Scaling(
                f"query against key gain, group {group + 1}{self.where}",
                size,
                (
                    ScaledSlot(query.index(0, group), 1, 1, factor),
                    ScaledSlot(key.index(0, group), 0, -1, factor),
                ),
            )
            for group in range(c.G)
        ]

    def _row_signs(self) -> list[Symmetry]:
        """Signs (and without rotation the order) of the rows of a normalised query and key."""
        c = self.c
        size, factor = self._factors()
        query = [self.grouped("query"), self.grouped("query_bias")]
        key = [self.view("key"), self.view("key_bias")]
        found: list[Symmetry] = []
        for group in range(c.G):
            slots = [
                *(ScaledSlot(v.index(0, group), 1, 1, factor) for v in query if v is not None),
                *(ScaledSlot(v.index(0, group), 0, 1, factor) for v in key if v is not None),
            ]
            name = f"query and key row signs, group {group + 1}{self.where}"
            found.append(SignFlip(name, size, slots))
        if not c.rotated:
            found.append(self._row_order(query, key))
        return found

    def _row_order(self, query: list[View | None], key: list[View | None]) -> Symmetry:
        """Rows exchanged together with their gains: all groups at once when gains are shared."""
        c, name = self.c, f"query and key row order{self.where}"
        gains = self.need("query_gain"), self.need("key_gain")
        if c.norm is QueryKeyNorm.SHARED_GAINS:
            slots = _slots(
                (self.view("query"), 1, False),
                (self.view("query_bias"), 1, False),
                *((view, 1, False) for view in key),
                *((gain, 0, False) for gain in gains),
            )
            return Permutation(name, c.query_width, slots)
        slots = _slots(
            *((view, 2, False) for view in query),
            *((view, 1, False) for view in key),
            (self.grouped("query_gain"), 2, False),
            (gains[1], 1, False),
        )
        return Permutation(name, c.query_width, slots, copies=c.G)

    def value_output(self) -> list[Symmetry]:
        """Values against output, and value biases that add up to one constant."""
        c = self.c
        value, output = self.view("value_bias"), self.grouped("output")
        slots = _slots((self.view("value"), 1, False), (value, 1, False), (output, 3, True))
        found: list[Symmetry] = [GeneralLinear(f"value/output basis{self.where}", slots)]
        if value is None:
            return found
        name = f"value bias{self.where}"
        total = self.view("output_bias")
        if total is None:
            free = c.G * c.value_width - c.p
            if free > 0:
                found.append(Translation(name, (free,), (value,), self._unseen_value_biases))
            return found

        def fold(parameters: Named, shift: NDArray[Any]) -> list[Increment]:
            return [(value, shift), (total, -self.written(parameters, shift))]

        found.append(Translation(name, value.shape, (value, total), fold))
        return found

    def written(self, parameters: Named, constant: NDArray[Any]) -> NDArray[Any]:
        """What the layer writes when the values are ``constant`` (G, s): attention sums to one."""
        output = self.grouped("output")
        assert output is not None
        return np.einsum("gmps,gs->p", output.read(parameters), constant)

    def _unseen_value_biases(self, parameters: Named, shift: NDArray[Any]) -> list[Increment]:
        """Value biases whose sum through the output maps is zero, without an output bias."""
        view, output = self.need("value_bias"), self.grouped("output")
        assert output is not None
        weights = output.read(parameters).real
        reads = weights.sum(axis=1).transpose(1, 0, 2).reshape(self.c.p, -1)
        unseen = np.linalg.svd(reads)[2][-shift.size :]
        return [(view, (shift @ unseen).reshape(view.shape))]

    def permutations(self) -> list[Symmetry]:
        """Heads inside a key/value group, and whole groups."""
        c = self.c
        headed = ["query", "query_bias", "output"]
        keyed = ["key", "key_bias", "value", "value_bias"]
        if c.norm is QueryKeyNorm.HEAD_GAINS:
            headed.append("query_gain")
            keyed.append("key_gain")
        heads = [self.grouped(role) for role in headed]
        found: list[Symmetry] = []
        if c.heads_per_group > 1:
            slots = _slots(*((view, 1, False) for view in heads))
            name = f"heads inside a group{self.where}"
            found.append(Permutation(name, c.heads_per_group, slots, copies=c.G))
        if c.G > 1:
            slots = _slots(
                *((view, 0, False) for view in heads),
                *((self.view(role), 0, False) for role in keyed),
            )
            found.append(Permutation(f"key/value groups{self.where}", c.G, slots))
        return found


def _slots(*places: tuple[View | None, int, bool]) -> tuple[Slot, ...]:
    """Slots of the views that exist."""
    return tuple(Slot(view, axis, dual) for view, axis, dual in places if view is not None)


def _interface(lower: _Layer, upper: _Layer) -> list[Symmetry]:
    """Freedom of the stream between two layers: its basis, and constants added to it.

    A residual connection carries the stream past the upper layer and so fixes its basis, but not
    a constant, which the upper output bias takes back.
    """
    c = lower.c
    between = f"between layers {lower.layer + 1} and {upper.layer + 1}"
    found: list[Symmetry] = []
    if not c.residual:

        def single(view: View | None) -> View | None:
            return None if view is None else view.split(0, 1, view.shape[0])

        slots = _slots(
            (single(lower.view("output")), 2, False),
            (single(lower.view("output_bias")), 1, False),
            *((single(upper.view(role)), 3, True) for role in ("query", "key", "value")),
        )
        found.append(GeneralLinear(f"stream basis {between}", slots))
    if not c.shifts_absorbed:
        return found
    below, above = lower.need("output_bias"), upper.need("output_bias")
    query, key = upper.need("query_bias"), upper.view("key_bias")

    def shifted(parameters: Named, shift: NDArray[Any]) -> list[Increment]:
        def seen(role: str) -> NDArray[Any]:
            return upper.need(role).read(parameters) @ shift

        taken_back = upper.written(parameters, seen("value")) + (shift if c.residual else 0)
        increments = [(below, shift), (query, -seen("query")), (above, -taken_back)]
        return increments + ([] if key is None else [(key, -seen("key"))])

    views = (below, above, query, key)
    found.append(Translation(f"stream constant {between}", (c.p,), views, shifted))
    return found
