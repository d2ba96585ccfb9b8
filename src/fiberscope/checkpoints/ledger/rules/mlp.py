"""Scalings of MLP neurons."""

from __future__ import annotations

from collections.abc import Iterator

from fiberscope.checkpoints.architecture.program import Activation, Mlp
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.wiring import Wiring
from fiberscope.parameters import View
from fiberscope.symmetry import Kind, ScaledSlot, Scaling, Symmetry

GATED = "gated MLP scaling"
HOMOGENEOUS = "ReLU scaling"
HEAD_SCALE = "scale in front of the head's norm"


def mlp_items(wiring: Wiring) -> Iterator[Item]:
    """Up against down, and rows in front of a positively homogeneous activation."""
    for mlp in wiring.mlps:
        if mlp.gate is not None:
            yield _scaling(mlp, GATED, (mlp.up, mlp.up_bias), positive=False)
        if mlp.activation is Activation.HOMOGENEOUS:
            rows = (mlp.gate, mlp.gate_bias) if mlp.gate is not None else (mlp.up, mlp.up_bias)
            power = 2 if mlp.activation_name == "relu2" else 1
            yield _scaling(mlp, HOMOGENEOUS, rows, positive=True, power=power)
    head = wiring.head
    if (
        head is not None
        and head.dense is not None
        and head.norm is None
        and head.dense.activation is Activation.HOMOGENEOUS
    ):
        dense, output = head.dense, head.output
        size = dense.weight.shape[0]

        def build() -> Symmetry:
            slots = [ScaledSlot(dense.weight, 0), ScaledSlot(output, 1, -1)]
            if dense.bias is not None:
                slots.append(ScaledSlot(dense.bias, 0))
            return Scaling(f"{dense.label}: {HOMOGENEOUS}", size, slots, positive=True)

        yield Item(HOMOGENEOUS, None, size, build, dense.label)
    if (item := _normalised_scale(wiring)) is not None:
        yield item


def _normalised_scale(wiring: Wiring) -> Item | None:
    """A homogeneous layer in front of the head's norm: one common scale, up to epsilon."""
    head = wiring.head
    if head is None or head.dense is None or head.norm is None:
        return None
    if head.dense.activation is not Activation.HOMOGENEOUS:
        return None
    dense, epsilon = head.dense, head.norm.epsilon
    kind = Kind.APPROXIMATE if epsilon else Kind.EXACT

    def build() -> Symmetry:
        views = [view for view in (dense.weight, dense.bias) if view is not None]
        slots = [ScaledSlot(view, (), 1, (0,)) for view in views]
        broken = f"norm epsilon {epsilon:g}" if epsilon else ""
        return Scaling(HEAD_SCALE, 1, slots, positive=True, kind=kind, broken_by=broken)

    return Item(HEAD_SCALE, None, 1, build, dense.label, kind=kind, epsilons=(epsilon,))


def _scaling(
    mlp: Mlp,
    mechanism: str,
    rows: tuple[View | None, View | None],
    *,
    positive: bool,
    power: int = 1,
) -> Item:
    def build() -> Symmetry:
        slots = [ScaledSlot(view, 0) for view in rows if view is not None]
        slots.append(ScaledSlot(mlp.down, 1, -power))
        return Scaling(f"{mlp.label}: {mechanism}", mlp.neurons, slots, positive=positive)

    return Item(mechanism, mlp.layer, mlp.neurons, build, mlp.label)
