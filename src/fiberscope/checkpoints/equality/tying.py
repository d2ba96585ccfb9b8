"""Bringing two models to one form: a tied table against the same table stored twice."""

from __future__ import annotations

from dataclasses import replace

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger.wiring import wire


def brought_together(
    first: StoredModel, second: StoredModel
) -> tuple[StoredModel, StoredModel, tuple[str, ...]]:
    """Read a tied model as untied when the other one is: its table then counts twice."""
    notes = first.notes + second.notes
    if first.architecture.tied == second.architecture.tied:
        return first, second, notes
    note = "one of the two ties its tables; its table is compared twice, as the other stores it"
    if first.architecture.tied:
        return untied(first), second, (*notes, note)
    return first, untied(second), (*notes, note)


def untied(model: StoredModel) -> StoredModel:
    """The same model with its tied table named twice."""
    if not model.config:
        return model
    laid_out = architecture(dict(model.config), tied=False)
    head, tied = laid_out.head, model.architecture.head
    if head is None or tied is None:
        return model
    copy, original = head.output.tensor, tied.output.tensor
    load = model.load
    return replace(
        model,
        architecture=laid_out,
        wiring=wire(laid_out, model.wiring.observable),
        load=lambda name: load(original if name == copy else name),
    )
