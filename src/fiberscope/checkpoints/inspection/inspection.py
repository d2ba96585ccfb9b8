"""`inspect`: what the function of a checkpoint determines about its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fiberscope.checkpoints.architecture.matching import Matching
from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.formats.source import WeightSource
from fiberscope.checkpoints.inspection.breaking import Breaking, breakings
from fiberscope.checkpoints.inspection.finding import Exceptional, HeadConditioning, Leftover
from fiberscope.checkpoints.inspection.heads import inspect_heads
from fiberscope.checkpoints.inspection.leftovers import attention_leftovers, mlp_leftovers
from fiberscope.checkpoints.inspection.neurons import inspect_neurons
from fiberscope.checkpoints.inspection.norms import equal_final_gains, gain_spread, zero_gains
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.inspection.slow_planes import SlowPlanes, slow_planes
from fiberscope.checkpoints.inspection.tables import inspect_tables
from fiberscope.checkpoints.ledger import Condition, Ledger, ledger
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.opening import open_model

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next)."""


@dataclass(frozen=True)
class WeightFindings:
    """What reading the weights adds to the ledger."""

    files: str
    dtypes: tuple[str, ...]
    exceptional: tuple[Exceptional, ...]
    conditioning: tuple[HeadConditioning, ...]
    leftovers: tuple[Leftover, ...]
    gains: tuple[Leftover, ...]
    breaking: tuple[Breaking, ...]
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Inspection:
    """The report of one checkpoint, or of an architecture when there are no weights."""

    path: Path
    config: Mapping[str, Any]
    ledger: Ledger
    weights: WeightFindings | None
    slow_planes: SlowPlanes | None
    notes: tuple[str, ...]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions of the architecture and of the weights."""
        return self.ledger.conditions + (self.weights.conditions if self.weights else ())

    @property
    def is_exact(self) -> bool:
        """Whether ``identified`` is exact rather than an upper bound."""
        return all(condition.holds for condition in self.conditions)


def inspect(
    location: str | Path,
    observable: Observable | str | None = None,
    *,
    assumed_harmless: Iterable[str] = (),
    progress: Progress | None = None,
) -> Inspection:
    """Inspect a checkpoint: a directory, config.json, safetensors or GGUF file, or a hub id.

    Parameters
    ----------
    observable
        ``"logits"``, ``"probabilities"`` or ``"hidden"``; by default logits for language models
        and the last hidden state for encoders.
    assumed_harmless
        Keys of config.json that the tables do not know and that change nothing.
    progress
        Called before every step.

    Raises
    ------
    InputError
        For anything wrong with the files or the configuration, in one sentence.
    """
    assumed = tuple(assumed_harmless)
    model = open_model(location, observable, assumed)
    laid_out, source, matching = model.architecture, model.source, model.matching
    found = ledger(laid_out, model.observable)
    weights = None
    if source is not None and matching is not None:
        weights = _read_weights(found, source, matching, progress)
    assumptions = tuple(Condition(f"the key {key!r} changes nothing", True) for key in assumed)
    if assumptions:
        found = Ledger(
            found.architecture,
            found.observable,
            found.items,
            found.overlaps,
            found.conditions + assumptions,
            found.effective,
        )
    wiring = wire(laid_out, found.observable)
    tokens = model.config.get("max_position_embeddings")
    longest = tokens if isinstance(tokens, int) else None
    return Inspection(
        model.checkpoint.path,
        model.config,
        found,
        weights,
        slow_planes(wiring, longest),
        model.notes,
    )


def _read_weights(
    found: Ledger, source: WeightSource, matching: Matching, progress: Progress | None
) -> WeightFindings:
    wiring = wire(matching.architecture, found.observable)
    reader = RoleReader(matching.architecture, source, matching.stored)
    total = len(wiring.attentions) + len(wiring.mlps) + 2
    step = 0

    def tick(what: str) -> None:
        nonlocal step
        if progress is not None:
            progress(step, total, what)
        step += 1

    tick("norms")
    exceptional, gains_nonzero = zero_gains(wiring, reader)
    exceptional += equal_final_gains(wiring, reader)
    gains = gain_spread(wiring, reader)
    conditioning, leftovers = [], []
    blocks: list[Any] = sorted(
        [*wiring.attentions, *wiring.mlps], key=lambda block: (block.layer, block.label)
    )
    for block in blocks:
        tick(block.label)
        if hasattr(block, "query"):
            heads, more = inspect_heads(wiring, block, reader)
            conditioning.append(heads)
            exceptional += more
            leftovers.append(attention_leftovers(block, reader))
        else:
            exceptional += inspect_neurons(wiring, block, reader)
            if (left := mlp_leftovers(block, reader)) is not None:
                leftovers.append(left)
    tick("tables")
    exceptional += inspect_tables(wiring, reader)
    breaking = breakings(wiring, reader)
    reader.check_rest()
    dtypes = sorted({source.tensors[name].dtype for name in matching.stored.values()})
    return WeightFindings(
        str(source.path),
        tuple(dtypes),
        tuple(exceptional),
        tuple(conditioning),
        tuple(leftovers),
        tuple(gains),
        tuple(breaking),
        (gains_nonzero,),
    )
