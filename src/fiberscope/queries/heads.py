"""Heads of one attention layer as a set: their function and their canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import BALL_BITS


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """``f(X) = sum_h sum_i softmax_i(x_1^T W_h x_N, ..., x_N^T W_h x_N) x_i^T v_h``.

    Attributes
    ----------
    W
        Score matrices, shape ``(H, d, d)``, key side on the left; float64, or objects
        ``flint.arb``.
    v
        Value vectors, shape ``(H, d)``, of the same kind.
    """

    W: NDArray[Any]
    v: NDArray[Any]

    def __post_init__(self) -> None:
        W, v = np.asarray(self.W), np.asarray(self.v)
        if W.ndim != 3 or v.ndim != 2 or W.shape != (v.shape[0], v.shape[1], v.shape[1]):
            raise ValueError(f"W {W.shape} and v {v.shape} are no (H, d, d) and (H, d)")
        object.__setattr__(self, "W", W)
        object.__setattr__(self, "v", v)

    @property
    def count(self) -> int:
        """Number of heads, H."""
        return self.v.shape[0]

    @property
    def width(self) -> int:
        """Entries of a token, d."""
        return self.v.shape[1]

    @property
    def in_balls(self) -> bool:
        """Whether the entries are balls."""
        return self.W.dtype == object

    def middle(self) -> AttentionHeads:
        """The heads in float64: midpoints of balls."""
        if not self.in_balls:
            return self
        return AttentionHeads(_middle(self.W), _middle(self.v))

    def canonical(self, tolerance: float = 0.0) -> AttentionHeads:
        """Merge heads with equal ``W`` (their ``v`` add up), drop those whose ``v`` vanishes.

        The function determines exactly this set (``sum_h v_h delta_{W_h}``, seen by sequences of
        length 3). Heads come by decreasing 2-norm of ``v``, equal norms by the entries of ``W``
        in reading order.

        Parameters
        ----------
        tolerance
            ``W`` counts as equal within this times the largest Frobenius norm of all heads, ``v``
            as zero within this times the largest 2-norm. Balls count as equal, or zero, if they
            are not proved to differ by more.
        """
        left = [self.merge_class(index, tolerance) for index in range(self.count)]
        W, v = [], []
        for first in sorted(set(left)):
            members = [index for index in range(self.count) if left[index] == first]
            total = self.v[members[0]]
            for index in members[1:]:
                total = total + self.v[index]
            W.append(self.W[first])
            v.append(total)
        largest = _norms(self.v).max(initial=0.0)
        kept = [i for i in range(len(v)) if not _small(v[i], tolerance * largest)]
        d = self.width
        merged = AttentionHeads(
            np.array([W[i] for i in kept], dtype=self.W.dtype).reshape(-1, d, d),
            np.array([v[i] for i in kept], dtype=self.v.dtype).reshape(-1, d),
        )
        middle = merged.middle()
        norms = _norms(middle.v)
        order = sorted(
            range(merged.count), key=lambda i: (-norms[i], *middle.W[i].reshape(-1).tolist())
        )
        return AttentionHeads(merged.W[order], merged.v[order])

    def merge_class(self, index: int, tolerance: float) -> int:
        """The first head whose ``W`` equals that of head ``index`` (see `canonical`)."""
        allowed = tolerance * _norms(self.W.reshape(self.count, -1)).max(initial=0.0)
        for other in range(index):
            if _small((self.W[index] - self.W[other]).reshape(-1), allowed):
                return other
        return index

    def evaluate(self, sequence: NDArray[Any], bits: int = BALL_BITS) -> Any:
        """``f`` at one sequence ``(N, d)``: a float, or a ball at ``bits`` for heads in balls."""
        return self.evaluate_many([sequence], bits)[0]

    def evaluate_many(
        self, sequences: Sequence[NDArray[Any]] | NDArray[Any], bits: int = BALL_BITS
    ) -> NDArray[Any]:
        """``f`` at sequences ``(N, d)``, or at an array ``(n, N, d)``: shape ``(n,)``.

        The softmax subtracts its largest score; heads in balls give enclosures.
        """
        if self.in_balls:
            result = np.empty(len(sequences), dtype=object)
            result[:] = [self._in_balls(each, bits) for each in sequences]
            return result
        return over_lengths(self._batch, sequences)

    def _batch(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(len(tokens))
        for W, v in zip(self.W, self.v, strict=True):
            scores = (tokens @ (tokens[:, -1] @ W.T)[:, :, None])[:, :, 0]
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            values = tokens @ v
            total += (weights * values).sum(axis=1) / weights.sum(axis=1)
        return total

    def _in_balls(self, tokens: NDArray[Any], bits: int) -> Any:
        from fiberscope.numbers.balls import Balls

        system = Balls(bits)
        X = system.array(tokens)
        with system.precision():
            total = system.number(0)
            for W, v in zip(self.W, self.v, strict=True):
                # Relative to the last token's own score: no overflow and one exponential less.
                scores = (X - X[-1]) @ (W @ X[-1])
                weights = system.exp(scores)
                total = total + (weights * (X @ v)).sum() / weights.sum()
            return +total

    def size(self, sequences: Sequence[NDArray[Any]] | NDArray[Any]) -> NDArray[np.float64]:
        """What rounding errors of ``f`` scale with, at each sequence: shape ``(n,)``.

        ``sum_h max_i |x_i|_2 |v_h|_2 (3 + max_i |x_i^T W_h x_N|)``: a relative error ``e`` of
        scores and values moves the answer by about ``e`` times this.
        """
        middle = self.middle()

        def batch(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
            reach = np.linalg.norm(tokens, axis=2).max(axis=1)
            total = np.zeros(len(tokens))
            for W, v in zip(middle.W, middle.v, strict=True):
                scores = (tokens @ (tokens[:, -1] @ W.T)[:, :, None])[:, :, 0]
                total += reach * np.linalg.norm(v) * (3 + np.abs(scores).max(axis=1))
            return total

        return over_lengths(batch, sequences)


def over_lengths(
    function: Any, sequences: Sequence[NDArray[Any]] | NDArray[Any]
) -> NDArray[np.float64]:
    """Apply ``(n, N, d) -> (n,)`` to sequences of mixed lengths, one length at a time."""
    if isinstance(sequences, np.ndarray) and sequences.dtype != object and sequences.ndim == 3:
        return np.asarray(function(np.asarray(sequences, dtype=np.float64)))
    result = np.empty(len(sequences))
    places: dict[int, list[int]] = {}
    for place, each in enumerate(sequences):
        places.setdefault(len(each), []).append(place)
    for chosen in places.values():
        stacked = np.stack([np.asarray(sequences[i], dtype=np.float64) for i in chosen])
        result[chosen] = function(stacked)
    return result


def _middle(values: NDArray[Any]) -> NDArray[np.float64]:
    flat = [float(value.mid()) for value in values.reshape(-1)]
    return np.array(flat, dtype=np.float64).reshape(values.shape)


def _norms(rows: NDArray[Any]) -> NDArray[np.float64]:
    plain = _middle(rows) if rows.dtype == object else rows
    return np.asarray(np.linalg.norm(plain, axis=1))


def _small(values: NDArray[Any], allowed: float) -> bool:
    """Whether the 2-norm is at most ``allowed`` (balls: every entry may be)."""
    if values.dtype == object:
        return all(float(abs(value).lower()) <= allowed for value in values)
    return bool(np.linalg.norm(values) <= allowed)
