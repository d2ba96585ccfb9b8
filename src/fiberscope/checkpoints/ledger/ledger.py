"""The ledger: every symmetry of an architecture, adding up to what cannot be determined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.ledger.conditions import Condition, conditions
from fiberscope.checkpoints.ledger.effective import effective_coordinates
from fiberscope.checkpoints.ledger.item import Item, Overlap
from fiberscope.checkpoints.ledger.rules.constants import bias_items, bias_overlaps, point_items
from fiberscope.checkpoints.ledger.rules.discrete import discrete_items
from fiberscope.checkpoints.ledger.rules.heads import attention_items
from fiberscope.checkpoints.ledger.rules.mlp import mlp_items
from fiberscope.checkpoints.ledger.rules.norms import gain_items
from fiberscope.checkpoints.ledger.rules.outputs import output_items, output_overlaps
from fiberscope.checkpoints.ledger.rules.stream import stream_items, stream_overlaps
from fiberscope.checkpoints.ledger.wiring import Wiring, wire
from fiberscope.symmetry import Kind, Symmetry


@dataclass(frozen=True)
class Mechanism:
    """All entries of one rule, over all layers."""

    name: str
    kind: Kind
    items: tuple[Item, ...]

    @property
    def dimension(self) -> int:
        """Sum over its entries."""
        return sum(item.dimension for item in self.items)

    @property
    def log10_order(self) -> float:
        """For discrete mechanisms, the logarithm of the order."""
        return sum(item.log10_order for item in self.items)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers in which it acts."""
        return tuple(sorted({item.layer for item in self.items if item.layer is not None}))

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Norm epsilons that break it, each once."""
        return tuple(sorted({e for item in self.items for e in item.epsilons}))


@dataclass(frozen=True)
class Ledger:
    """What acts on an architecture under one observable, and what remains determined.

    ``undetermined`` is the dimension of the union of the exact continuous symmetries at generic
    weights: the sum of the mechanisms less their overlaps. ``effective`` is the second route,
    which counts the identified side directly and is also right where a condition fails because
    heads are wider than what they read.
    """

    architecture: Architecture
    observable: Observable
    items: tuple[Item, ...]
    overlaps: tuple[Overlap, ...]
    conditions: tuple[Condition, ...]
    effective: int

    @property
    def parameters(self) -> int:
        """Stored parameters, tied ones once."""
        return self.architecture.parameters

    @property
    def undetermined(self) -> int:
        """Dimension of the union of the exact continuous symmetries."""
        exact = sum(item.dimension for item in self.items if item.kind is Kind.EXACT)
        return exact - sum(overlap.dimension for overlap in self.overlaps)

    @property
    def identified(self) -> int:
        """``parameters - undetermined``; an upper bound when a condition fails."""
        return self.parameters - self.undetermined

    @property
    def is_exact(self) -> bool:
        """Whether every condition holds, so that ``identified`` is exact."""
        return all(condition.holds for condition in self.conditions)

    def mechanisms(self, *kinds: Kind) -> tuple[Mechanism, ...]:
        """Entries gathered by mechanism, in the order of the rules."""
        gathered: dict[tuple[str, Kind], list[Item]] = {}
        for item in self.items:
            if not kinds or item.kind in kinds:
                gathered.setdefault((item.mechanism, item.kind), []).append(item)
        return tuple(
            Mechanism(name, kind, tuple(items)) for (name, kind), items in gathered.items()
        )

    def symmetries(self, *kinds: Kind) -> list[Symmetry]:
        """The acting groups themselves, one a layer and mechanism."""
        return [
            item.build()
            for item in self.items
            if item.build is not None and (not kinds or item.kind in kinds)
        ]


def ledger(architecture: Architecture, observable: Observable | None = None) -> Ledger:
    """Draw up the ledger of an architecture.

    Parameters
    ----------
    observable
        Default: logits for classes with a head, the last hidden state for the others.

    Raises
    ------
    InputError
        If the observable needs a head that the class does not have.
    """
    wiring = wire(architecture, observable or architecture.default_observable)
    continuous = [item for item in _continuous(wiring) if item.dimension > 0]
    overlaps = (*bias_overlaps(wiring), *stream_overlaps(wiring), *output_overlaps(wiring))
    return Ledger(
        architecture,
        wiring.observable,
        (*continuous, *discrete_items(wiring, continuous)),
        overlaps,
        conditions(wiring),
        effective_coordinates(wiring),
    )


def _continuous(wiring: Wiring) -> Iterable[Item]:
    yield from attention_items(wiring)
    yield from bias_items(wiring)
    yield from gain_items(wiring)
    yield from point_items(wiring)
    yield from mlp_items(wiring)
    yield from stream_items(wiring)
    yield from output_items(wiring)
