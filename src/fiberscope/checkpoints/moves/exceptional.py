"""Symmetries of particular weights: where rows or gains are equal or zero, more moves are free.

Each is built from a wiring and a few integers that say which rows or features it concerns, and has
a *premise*: the equality that makes it a symmetry, measured at given parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp, NormKind
from fiberscope.checkpoints.ledger.wiring import Point, StreamGroup, Wiring
from fiberscope.errors import InputError
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import (
    Element,
    NormReaders,
    ResidualRotation,
    Slot,
    Symmetry,
    Translation,
    ones_complement,
)
from fiberscope.symmetry.base import touched

EQUAL_GAINS = "rotation among equal final gains"
NEURON_MIXING = "mixing of neurons with equal gates"
NEURON_SHIFT = "shift between outputs of equal neurons"
HEAD_SHIFT = "shift between outputs of equal heads"
GROUP_MIXING = "mixing of equal key/value groups"
DEAD_COLUMNS = "reader columns behind a zero gain"
UNSEEN_GAIN = "gain that no reader sees"
SILENT_NEURONS = "free factors of neurons that add nothing"
SILENT_HEADS = "free factors of heads that add nothing"
EQUAL_TURNS = "turns of normalised planes with equal gains"

MECHANISMS = (
    EQUAL_GAINS,
    NEURON_MIXING,
    NEURON_SHIFT,
    HEAD_SHIFT,
    GROUP_MIXING,
    DEAD_COLUMNS,
    UNSEEN_GAIN,
    SILENT_NEURONS,
    SILENT_HEADS,
    EQUAL_TURNS,
)

Arrays = dict[str, NDArray[Any]]
Data = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Exceptional:
    """An acting symmetry, how far its premise is from holding (0 where it does), what it reads."""

    symmetry: Symmetry
    premise: Callable[[Parameters], float]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlacedSlot:
    """Positions of the flattened ``axes`` of a view; ``dual`` as for `Slot`."""

    view: View
    axes: tuple[int, ...]
    dual: bool = False


class SubsetLinear(Symmetry):
    """GL(m) on m chosen positions of every slot: ``x -> M x``, dual slots ``x -> M^-T x``."""

    def __init__(
        self, name: str, positions: NDArray[np.int64], slots: Sequence[PlacedSlot]
    ) -> None:
        self.name = name
        self.positions = np.asarray(positions, dtype=np.int64)
        self.slots = tuple(slots)

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*(slot.view for slot in self.slots))

    @property
    def generators(self) -> int:
        """``m^2``."""
        return len(self.positions) ** 2

    def identity(self) -> NDArray[np.float64]:
        """Identity matrix, shape ``(m, m)``."""
        return np.eye(len(self.positions))

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Orthogonal times singular values in [1/2, 2]."""
        size = len(self.positions)
        left = np.linalg.qr(rng.standard_normal((size, size)))[0]
        right = np.linalg.qr(rng.standard_normal((size, size)))[0]
        drawn: NDArray[np.float64] = (left * 2.0 ** rng.uniform(-1, 1, size)) @ right
        return drawn

    def compose(self, first: Element, second: Element) -> Element:
        """Matrix product ``second @ first``."""
        return second @ first

    def inverse(self, element: Element) -> Element:
        """Inverse matrix."""
        return np.linalg.inv(element)

    def along(self, generator: int, step: complex) -> NDArray[np.complex128]:
        """``I + step E_ij``."""
        element = self.identity().astype(np.complex128)
        element[divmod(generator, len(self.positions))] += step
        return element

    def apply(self, element: Element, parameters: Arrays) -> None:
        """Act in place on the chosen positions."""
        matrix = np.asarray(element)
        dual = np.linalg.inv(matrix).T
        for slot in self.slots:
            value = np.array(slot.view.read(parameters))
            # The positions run over several axes at once: bring those to the front and flatten.
            front = np.moveaxis(value, slot.axes, range(len(slot.axes)))
            sizes = front.shape[: len(slot.axes)]
            index = np.unravel_index(self.positions, sizes)
            chosen = front[index]
            front[index] = np.tensordot(dual if slot.dual else matrix, chosen, axes=1)
            slot.view.write(parameters, value)


