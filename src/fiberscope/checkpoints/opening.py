"""Opening a checkpoint: its architecture, and where each tensor of it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.checkpoints.architecture.matching import Matching, match
from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.formats import Checkpoint, open_checkpoint
from fiberscope.checkpoints.formats.source import WeightSource
from fiberscope.errors import InputError


@dataclass(frozen=True)
class OpenModel:
    """An opened checkpoint: what it is, what is observed of it, and where its tensors are.

    ``source`` and ``matching`` are None when only a configuration was given.
    """

    checkpoint: Checkpoint
    architecture: Architecture
    observable: Observable
    matching: Matching | None
    notes: tuple[str, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as stored."""
        return self.checkpoint.config

    @property
    def source(self) -> WeightSource | None:
        """The stored tensors."""
        return self.checkpoint.weights


def open_model(
    location: str | Path,
    observable: Observable | str | None = None,
    assumed_harmless: Iterable[str] = (),
    *,
    prefer_head: bool = False,
) -> OpenModel:
    """Open a directory, config.json, safetensors or GGUF file, or a hub id.

    Parameters
    ----------
    observable
        What is observed; by default that of the class.
    prefer_head
        Observe logits by default wherever there is a head: for everything that writes weights or
        calls two checkpoints the same, a head is not to be lost.

    Raises
    ------
    InputError
        For anything wrong with the files, the configuration or the observable.
    """
    chosen = observable_named(observable)
    checkpoint = open_checkpoint(location)
    where = _where(checkpoint)
    assumed = tuple(assumed_harmless)
    laid_out = architecture(checkpoint.config, where, assumed)
    notes = list(checkpoint.notes)
    source, matching = checkpoint.weights, None
    if source is not None:
        matching = match(laid_out, source.tensors, str(source.path), source.aliases)
        notes += matching.notes
        laid_out = matching.architecture
        if _copies_differ(source, matching):
            laid_out = architecture(checkpoint.config, where, assumed, tied=False)
            matching = match(laid_out, source.tensors, str(source.path), source.aliases)
            laid_out = matching.architecture
            notes.append("the stored unembedding differs from the embedding: they are not tied")
    return OpenModel(
        checkpoint,
        laid_out,
        chosen or _default(laid_out, prefer_head),
        matching,
        tuple(dict.fromkeys(notes)),
    )


def _default(laid_out: Architecture, prefer_head: bool) -> Observable:
    if prefer_head and laid_out.head is not None:
        return Observable.LOGITS
    return laid_out.default_observable


def observable_named(name: Observable | str | None) -> Observable | None:
    """The observable of a name; None stays None.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name is None:
        return None
    try:
        return Observable(name)
    except ValueError:
        names = ", ".join(item.value for item in Observable)
        raise InputError(f"{name!r} is no observable; use one of {names}") from None


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
