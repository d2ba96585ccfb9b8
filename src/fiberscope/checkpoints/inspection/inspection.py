"""`inspect`: what the function of a checkpoint determines about its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.checkpoints.architecture.matching import Matching, match
from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.formats import Checkpoint, open_checkpoint
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
from fiberscope.errors import InputError

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
    if isinstance(observable, str):
        try:
            observable = Observable(observable)
        except ValueError:
            names = ", ".join(item.value for item in Observable)
            raise InputError(f"{observable!r} is no observable; use one of {names}") from None
    checkpoint = open_checkpoint(location)
    where = _where(checkpoint)
    assumed = tuple(assumed_harmless)
    laid_out = architecture(checkpoint.config, where, assumed)
    notes = list(checkpoint.notes)
    source = checkpoint.weights
    matching: Matching | None = None
    if source is not None:
        matching = match(laid_out, source.tensors, str(source.path), source.aliases)
        notes += matching.notes
        laid_out = matching.architecture
        if _copies_differ(source, matching):
            laid_out = architecture(checkpoint.config, where, assumed, tied=False)
            matching = match(laid_out, source.tensors, str(source.path), source.aliases)
            laid_out = matching.architecture
            notes.append("the stored unembedding differs from the embedding: they are not tied")
    found = ledger(laid_out, observable)
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
    tokens = checkpoint.config.get("max_position_embeddings")
    longest = tokens if isinstance(tokens, int) else None
    return Inspection(
        checkpoint.path,
        checkpoint.config,
        found,
        weights,
        slow_planes(wiring, longest),
        tuple(dict.fromkeys(notes)),
    )


def _where(checkpoint: Checkpoint) -> str:
    path = checkpoint.path
    if path.suffix == ".safetensors":
        path = path.parent
    return str(path / "config.json") if path.is_dir() else str(path)


def _copies_differ(source: WeightSource, matching: Matching) -> bool:
    """Whether a tied tensor is stored twice with different values."""
    for copy, original in matching.copies:
        first, second = source.read(copy), source.read(original)
        if not np.array_equal(first, second.reshape(first.shape)):
            return True
    return False


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