def build(mechanism: str, layer: int | None, where: str, data: Data, wiring: Wiring) -> Exceptional:
    """Build the acting symmetry of a stored step.

    Raises
    ------
    InputError
        If the place does not exist in the architecture, or an index is out of range.
    """
    from fiberscope.checkpoints.moves import silent

    builders: dict[str, Callable[[], Exceptional]] = {
        EQUAL_GAINS: lambda: equal_gains(wiring, data["blocks"]),
        NEURON_MIXING: lambda: neuron_mixing(_mlp(wiring, layer, where), data["neurons"]),
        NEURON_SHIFT: lambda: neuron_shift(_mlp(wiring, layer, where), data["neurons"]),
        HEAD_SHIFT: lambda: head_shift(
            _attention(wiring, layer, where), int(data["group"]), data["heads"]
        ),
        GROUP_MIXING: lambda: group_mixing(_attention(wiring, layer, where), data["groups"]),
        DEAD_COLUMNS: lambda: dead_columns(_point(wiring, layer, where), data["features"]),
        UNSEEN_GAIN: lambda: unseen_gain(_point(wiring, layer, where), data["features"]),
        SILENT_NEURONS: lambda: silent.silent_neurons(
            _mlp(wiring, layer, where),
            data["neurons"],
            silent.NEURON_FACTORS[int(data["zero"])],
            wiring,
        ),
        SILENT_HEADS: lambda: silent.silent_heads(
            _attention(wiring, layer, where),
            int(data["group"]),
            int(data["head"]),
            silent.HEAD_FACTORS[int(data["zero"])],
            wiring,
        ),
        EQUAL_TURNS: lambda: silent.equal_turns(_attention(wiring, layer, where), data["planes"]),
    }
    place = f"{mechanism} ({where})"
    try:
        return builders[mechanism]()
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise InputError(
            f"the witness's step {place!r} does not fit {wiring.architecture.name}; use the "
            "witness with the model it was made for"
        ) from error


def equal_gain_blocks(gains: NDArray[Any]) -> NDArray[np.int64]:
    """Number the coordinates by their final gain, equal ones alike: shape ``(d,)``."""
    return np.unique(np.asarray(gains), return_inverse=True)[1].astype(np.int64)


def tied_group(wiring: Wiring) -> StreamGroup | None:
    """The streams of a tied model whose frame a rotation among equal final gains can turn.

    Needed are: norms in front of every reader, all of one kind, and nothing but linear maps behind
    them save for the tied unembedding.
    """
    last = wiring.tied_point
    if last is None:
        return None
    for group in wiring.stream_groups:
        kinds = {norm.kind for segment in group.segments for norm in segment.readers}
        tied = any(writer.tied for segment in group.segments for writer in segment.writers)
        if not tied or not group.pre_norm or len(kinds) != 1:
            continue
        if not any(norm is last.norm for segment in group.segments for norm in segment.readers):
            continue
        if all(point is last or point.only_linear for point in _points(wiring, group)):
            return group
    return None


def _points(wiring: Wiring, group: StreamGroup) -> list[Point]:
    norms = {id(norm) for segment in group.segments for norm in segment.readers}
    return [point for point in wiring.points if id(point.norm) in norms]


