"""How strongly a norm's epsilon breaks the scalings that it breaks at all.

A norm divides by ``sqrt(m + eps)``, with ``m`` the mean square (LayerNorm: the variance) of what it
reads. Scaling its input by ``1 + t`` moves its output by the relative amount ``t eps / (m + eps)``,
so ``eps / (m + eps)`` is the size of the breaking. ``m`` is taken from the weights alone: of table
rows exactly, of a carried norm from its gain and bias, of normalised queries and keys for inputs
without preferred direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY_SCALE
from fiberscope.checkpoints.ledger.rules.stream import STREAM_SCALE
from fiberscope.checkpoints.ledger.wiring import Point, Role, Segment, Wiring
from fiberscope.parameters import View

SAMPLED_ROWS = 4096


@dataclass(frozen=True)
class Breaking:
    """Size of the breaking at one place: ``epsilon / (mean_square + epsilon)``."""

    mechanism: str
    where: str
    epsilon: float
    mean_square: float

    @property
    def size(self) -> float:
        """Relative change of the norm's output for a relative change of scale."""
        total = self.mean_square + self.epsilon
        return self.epsilon / total if total else 1.0


def breakings(wiring: Wiring, reader: RoleReader) -> list[Breaking]:
    """One entry for every sum and every head whose scale only an epsilon determines."""
    return [
        found for found in [*_sums(wiring, reader), *_heads(wiring, reader)] if found.epsilon > 0
    ]


def _sums(wiring: Wiring, reader: RoleReader) -> Iterator[Breaking]:
    for segment in wiring.segments:
        if not segment.readers:
            continue
        norm = segment.readers[0]
        carries = segment.carries
        mean_square = _embedded(segment, reader) if carries is None else _carried(carries, reader)
        if mean_square is not None:
            yield Breaking(STREAM_SCALE, norm.label, norm.epsilon, mean_square)


def _carried(point: Point, reader: RoleReader) -> float:
    gain = reader.gain(point.norm, point.width)
    bias = np.zeros(point.width) if point.norm.bias is None else reader.read(point.norm.bias)
    return float(np.mean(gain**2 + bias**2))


def _embedded(segment: Segment, reader: RoleReader) -> float | None:
    """Sum of the tables' mean squares; None where a table is not read row by row."""
    total = 0.0
    for table in segment.embedding.tables if segment.embedding else ():
        if len(table.rows.shape) != 2:
            return None
        rows = _sample(table.rows, reader)
        if segment.blind:
            rows = rows - rows.mean(axis=1, keepdims=True)
        total += float(np.mean(rows**2))
    return total


def _sample(view: View, reader: RoleReader) -> NDArray[np.float64]:
    """Evenly spaced rows in float64, at most :data:`SAMPLED_ROWS` of them."""
    stored = reader.source.read(reader.stored[view.tensor]).reshape(view.stored_shape)
    window = view.window(stored)
    step = -(-window.shape[0] // SAMPLED_ROWS)
    return window[::step].astype(np.float64) + view.offset


def _heads(wiring: Wiring, reader: RoleReader) -> Iterator[Breaking]:
    for attention in wiring.attentions:
        for role, weight, norm in (
            (Role.QUERY, attention.query, attention.query_norm),
            (Role.KEY, attention.key, attention.key_norm),
        ):
            if norm is None:
                continue
            point = wiring.point_of(attention, role)
            seen = reader.read(weight) * reader.gain(point.norm, point.width)
            # Unit inputs without preferred direction: each row's square is its squared length.
            squares = np.mean(np.sum(seen**2, axis=-1), axis=-1)
            yield Breaking(QUERY_KEY_SCALE, norm.label, norm.epsilon, float(np.min(squares)))
