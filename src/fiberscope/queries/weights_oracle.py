"""Known heads as an oracle, in the arithmetic of one's choice."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads, over_lengths
from fiberscope.queries.oracle import BALL_BITS, Arithmetic


class HeadsOracle:
    """An attention layer with known heads that answers queries.

    In float64 and float32 everything is computed in that type; in bfloat16 every product of
    matrices, exponential and quotient is computed in float32 and rounded, as accelerators do; in
    balls the answers enclose the exact values of the given weights.

    Parameters
    ----------
    heads
        The layer. Weights are rounded to the arithmetic (balls: taken exactly).
    arithmetic
        What to compute in.
    identity
        Default: a digest of the weights.
    """

    def __init__(
        self,
        heads: AttentionHeads,
        arithmetic: Arithmetic = Arithmetic.FLOAT64,
        identity: str | None = None,
    ) -> None:
        self.width, self.arithmetic = heads.width, arithmetic
        self._balls: AttentionHeads | None = None
        if arithmetic is Arithmetic.BALLS:
            from fiberscope.numbers.balls import Balls

            system = Balls(BALL_BITS)
            self._balls = (
                heads if heads.in_balls else AttentionHeads(*map(system.array, (heads.W, heads.v)))
            )
            self.heads = self._balls
        else:
            middle = heads.middle()
            self.heads = AttentionHeads(
                arithmetic.representable(middle.W), arithmetic.representable(middle.v)
            )
            kind = np.float64 if arithmetic is Arithmetic.FLOAT64 else np.float32
            self._W = [np.ascontiguousarray(W.T).astype(kind) for W in self.heads.W]
            self._v = self.heads.v.astype(kind)
        plain = heads.middle()
        digest = sha256(plain.W.tobytes() + plain.v.tobytes()).hexdigest()[:16]
        self.identity = identity or f"heads {digest} in {arithmetic.value}"

    def answer(
        self, sequences: Sequence[NDArray[Any]] | NDArray[Any], bits: int = BALL_BITS
    ) -> NDArray[Any]:
        """Answers, shape ``(n,)``."""
        if self._balls is not None:
            return self._balls.evaluate_many(sequences, bits)
        with np.errstate(over="ignore", invalid="ignore"):
            return over_lengths(self._batch, sequences)

    def _batch(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Answers to an array ``(n, N, d)``."""
        rounded = self._round if self.arithmetic is Arithmetic.BFLOAT16 else _same
        X = tokens.astype(self._v.dtype)
        total = np.zeros(len(X), dtype=X.dtype)
        values = rounded(X @ self._v.T)
        for h, W in enumerate(self._W):
            asked = rounded(X[:, -1] @ W)
            scores = rounded((X @ asked[:, :, None])[:, :, 0])
            weights = rounded(np.exp(scores - scores.max(axis=1, keepdims=True)))
            weights = rounded(weights / weights.sum(axis=1, keepdims=True))
            total = rounded(total + (weights * values[:, :, h]).sum(axis=1))
        return total.astype(np.float64)

    @staticmethod
    def _round(array: NDArray[Any]) -> NDArray[Any]:
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


def read_heads(path: Path) -> AttentionHeads:
    """Heads from an npz file with ``W`` of shape ``(H, d, d)`` and ``v`` of shape ``(H, d)``.

    Raises
    ------
    InputError
        If the file cannot be read or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            W, v = (np.asarray(stored[name]) for name in ("W", "v"))
    except KeyError:
        raise InputError(
            f"{path} lacks W or v: give an npz file with W of shape (H, d, d) and v of shape (H, d)"
        ) from None
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path} cannot be read as an npz file: {reason}") from None
    numeric = W.dtype.kind in "fiu" and v.dtype.kind in "fiu"
    if not numeric or W.ndim != 3 or v.shape != W.shape[:2] or W.shape[1] != W.shape[2]:
        raise InputError(
            f"{path} holds W {W.dtype} {W.shape} and v {v.dtype} {v.shape}: numbers of shapes "
            "(H, d, d) and (H, d) are needed"
        )
    W, v = W.astype(np.float64), v.astype(np.float64)
    if not (np.isfinite(W).all() and np.isfinite(v).all()):
        raise InputError(f"{path} holds NaN or infinity: give finite weights")
    return AttentionHeads(W, v)