def equal_gains(wiring: Wiring, blocks: NDArray[np.int64]) -> Exceptional:
    """Rotations ``R`` of a tied model's stream with ``R diag(gain) = diag(gain) R``.

    Logits are ``E diag(gain) x``; with ``E -> E R^T`` and ``x -> R x`` they stay. Behind a
    LayerNorm ``R`` must also fix the ones vector, and the final bias turns along. O(m) for every
    block of m equal gains (LayerNorm: those that fix the block's ones vector).

    Parameters
    ----------
    blocks
        Block of every residual coordinate, shape ``(d,)``; blocks of one coordinate stay.
    """
    group, last = tied_group(wiring), wiring.tied_point
    if group is None or last is None or last.norm.gain is None:
        raise ValueError("no tied frame to turn")
    blocks = np.asarray(blocks, dtype=np.int64)
    width = group.segments[0].width
    if blocks.shape != (width,):
        raise ValueError(f"{width} coordinates are needed")
    layer_norm = last.norm.kind is NormKind.LAYER
    bases = []
    for block in np.unique(blocks):
        members = np.flatnonzero(blocks == block)
        if len(members) < 2:
            continue
        basis = np.zeros((width, len(members)))
        basis[members, np.arange(len(members))] = 1.0
        bases.append(basis @ ones_complement(len(members)) if layer_norm else basis)
    if not bases:
        raise ValueError("no two gains are equal")
    slots: dict[View, Slot] = {}
    for segment in group.segments:
        for writer in segment.writers:
            slots.setdefault(writer.view, Slot(writer.view, writer.axis))
    for view in wiring.output_only:
        slots.setdefault(view, Slot(view, len(view.shape) - 1))
    norms = [
        NormReaders(
            None if point is last else point.norm.gain,
            point.norm.bias,
            tuple(Slot(r.weight, len(r.weight.shape) - 1) for r in point.readers if not r.tied),
        )
        for point in _points(wiring, group)
    ]
    gain = last.norm.gain

    def premise(parameters: Parameters) -> float:
        values = gain.read(parameters)
        return max(_spread(values[np.flatnonzero(blocks == block)]) for block in np.unique(blocks))

    symmetry = ResidualRotation(EQUAL_GAINS, bases, list(slots.values()), norms)
    return Exceptional(symmetry, premise, (gain.tensor,))


def neuron_mixing(mlp: Mlp, neurons: NDArray[np.int64]) -> Exceptional:
    """GL(m) on the up rows of m neurons with equal gate rows, against their down columns."""
    if mlp.gate is None:
        raise ValueError("the neurons have no gates")
    index = _distinct(neurons, mlp.neurons)
    slots = [PlacedSlot(mlp.up, (0,)), PlacedSlot(mlp.down, (1,), dual=True)]
    if mlp.up_bias is not None:
        slots.append(PlacedSlot(mlp.up_bias, (0,)))
    gates = [view for view in (mlp.gate, mlp.gate_bias) if view is not None]
    name = f"{mlp.label}: {NEURON_MIXING}"
    return Exceptional(SubsetLinear(name, index, slots), *_rows_equal(gates, index))


def neuron_shift(mlp: Mlp, neurons: NDArray[np.int64]) -> Exceptional:
    """Shifts of the down columns of m equal neurons that sum to zero: shape ``(m - 1, d)``."""
    index = _distinct(neurons, mlp.neurons)
    down = mlp.down

    def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
        whole = np.zeros(down.shape, dtype=shift.dtype)
        whole[:, index[1:]] = shift.T
        whole[:, index[0]] = -shift.sum(axis=0)
        return [(down, whole)]

    rows = [v for v in (mlp.gate, mlp.gate_bias, mlp.up, mlp.up_bias) if v is not None]
    shape = (len(index) - 1, down.shape[0])
    symmetry = Translation(f"{mlp.label}: {NEURON_SHIFT}", shape, [down], increments)
    return Exceptional(symmetry, *_rows_equal(rows, index))


def head_shift(attention: Attention, group: int, heads: NDArray[np.int64]) -> Exceptional:
    """Shifts of the outputs of m heads of one group with equal queries: ``(m - 1, s, d)``."""
    a = attention
    index = _distinct(heads, a.heads_per_group)
    if not 0 <= group < a.groups or a.position_table is not None:
        raise ValueError("no such group, or heads that differ by their position tables")
    output = a.output

    def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
        whole = np.zeros(output.shape, dtype=shift.dtype)
        whole[group, index[1:]] = shift
        whole[group, index[0]] = -shift.sum(axis=0)
        return [(output, whole)]

    queries = [view.index(0, group) for view in (a.query, a.query_bias) if view is not None]
    shape = (len(index) - 1, a.value_width, output.shape[-1])
    symmetry = Translation(f"{a.label}: {HEAD_SHIFT}", shape, [output], increments)
    return Exceptional(symmetry, *_rows_equal(queries, index))


