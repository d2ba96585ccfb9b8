"""What the neutral form of a checkpoint consists of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.equality.noisy import Noisy
from fiberscope.checkpoints.equality.rows import Rows, pieces


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
    up: Noisy
    down: Noisy
    up_constant: Noisy | None = None
    gate: Noisy | None = None
    gate_constant: Noisy | None = None


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
