"""Inputs on which two checkpoints of one architecture are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Lookup
from fiberscope.errors import InputError


@dataclass(frozen=True, eq=False)
class Probe:
    """Inputs of an architecture, and the outputs looked at.

    Attributes
    ----------
    tokens
        Stream label -> token ids, int64 of shape (sequences, length); empty for vector inputs.
    types
        Token types, int64 of shape (sequences, length), for streams that have them; None means 0.
    vectors
        Vector inputs (flattened patches, row by row), float64 of shape (sequences, patches,
        input dimension); None for token inputs.
    rows
        Rows of the unembedding that are observed, int64 and ascending; None means all.
    """

    tokens: Mapping[str, NDArray[np.int64]]
    types: NDArray[np.int64] | None = None
    vectors: NDArray[np.float64] | None = None
    rows: NDArray[np.int64] | None = None


def probe_inputs(
    architecture: Architecture,
    seed: int,
    sequences: int,
    length: int,
    *,
    subset: NDArray[np.int64] | None = None,
    vocabulary_rows: int | None = None,
) -> Probe:
    """Draw random inputs: uniform tokens the model reads, uniform types, or normal patches.

    An encoder whose end a decoder reads gets sequences one token longer than the decoder's. Images
    have all their patches, whatever `length` is.

    Parameters
    ----------
    seed
        Seed of the draw; the same seed gives the same inputs.
    sequences, length
        Number of sequences, and positions in each.
    subset
        The only token ids that may occur.
    vocabulary_rows
        Observe this many random rows of the unembedding instead of all, where it has more.

    Raises
    ------
    InputError
        If a number is not positive, the sequences exceed the position table, or no token is left.
    """
    if sequences < 1 or length < 1 or (vocabulary_rows is not None and vocabulary_rows < 1):
        raise InputError(
            f"{sequences} sequences of {length} tokens, {vocabulary_rows} vocabulary rows: "
            "use positive numbers"
        )
    rng = np.random.default_rng(seed)
    rows = None
    head = architecture.head
    if head is not None and vocabulary_rows is not None and vocabulary_rows < head.output.shape[0]:
        rows = np.sort(rng.choice(head.output.shape[0], vocabulary_rows, replace=False))
    if architecture.tokens is None:
        patches = (architecture.longest_input or length + 1) - 1
        shape = (sequences, patches, architecture.input_dimension or 1)
        return Probe({}, vectors=rng.standard_normal(shape), rows=rows)
    if architecture.longest_input is not None and length > architecture.longest_input:
        raise InputError(
            f"{architecture.name} has positions for {architecture.longest_input} tokens, not for "
            f"{length}; use shorter sequences"
        )
    allowed = readable_tokens(architecture)
    if subset is not None:
        allowed = np.intersect1d(allowed, subset)
    if not allowed.size:
        raise InputError(
            f"none of the given tokens is read by {architecture.name} "
            f"(of {architecture.tokens}); give token ids that it reads"
        )
    tokens = {}
    for place, stream in enumerate(architecture.streams):
        longer = len(architecture.streams) - 1 - place
        tokens[stream.label] = rng.choice(allowed, (sequences, length + longer))
    types = None
    for table in architecture.streams[0].embedding.tables:
        if table.lookup is Lookup.TYPE:
            types = rng.integers(0, table.rows.shape[0], (sequences, length))
    return Probe(tokens, types, rows=rows)


def readable_tokens(architecture: Architecture) -> NDArray[np.int64]:
    """Token ids that every stream's token tables hold, ascending."""
    allowed = np.arange(architecture.tokens or 0)
    for stream in architecture.streams:
        held = [
            np.arange(table.first, table.first + table.rows.shape[0])
            for table in stream.embedding.tables
            if table.lookup is Lookup.TOKEN
        ]
        allowed = np.intersect1d(allowed, np.concatenate(held))
    return allowed