def group_mixing(attention: Attention, groups: NDArray[np.int64]) -> Exceptional:
    """GL(k s) on the stacked values of k groups whose queries and keys agree head by head."""
    a = attention
    index = _distinct(groups, a.groups)
    if a.position_table is not None:
        raise ValueError("heads that differ by their position tables")
    width = a.value_width
    positions = (index[:, None] * width + np.arange(width)).reshape(-1)
    slots = [PlacedSlot(a.value, (0, 1)), PlacedSlot(a.output, (0, 2), dual=True)]
    if a.value_bias is not None:
        slots.append(PlacedSlot(a.value_bias, (0, 1)))
    rows = [v for v in (a.query, a.key, a.query_bias, a.key_bias) if v is not None]
    name = f"{a.label}: {GROUP_MIXING}"
    return Exceptional(SubsetLinear(name, positions, slots), *_rows_equal(rows, index))


def dead_columns(point: Point, features: NDArray[np.int64]) -> Exceptional:
    """Shifts of the readers' columns of features whose gain and bias are zero.

    An element has shape ``(outputs of all readers, k)``.
    """
    index = _distinct(features, point.width, least=1)
    readers = [reader.weight for reader in point.readers]
    counts = [reader.outputs for reader in point.readers]

    def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
        moved, start = [], 0
        for view, count in zip(readers, counts, strict=True):
            whole = np.zeros((count, point.width), dtype=shift.dtype)
            whole[:, index] = shift[start : start + count]
            moved.append((view, whole.reshape(view.shape)))
            start += count
        return moved

    views = [view for view in (point.norm.gain, point.norm.bias) if view is not None]

    def premise(parameters: Parameters) -> float:
        found = [np.abs(view.read(parameters)) for view in views]
        return max(float(v[index].max()) / max(float(v.max()), 1e-300) for v in found)

    shape = (sum(counts), len(index))
    name = f"{point.norm.label}: {DEAD_COLUMNS}"
    return Exceptional(Translation(name, shape, readers, increments), premise, touched(*views))


def unseen_gain(point: Point, features: NDArray[np.int64]) -> Exceptional:
    """Shifts of the gains of features whose column is zero in every reader: shape ``(k,)``."""
    index = _distinct(features, point.width, least=1)
    gain = point.norm.gain
    if gain is None or not point.only_linear:
        raise ValueError("no gain that only linear maps read")

    def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
        whole = np.zeros(gain.shape, dtype=shift.dtype)
        whole[index] = shift
        return [(gain, whole)]

    def premise(parameters: Parameters) -> float:
        found = [np.abs(reader.weight.read(parameters)) for reader in point.readers]
        return max(float(v[..., index].max()) / max(float(v.max()), 1e-300) for v in found)

    symmetry = Translation(f"{point.norm.label}: {UNSEEN_GAIN}", (len(index),), [gain], increments)
    return Exceptional(symmetry, premise, touched(*(reader.weight for reader in point.readers)))


def _distinct(index: Any, size: int, least: int = 2) -> NDArray[np.int64]:
    index = np.asarray(index, dtype=np.int64)
    inside = index.ndim == 1 and len(index) >= least and bool(((index >= 0) & (index < size)).all())
    if not inside or len(np.unique(index)) != len(index):
        raise ValueError(f"{least} or more different indices below {size} are needed")
    return index


def _rows_equal(
    views: Sequence[View], index: NDArray[np.int64]
) -> tuple[Callable[[Parameters], float], tuple[str, ...]]:
    """Largest difference of the chosen rows, relative to the largest entry of all rows."""

    def premise(parameters: Parameters) -> float:
        worst = 0.0
        for view in views:
            rows = np.asarray(view.read(parameters))[index]
            worst = max(worst, _spread(rows, float(np.abs(view.read(parameters)).max())))
        return worst

    return premise, touched(*views)


def _spread(rows: NDArray[Any], scale: float | None = None) -> float:
    largest = float(np.abs(rows).max()) if scale is None else scale
    return float(np.abs(rows - rows[0]).max()) / largest if largest else 0.0


def _mlp(wiring: Wiring, layer: int | None, where: str) -> Mlp:
    return next(m for m in wiring.mlps if (m.layer, m.label) == (layer, where))


def _attention(wiring: Wiring, layer: int | None, where: str) -> Attention:
    return next(a for a in wiring.attentions if (a.layer, a.label) == (layer, where))


def _point(wiring: Wiring, layer: int | None, where: str) -> Point:
    return next(p for p in wiring.points if (p.layer, p.norm.label) == (layer, where))
