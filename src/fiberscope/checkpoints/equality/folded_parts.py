"""What the neutral form of a checkpoint consists of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.equality.noisy import Noisy
from fiberscope.checkpoints.equality.rows import Rows, pieces


def held(part: Noisy | Rows) -> Noisy:
    """All numbers in memory."""
    return part.whole() if isinstance(part, Rows) else part


def average_of(tables: list[Rows]) -> list[Noisy]:
    """Mean over the rows of tables, as a sum.

    In float64 a mean far larger than what the rows differ by would bring in its own rounding, as
    one error of all of them. There the first row goes before, and what is left is small.
    """
    count = sum(table.shape[0] for table in tables)
    first = Noisy.exact(np.zeros(tables[0].shape[1]))
    exact = any(table.held.dtype.itemsize > 4 for table in tables)
    if exact:
        first.value[:] = tables[0].part(np.s_[:1]).value[0]
    rest = Noisy.exact(np.zeros_like(first.value))
    for table in tables:
        if not exact:
            rest = rest + table.average().scaled(table.shape[0] / count)
            continue
        for part in table.parts():
            rest.value += (part.value - first.value).sum(axis=0) / count
            rest.variance += part.variance.sum(axis=0) / count**2
    return [first, rest] if exact else [rest]


@dataclass
class FoldedAttention:
    """Heads in neutral form.

    Attributes
    ----------
    query, query_constant
        Shapes ``(G, m, r, d)`` and ``(G, m, r)``.
    key, key_constant
        Shapes ``(G, r, d)`` and ``(G, r)``; constants of rows without position are dropped.
    value, output
        Shapes ``(G, s, d)`` and ``(G, m, s, d)``.
    query_gain, key_gain
        Gains of the norms of queries and keys, shape ``(r,)``.
    table
        Position table with its mean over buckets removed, shape ``(G, m, buckets)``.
    """

    attention: Attention
    query: Noisy
    key: Noisy
    value: Noisy
    output: Noisy
    query_constant: Noisy | None = None
    key_constant: Noisy | None = None
    query_gain: Noisy | None = None
    key_gain: Noisy | None = None
    table: Noisy | None = None


@dataclass
class FoldedMlp:
    """Neurons in neutral form: up and gate ``(f, d)``, constants ``(f,)``, down ``(f, d)``."""

    label: str
    layer: int | None
    mlp: Mlp | None
    up: Noisy | Rows
    down: Noisy | Rows
    up_constant: Noisy | None = None
    gate: Noisy | Rows | None = None
    gate_constant: Noisy | None = None

    @property
    def argument(self) -> tuple[Noisy | Rows, Noisy | None]:
        """What the activation sees: rows and constants."""
        if self.gate is None:
            return self.up, self.up_constant
        return self.gate, self.gate_constant

    def chosen(self, index: NDArray[np.int64]) -> FoldedMlp:
        """Some neurons, in the given order."""
        if len(index) == self.up.shape[0] and (index == np.arange(len(index))).all():
            return self
        return replace(
            self,
            up=self.up.chosen(index),
            down=self.down.chosen(index),
            up_constant=None if self.up_constant is None else self.up_constant.chosen(index),
            gate=None if self.gate is None else self.gate.chosen(index),
            gate_constant=None if self.gate_constant is None else self.gate_constant.chosen(index),
        )

    def part(self, index: slice) -> FoldedMlp:
        """Neighbouring neurons, their numbers in memory."""

        def cut(part: Noisy | None) -> Noisy | None:
            return None if part is None else part.part(index)

        return replace(
            self,
            up=self.up.part(index),
            down=self.down.part(index),
            up_constant=cut(self.up_constant),
            gate=None if self.gate is None else self.gate.part(index),
            gate_constant=cut(self.gate_constant),
        )

    def held(self) -> FoldedMlp:
        """The same neurons with all their numbers in memory."""
        gate = None if self.gate is None else held(self.gate)
        return replace(self, up=held(self.up), down=held(self.down), gate=gate)


@dataclass
class Vectors:
    """Vectors along the stream that only the frame moves: shape ``(count, d)``.

    ``kind`` says how signs act: ``"vector"``, ``"gain"`` (keeps its sign) or ``"signed gain"``
    (the gain of a norm in front of a tied table, which takes the stream's sign back). An
    ``untouched`` table holds the stored numbers themselves, so that renaming is exact.
    """

    label: str
    rows: Noisy | Rows
    kind: str = "vector"
    untouched: bool = False
    centred: bool = False

    @property
    def array(self) -> Noisy:
        """All of them at once."""
        return self.rows.whole() if isinstance(self.rows, Rows) else self.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape ``(count, d)``."""
        return self.rows.shape

    def parts(self) -> Iterator[Noisy]:
        """A few at a time."""
        for piece in pieces(self.shape):
            yield self.rows.part(piece)
