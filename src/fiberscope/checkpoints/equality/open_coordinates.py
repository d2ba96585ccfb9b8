"""Coordinates of the stream that the tables do not tell apart: a renaming is not determined there.

A frame that renames coordinates is read off the columns of the tables. A column that is zero has no
sign, and two that are equal up to sign can be exchanged: another renaming fits the tables as well,
and a difference elsewhere may be its fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.noisy import FAINT, Array

ROWS = 4096
"""Rows that are looked at first; only coordinates in doubt have all of theirs read."""
ARITHMETIC = 1e-13
"""Share of two squared norms below which their difference is rounding of float64."""


def open_coordinates(model: FoldedModel) -> int:
    """How many coordinates another one, or their own opposite, could replace in every table."""
    vectors = _stack(model)
    if not vectors:
        return 0
    width = vectors[0].shape[1]
    total = sum(v.shape[0] for v in vectors)
    step = max(1, total // ROWS)
    doubtful = np.arange(width)
    for stride in dict.fromkeys((step, 1)):
        gram, spread = _moments(vectors, stride, doubtful)
        doubtful = doubtful[_alike(gram, spread)]
        if not doubtful.size:
            return 0
    return len(doubtful)


def open_directions(model: FoldedModel, blocks: Sequence[NDArray[np.int64]]) -> int:
    """How many directions inside blocks of coordinates the tables say nothing about."""
    vectors = _stack(model)
    if not vectors:
        return sum(map(len, blocks))
    total = sum(v.shape[0] for v in vectors)
    found = 0
    for stride in dict.fromkeys((max(1, total // ROWS), 1)):
        gram, spread = _moments(vectors, stride, np.arange(vectors[0].shape[1]))
        found = 0
        for block in blocks:
            values = np.linalg.eigvalsh(gram[np.ix_(block, block)])
            noise = FAINT**2 * float(spread[block].mean())
            found += int((values <= max(noise, ARITHMETIC * float(values[-1]))).sum())
        if not found:
            return 0
    return found


def _stack(model: FoldedModel) -> list[Vectors]:
    """Tables, and what else lies along the stream as vectors."""
    found = list(model.tables)
    rows = model.unembedding[0]
    head = model.wiring.head
    if rows is not None and not (head is not None and head.dense is not None):
        found.append(rows)
    return found


def _moments(
    vectors: list[Vectors], stride: int, columns: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Products of the columns, and the summed rounding variance of each."""
    gram = np.zeros((len(columns), len(columns)))
    spread = np.zeros(len(columns))
    for one in vectors:
        for part in one.parts():
            value = part.value[::stride][:, columns]
            gram += value.T @ value
            spread += part.variance[::stride][:, columns].sum(axis=0)
    return gram, spread


def _alike(gram: Array, spread: Array) -> NDArray[np.bool_]:
    """Which columns are zero, or equal another one up to sign, as far as rounding tells."""
    size = np.diag(gram)
    both = size[:, None] + size
    apart = both - 2 * np.abs(gram)
    allowed = np.maximum(FAINT**2 * (spread[:, None] + spread), ARITHMETIC * both)
    near = apart <= allowed
    np.fill_diagonal(near, size <= FAINT**2 * spread)
    return np.asarray(near.any(axis=1))
