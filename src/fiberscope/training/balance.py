"""The point of smallest norm on a fiber, for the part of the symmetries where it is well posed.

Changes of basis of heads, scalings of neurons, and biases that cancel: these move to the smallest
norm (and, among the points that have it, to the nearest). Norm gains, norm biases, free directions
behind a LayerNorm and rotations of the residual stream are left alone: with the rotation free the
problem is not convex, and gains couple with everything behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Attention
from fiberscope.checkpoints.ledger import Item, ledger
from fiberscope.checkpoints.ledger.rules.constants import (
    KEY_BIAS,
    PARALLEL_BIAS,
    VALUE_BIAS,
    unrotated_index,
    value_kernel,
)
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, VALUE_OUTPUT
from fiberscope.checkpoints.ledger.rules.mlp import GATED, HOMOGENEOUS
from fiberscope.checkpoints.ledger.wiring import Role, Wiring, wire
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import GeneralLinear, Scaling, Symmetry, Translation
from fiberscope.training.balance_heads import Arrays, balance_heads, head_moments
from fiberscope.training.balance_scalings import balance_scalings, scaling_moments
from fiberscope.training.balance_shifts import ShiftMove, kernel_shift, key_shift, parallel_shift
from fiberscope.training.balance_values import balance_values, ridge_shift, values_moments

BALANCED = (QUERY_KEY, VALUE_OUTPUT, GATED, HOMOGENEOUS, KEY_BIAS, VALUE_BIAS, PARALLEL_BIAS)
"""The mechanisms that are balanced."""

LEFT_ALONE = (
    "norm gains, norm biases, free directions behind a LayerNorm, shifts between embedding tables "
    "and rotations of the residual stream are left alone: with them the smallest norm is not a "
    "convex problem"
)


class Move(Protocol):
    """An element of a symmetry (with a cut of dead rows), to be applied in place."""

    @property
    def cut(self) -> int:
        """Rows or neurons that are cut because their products are zero."""

    def apply(self, parameters: Arrays) -> None:
        """Move parameters in place."""

    def carry_covectors(self, covectors: Arrays, before: Arrays) -> None:
        """Carry gradients along in place, given the parameters before the move."""


@dataclass(frozen=True)
class MechanismBalance:
    """What balancing did to one mechanism of one layer.

    Attributes
    ----------
    mechanism, layer, where
        As in the ledger.
    imbalance_before, imbalance_after
        ``|a - b| / (|a| + |b|)``, where a and b are the two sides that the mechanism trades:
        ``A A^T`` and ``B B^T`` of a head's factors, squared norms of a neuron's row and column, a
        bias and what it would be at the smallest norm. Between 0 and 1.
    norm_before, norm_after
        Euclidean norm of everything the mechanism touches.
    cut
        Rows (or neurons) cut because their product was zero.
    """

    mechanism: str
    layer: int | None
    where: str
    imbalance_before: float
    imbalance_after: float
    norm_before: float
    norm_after: float
    cut: int = 0


@dataclass(frozen=True)
class Balanced:
    """Balanced parameters, the moves that led to them, and what they changed.

    Attributes
    ----------
    parameters
        All tensors; those that no move touches are the given ones.
    moves
        The moves, in order.
    mechanisms
        Before and after, one entry a layer and mechanism.
    norm_before, norm_after
        Euclidean norm of all parameters.
    distance
        Euclidean distance from the given point.
    notes
        What was left alone, cut, or did not settle, in words.
    touched
        Names of the tensors that the balanced mechanisms can change.
    """

    parameters: dict[str, NDArray[Any]]
    moves: tuple[Move, ...]
    mechanisms: tuple[MechanismBalance, ...]
    norm_before: float
    norm_after: float
    distance: float
    notes: tuple[str, ...]
    touched: tuple[str, ...]

    def carry_covectors(
        self, covectors: Sequence[Mapping[str, NDArray[Any]]], before: Parameters
    ) -> list[dict[str, NDArray[np.float64]]]:
        """Carry gradients (or averages of gradients) from the given point to the balanced one.

        A covector moves by the inverse transpose of the derivative of the moves, so that its
        pairing with a direction that is moved along stays the same; what belongs to rows that were
        cut becomes zero. The gradient of any loss of the outputs is carried to its gradient.

        Parameters
        ----------
        covectors
            Each with arrays of some of the touched tensors' shapes; missing ones count as zero.
        before
            The parameters given to `balanced`.
        """
        present = {name: np.array(before[name], dtype=np.float64) for name in self.touched}
        carried = [
            {
                name: np.array(covector[name], dtype=np.float64)
                if name in covector
                else np.zeros_like(present[name])
                for name in self.touched
            }
            for covector in covectors
        ]
        for move in self.moves:
            for covector in carried:
                move.carry_covectors(covector, present)
            move.apply(present)
        return carried


def balanced(
    architecture: Architecture,
    parameters: Parameters,
    *,
    fixed: frozenset[str] = frozenset(),
    cut: bool = False,
) -> Balanced:
    """Move parameters along exact symmetries to the smallest norm, nearest to where they are.

    The function is unchanged, up to the rounding of one change of basis. What is smallest is the
    norm over the closure of the orbit of the mechanisms in `BALANCED`; it is attained where both
    sides of every mechanism balance (the gradient of the norm along the orbit vanishes), and
    unique up to rotations inside heads, of which the nearest is taken.

    Parameters
    ----------
    architecture
        As from ``fiberscope.checkpoints.architecture.registry.architecture``.
    parameters
        Its stored tensors, float64 (others are converted), tied ones once; not changed.
    fixed
        Tensors that must stay as they are: mechanisms that touch them are left alone.
    cut
        Where a head has less than full rank (freshly zero-initialised outputs), or a neuron a
        factor of zero, the smallest norm is that with both factors of the dead rows zero, which
        ends their gradient for good. True cuts them; False leaves these heads (the values of the
        whole attention, if they have a bias) and neurons as they are, and a note says which.

    Source: Morrow, arXiv 2609.01231 (balanced representative of heads); the moves are those of the
    ledger.
    """
    wiring = wire(architecture, architecture.default_observable)
    present: Arrays = {name: np.asarray(value) for name, value in parameters.items()}
    steps = list(_steps(wiring, fixed, cut))
    touched = tuple(dict.fromkeys(name for step in steps for name in step.touches))
    for name in touched:
        present[name] = present[name].astype(np.float64)
    before = {name: present[name].copy() for name in touched}
    measured = [[side.measure(present) for side in step.sides] for step in steps]
    moves: list[Move] = []
    notes = [LEFT_ALONE, *_skipped(wiring, fixed)]
    cuts: list[int] = []
    for step in steps:
        made = list(step.move(present, notes))
        moves += made
        cuts.append(sum(move.cut for move in made))
    entries = []
    for step, old, rows in zip(steps, measured, cuts, strict=True):
        for number, (side, (imbalance, norm)) in enumerate(zip(step.sides, old, strict=True)):
            new_imbalance, new_norm = side.measure(present)
            item = side.item
            entries.append(
                MechanismBalance(
                    item.mechanism,
                    item.layer,
                    item.where,
                    imbalance,
                    new_imbalance,
                    norm,
                    new_norm,
                    rows if number == 0 else 0,
                )
            )
    notes += _cut_notes(entries)
    untouched = sum(
        float(np.sum(np.square(value, dtype=np.float64)))
        for name, value in present.items()
        if name not in before
    )
    return Balanced(
        present,
        tuple(moves),
        tuple(entries),
        float(np.sqrt(untouched + sum(np.sum(v**2) for v in before.values()))),
        float(np.sqrt(untouched + sum(np.sum(present[name] ** 2) for name in before))),
        float(np.sqrt(sum(np.sum((present[name] - v) ** 2) for name, v in before.items()))),
        tuple(notes),
        touched,
    )


@dataclass(frozen=True)
class _Side:
    """How one mechanism of a step is measured."""

    item: Item
    views: tuple[View, ...]
    moments: Callable[[Arrays], tuple[NDArray[Any], NDArray[Any]]]

    def measure(self, parameters: Arrays) -> tuple[float, float]:
        """Imbalance and norm."""
        left, right = self.moments(parameters)
        sides = float(np.linalg.norm(left)) + float(np.linalg.norm(right))
        squares = sum(float(np.sum(np.square(v.read(parameters)))) for v in self.views)
        difference = float(np.linalg.norm(left - right))
        return (difference / sides if sides else 0.0), float(np.sqrt(squares))


@dataclass(frozen=True)
class _Step:
    """Mechanisms that must be balanced together."""

    sides: tuple[_Side, ...]
    touches: tuple[str, ...]
    move: Callable[[Arrays, list[str]], Iterator[Move]]


def _items(wiring: Wiring) -> Mapping[tuple[str, str], Item]:
    """Ledger entries of the balanced mechanisms by mechanism and place."""
    found = ledger(wiring.architecture, wiring.observable).items
    return {
        (item.mechanism, item.where): item
        for item in found
        if item.mechanism in BALANCED and item.build is not None
    }


def _touches(item: Item | None) -> tuple[str, ...]:
    return () if item is None or item.build is None else item.build().touches


def _skipped(wiring: Wiring, fixed: frozenset[str]) -> Iterator[str]:
    for item in _items(wiring).values():
        if held := sorted(fixed.intersection(_touches(item))):
            yield f"{item.where}: {item.mechanism} is left alone because {held[0]} is frozen"


def _steps(wiring: Wiring, fixed: frozenset[str], cut: bool) -> Iterator[_Step]:
    items = {
        key: item for key, item in _items(wiring).items() if not fixed.intersection(_touches(item))
    }
    for attention in wiring.attentions:
        place = attention.label
        if (item := items.get((KEY_BIAS, place))) is not None:
            yield _key_step(item, attention)
        if (item := items.get((QUERY_KEY, place))) is not None:
            yield _head_step(item, cut)
        item, bias = items.get((VALUE_OUTPUT, place)), items.get((VALUE_BIAS, place))
        if item is not None and bias is not None:
            yield _value_step(wiring, item, bias, attention, items, cut)
        elif item is not None:
            yield _head_step(item, cut)
        elif bias is not None:
            yield _bias_step(wiring, bias, attention, items)
    yield from _parallel_steps(wiring, items)
    gathered: dict[str, list[Item]] = {}
    for (mechanism, place), item in items.items():
        if mechanism in (GATED, HOMOGENEOUS):
            gathered.setdefault(place, []).append(item)
    for together in gathered.values():
        yield _scaling_step(together, cut)


def _built(item: Item, kind: type[Any]) -> Any:
    assert item.build is not None
    symmetry: Symmetry = item.build()
    assert isinstance(symmetry, kind)
    return symmetry


def _head_side(item: Item, symmetry: GeneralLinear) -> _Side:
    views = tuple(slot.view for slot in symmetry.slots)
    return _Side(item, views, lambda parameters: head_moments(symmetry, parameters))


def _head_step(item: Item, cut: bool) -> _Step:
    symmetry: GeneralLinear = _built(item, GeneralLinear)

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        found = balance_heads(symmetry, parameters)
        if found.cut and not cut:
            notes.append(_kept_note(item, found.cut, "their heads"))
            found = found.without_cuts()
        found.apply(parameters)
        yield found

    return _Step((_head_side(item, symmetry),), symmetry.touches, move)


def _key_step(item: Item, attention: Attention) -> _Step:
    symmetry: Translation = _built(item, Translation)
    bias = attention.key_bias
    assert bias is not None

    def moments(parameters: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
        present = bias.read(parameters)
        smallest = present.copy()
        smallest[:, unrotated_index(attention)] = 0.0
        return present, smallest

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        found = key_shift(symmetry, attention, parameters)
        found.apply(parameters)
        yield found

    return _Step((_Side(item, (bias,), moments),), symmetry.touches, move)


def _step_biases(
    wiring: Wiring, attention: Attention, items: Mapping[tuple[str, str], Item]
) -> tuple[tuple[View, ...], Item | None]:
    """Output biases that a constant value can leave to, and the entry that trades them."""
    biases = wiring.reader_of(attention, Role.VALUE).absorbing_biases
    parallel = items.get((PARALLEL_BIAS, f"layer {attention.layer}"))
    return (biases, parallel) if parallel is not None else (biases[:1], None)


def _bias_side(wiring: Wiring, bias: Item, attention: Attention, biases: tuple[View, ...]) -> _Side:
    value, segment = attention.value_bias, wiring.segment_of(attention)
    assert value is not None

    def moments(parameters: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
        if biases:
            return values_moments(attention, biases, parameters)
        present = value.read(parameters).reshape(-1)
        kernel = value_kernel(attention, segment, parameters)
        return present, present - kernel @ (kernel.T @ present)

    return _Side(bias, (value, *biases), moments)


def _value_step(
    wiring: Wiring,
    item: Item,
    bias: Item,
    attention: Attention,
    items: Mapping[tuple[str, str], Item],
    cut: bool,
) -> _Step:
    symmetry: GeneralLinear = _built(item, GeneralLinear)
    shift: Translation = _built(bias, Translation)
    biases, parallel = _step_biases(wiring, attention, items)
    equal: Translation | None = None if parallel is None else _built(parallel, Translation)
    blind = bool(wiring.segment_of(attention).blind)

    def shifted(found: NDArray[np.float64], parameters: Arrays) -> ShiftMove:
        if biases:
            return ShiftMove(shift, found, attention, biases[0])
        return kernel_shift(shift, attention, found, parameters)

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        found = balance_values(symmetry, attention, biases, parameters, blind=blind)
        if not found.settled:
            notes.append(
                f"{attention.label}: values and value bias did not settle in {found.rounds} rounds"
            )
        if found.head.cut and not cut:
            notes.append(_kept_note(item, found.head.cut, "the values of this attention"))
            return
        first = shifted(found.shift, parameters)
        first.apply(parameters)
        yield first
        found.head.apply(parameters)
        yield found.head
        if biases:  # In the new basis the ridge is well conditioned: what is left is rounding.
            last = shifted(ridge_shift(attention, biases, parameters), parameters)
            last.apply(parameters)
            yield last
        if equal is not None:
            shared = parallel_shift(equal, biases, parameters)
            shared.apply(parameters)
            yield shared

    sides = (_head_side(item, symmetry), _bias_side(wiring, bias, attention, biases))
    touches = (*symmetry.touches, *shift.touches, *(() if equal is None else equal.touches))
    return _Step(sides, touches, move)


def _bias_step(
    wiring: Wiring, bias: Item, attention: Attention, items: Mapping[tuple[str, str], Item]
) -> _Step:
    """The value bias alone, where the change of basis is frozen."""
    shift: Translation = _built(bias, Translation)
    biases, _ = _step_biases(wiring, attention, items)

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        if biases:
            element = ridge_shift(attention, biases, parameters)
            found = ShiftMove(shift, element, attention, biases[0])
        else:
            value = attention.value_bias
            assert value is not None
            kernel = value_kernel(attention, wiring.segment_of(attention), parameters)
            dead = kernel @ (kernel.T @ value.read(parameters).reshape(-1))
            found = kernel_shift(shift, attention, -dead, parameters)
        found.apply(parameters)
        yield found

    return _Step((_bias_side(wiring, bias, attention, biases),), shift.touches, move)


def _parallel_steps(wiring: Wiring, items: Mapping[tuple[str, str], Item]) -> Iterator[_Step]:
    for segment in wiring.segments:
        for layer, biases in segment.biases:
            item = items.get((PARALLEL_BIAS, f"layer {layer}"))
            if item is not None and len(biases) > 1:
                yield _parallel_step(item, biases)


def _parallel_step(item: Item, biases: tuple[View, ...]) -> _Step:
    symmetry: Translation = _built(item, Translation)

    def moments(parameters: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
        values = np.array([bias.read(parameters) for bias in biases])
        return values, np.broadcast_to(values.mean(axis=0), values.shape)

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        found = parallel_shift(symmetry, biases, parameters)
        found.apply(parameters)
        yield found

    return _Step((_Side(item, biases, moments),), symmetry.touches, move)


def _scaling_step(together: list[Item], cut: bool) -> _Step:
    symmetries: list[Scaling] = [_built(item, Scaling) for item in together]

    def side(item: Item, symmetry: Scaling) -> _Side:
        views = tuple(slot.view for slot in symmetry.slots)
        return _Side(item, views, lambda parameters: scaling_moments(symmetry, parameters))

    def move(parameters: Arrays, notes: list[str]) -> Iterator[Move]:
        found = balance_scalings(symmetries, parameters)
        if found.cut and not cut:
            notes.append(_kept_note(together[0], found.cut, "these neurons"))
            found = found.without_cuts()
        found.apply(parameters)
        yield found

    sides = tuple(side(*pair) for pair in zip(together, symmetries, strict=True))
    return _Step(sides, tuple(n for s in symmetries for n in s.touches), move)


def _kept_note(item: Item, rows: int, who: str) -> str:
    return (
        f"{item.where}: {rows} dead rows of the {item.mechanism} have products of zero; {who} are "
        "left unbalanced, because cutting the rows would end their gradient (cut=True does)"
    )


def _cut_notes(entries: list[MechanismBalance]) -> Iterator[str]:
    for entry in entries:
        if entry.cut:
            yield (
                f"{entry.where}: {entry.cut} dead rows of the {entry.mechanism} are cut, since "
                "their products are zero; both of their factors are now zero and receive no "
                "gradient"
            )
