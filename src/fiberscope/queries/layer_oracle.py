"""One attention layer of factored heads as an oracle: queries, keys, values and a readout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads, over_lengths
from fiberscope.queries.oracle import BALL_BITS, Arithmetic

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """Weights of one layer: ``G`` key and value heads, each with ``m`` query heads.

    Attributes
    ----------
    query, key, value
        Shapes ``(G, m, r, d)``, ``(G, r, d)`` and ``(G, s, d)``.
    output
        Shape ``(G, m, s, e)``: what a head's ``s`` values add to the ``e`` outputs.
    score_scale
        Scores are this times products of queries and keys.
    query_bias, key_bias, value_bias, output_bias
        Shapes without the last axis of the weights, ``(e,)`` for the output; None without bias.
    window
        Tokens seen by the last one, its own included; None for all.
    """

    query: Floats
    key: Floats
    value: Floats
    output: Floats
    score_scale: float
    query_bias: Floats | None = None
    key_bias: Floats | None = None
    value_bias: Floats | None = None
    output_bias: Floats | None = None
    window: int | None = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats | None]) -> AttentionLayer:
        """From arrays by name; ``score_scale`` and ``window`` are arrays of one number."""
        rest = {k: v for k, v in arrays.items() if k not in ("score_scale", "window")}
        scale, window = arrays["score_scale"], arrays["window"]
        assert scale is not None
        fields: dict[str, Any] = dict(rest)
        return cls(
            score_scale=float(scale), window=None if window is None else int(window), **fields
        )

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[0] * self.query.shape[1]

    @property
    def rank(self) -> int:
        """Width of queries and keys: no score matrix has a larger rank."""
        return self.query.shape[2]

    @property
    def outputs(self) -> int:
        """Width of the layer's output."""
        return self.output.shape[3]


class LayerOracle:
    """A layer without positions, read out along one direction of its output.

    Answers ``readout . (sum_h sum_i softmax_i(c k_i . q_h) O_h v_i)`` for the last token of ``X``
    with keys ``k``, values ``v`` and queries ``q`` of the tokens, so that ``W_h = c K_g^T Q_h`` and
    ``v_h = V_g^T O_h readout``. Biases are added where there are any; no such function is of the
    form that can be recovered, which the class tests find.

    Parameters
    ----------
    layer
        The weights.
    readout
        Shape ``(e,)``.
    arithmetic
        float64 or float32.

    Raises
    ------
    InputError
        If the readout has another shape, or for other arithmetics.
    """

    def __init__(
        self,
        layer: AttentionLayer,
        readout: Floats,
        arithmetic: Arithmetic = Arithmetic.FLOAT64,
    ) -> None:
        if arithmetic not in (Arithmetic.FLOAT64, Arithmetic.FLOAT32):
            raise InputError(
                f"a layer of a checkpoint computes in float64 or float32, not in {arithmetic.value}"
            )
        if readout.shape != (layer.outputs,):
            raise InputError(
                f"the readout has shape {readout.shape}: the layer has {layer.outputs} outputs"
            )
        kind = np.float64 if arithmetic is Arithmetic.FLOAT64 else np.float32
        self.layer, self.width = layer, layer.key.shape[2]
        self.arithmetic: Arithmetic = arithmetic
        groups, m, r, d = layer.query.shape
        shares = layer.output @ readout  # (G, m, s)
        v = np.einsum("gms,gsd->gmd", shares, layer.value)
        constant = 0.0 if layer.output_bias is None else float(layer.output_bias @ readout)
        if layer.value_bias is not None:
            constant += float(np.einsum("gms,gs->", shares, layer.value_bias))
        self._constant = kind(constant)
        self._query = (layer.score_scale * layer.query).reshape(-1, d).T.astype(kind)
        self._query_bias = _bias(layer.query_bias, groups * m * r, kind) * kind(layer.score_scale)
        self._key = layer.key.reshape(-1, d).T.astype(kind)
        self._key_bias = _bias(layer.key_bias, groups * r, kind)
        self._v = v.reshape(-1, d).astype(kind)
        content = [self._query, self._query_bias, self._key, self._key_bias, self._v]
        digest = sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in content))
        digest.update(str((constant, layer.window)).encode())
        self.identity = f"attention layer {digest.hexdigest()[:16]} in {arithmetic.value}"

    def answer(
        self, sequences: Sequence[NDArray[Any]] | NDArray[Any], bits: int = BALL_BITS
    ) -> Floats:
        """Answers, shape ``(n,)``."""
        with np.errstate(over="ignore", invalid="ignore"):
            return over_lengths(self._batch, sequences)

    def _batch(self, tokens: Floats) -> Floats:
        """Answers to an array ``(n, N, d)``."""
        groups, m, r, d = self.layer.query.shape
        X = np.ascontiguousarray(tokens[:, -(self.layer.window or 0) :]).astype(
            self._v.dtype, copy=False
        )
        n, length = X.shape[:2]
        flat = X.reshape(-1, d)
        keys = (flat @ self._key + self._key_bias).reshape(n, length, groups, r)
        asked = (X[:, -1] @ self._query + self._query_bias).reshape(n, groups, m, r)
        values = (flat @ self._v.T).reshape(n, length, groups, m)
        scores = np.matmul(keys.transpose(0, 2, 1, 3), asked.transpose(0, 1, 3, 2))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        total = np.einsum("nglm,nlgm->n", weights, values) + self._constant
        return np.asarray(total, dtype=np.float64)

    def true_heads(self) -> AttentionHeads:
        """``(W_h, v_h)`` of the weights, for comparison: shapes ``(H, d, d)`` and ``(H, d)``."""
        layer = self.layer
        W = layer.score_scale * np.einsum("gri,gmrj->gmij", layer.key, layer.query, optimize=True)
        return AttentionHeads(W.reshape(-1, self.width, self.width), self._v.astype(np.float64))


def readout_vector(text: str, outputs: int) -> Floats:
    """A readout, shape ``(outputs,)``: random from a seed, or read from an ``.npy`` file.

    Random entries are from N(0, 1 / outputs).

    Raises
    ------
    InputError
        If the text is neither, or the file does not hold one finite number for each output.
    """
    if text.isdecimal():
        return np.random.default_rng(int(text)).normal(size=outputs) / np.sqrt(outputs)
    path = Path(text)
    if path.suffix != ".npy":
        raise InputError(f"the readout {text!r} is neither a seed nor an .npy file: give one")
    try:
        stored = np.asarray(np.load(path, allow_pickle=False))
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path} cannot be read as an npy file of numbers: {reason}") from None
    if stored.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {stored.dtype} values: real numbers are needed, one for each of the "
            f"{outputs} outputs of the layer"
        )
    if stored.shape != (outputs,):
        raise InputError(
            f"{path} has shape {stored.shape}: {outputs} finite numbers are needed, one for each "
            "output of the layer"
        )
    vector = stored.astype(np.float64)
    if not np.isfinite(vector).all():
        raise InputError(f"{path} holds NaN or infinity: give finite numbers")
    return vector


def _bias(bias: Floats | None, size: int, kind: Any) -> NDArray[Any]:
    return np.zeros(size, dtype=kind) if bias is None else bias.reshape(-1).astype(kind)
