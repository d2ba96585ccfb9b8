"""A plain numpy evaluation of an architecture, reading weights only through its views.

What an architecture leaves open because no symmetry depends on it is stated here by family:
masks, fixed factors, activations by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf, expit

from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Branch,
    Dense,
    Mlp,
    Norm,
    NormKind,
    Residual,
    Rotary,
    Stream,
)
from fiberscope.checkpoints.architecture.relative_positions import relative_buckets

CAUSAL = {"GPT-2", "OPT", "GPT-NeoX", "Phi", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma"}

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]


class Evaluation:
    """One architecture at one set of weights, on one input."""

    def __init__(self, laid_out: Architecture, weights: dict[str, np.ndarray], config: Any) -> None:
        self.architecture, self.weights, self.config = laid_out, weights, config
        self.ends: dict[str, np.ndarray] = {}

    def read(self, view: Any) -> Any:
        return 0.0 if view is None else view.read(self.weights)

    def hidden(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        x = np.zeros(0)
        for stream in self.architecture.streams:
            x = self.run(stream, inputs)
            self.ends[stream.label] = x
        return x

    def logits(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        head = self.architecture.head
        assert head is not None
        x = self.hidden(inputs)
        if head.label == "classifier":
            x = x[0]
        if self.architecture.family == "T5" and self.config.get("tie_word_embeddings") is not False:
            x = x / np.sqrt(x.shape[-1])
        if head.dense is not None:
            x = self.dense(head.dense, x)
        x = self.norm(head.norm, x)
        return x @ self.read(head.output).T + self.read(head.output_bias)

    def dense(self, dense: Dense, x: np.ndarray) -> np.ndarray:
        y = x @ self.read(dense.weight).T + self.read(dense.bias)
        return ACTIVATIONS[dense.activation_name](y)

    def run(self, stream: Stream, inputs: dict[str, np.ndarray]) -> np.ndarray:
        x = self.embed(stream, inputs)
        self.bias: Any = None
        for step in stream.steps:
            if isinstance(step, Residual):
                x = x + sum(self.branch(branch, x, stream) for branch in step.branches)
            else:
                x = self.norm(step.norm, x)
        return self.norm(stream.final, x)

    def embed(self, stream: Stream, inputs: dict[str, np.ndarray]) -> np.ndarray:
        tables: dict[str, list[np.ndarray]] = {}
        for table in stream.embedding.tables:
            tables.setdefault(table.label, []).append(self.read(table.rows))
        if self.architecture.tokens is None:
            (projection,), (bias,) = tables["patch projection"], tables["patch bias"]
            patches = inputs["patches"] @ projection + bias
            return (
                np.concatenate([*tables["class token"], patches]) + tables["position embedding"][0]
            )
        ids = inputs["decoder_input_ids" if stream.label == "decoder" else "input_ids"]
        if len(tables["token embedding"]) == 2:  # the padding token's row lies between
            before, after = tables["token embedding"]
            rows = np.concatenate([before, np.full((1, stream.width), np.nan), after])
        else:
            (rows,) = tables["token embedding"]
            skipped = self.architecture.tokens - len(rows)
            rows = np.concatenate([np.full((skipped, stream.width), np.nan), rows])
        x = rows[ids]
        if self.architecture.family == "Gemma":
            x = x * np.sqrt(stream.width)
        if "position embedding" in tables:
            x = x + tables["position embedding"][0][: len(ids)]
        if "token type embedding" in tables:
            x = x + tables["token type embedding"][0][inputs["token_type_ids"]]
        return x

    def norm(self, norm: Norm | None, x: np.ndarray) -> np.ndarray:
        if norm is None:
            return x
        if norm.kind is NormKind.LAYER:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon)
        gain = 1.0 if norm.gain is None else self.read(norm.gain)
        return x * gain + self.read(norm.bias)

    def branch(self, branch: Branch, x: np.ndarray, stream: Stream) -> np.ndarray:
        y = self.norm(branch.norm, x)
        total = np.zeros_like(x)
        for sublayer in branch.sublayers:
            if isinstance(sublayer, Mlp):
                total = total + self.mlp(sublayer, y)
            else:
                total = total + self.attention(sublayer, y, stream)
        return total

    def mlp(self, mlp: Mlp, x: np.ndarray) -> np.ndarray:
        act = ACTIVATIONS[mlp.activation_name]
        up = x @ self.read(mlp.up).T + self.read(mlp.up_bias)
        if mlp.gate is None:
            inner = act(up)
        else:
            inner = act(x @ self.read(mlp.gate).T + self.read(mlp.gate_bias)) * up
        return inner @ self.read(mlp.down).T + self.read(mlp.down_bias)

    def attention(self, layer: Attention, x: np.ndarray, stream: Stream) -> np.ndarray:
        memory = x if layer.memory is None else self.ends[layer.memory]
        query = np.einsum("gmrd,pd->pgmr", self.read(layer.query), x) + self.read(layer.query_bias)
        key = np.einsum("grd,pd->pgr", self.read(layer.key), memory) + self.read(layer.key_bias)
        value = np.einsum("gsd,pd->pgs", self.read(layer.value), memory)
        value = value + self.read(layer.value_bias)
        query, key = self.norm(layer.query_norm, query), self.norm(layer.key_norm, key)
        if layer.rotary is not None:
            query, key = turn(query, layer.rotary), turn(key, layer.rotary)
        scores = np.einsum("pgmr,qgr->gmpq", query, key)
        family = self.architecture.family
        if family != "T5":
            scores = scores / np.sqrt(layer.key_width)
        elif layer.memory is None:
            scores = scores + self.position_bias(layer, len(x), stream)
        if family in CAUSAL or (stream.label == "decoder" and layer.memory is None):
            later = np.arange(len(x))[None, :] - np.arange(len(x))[:, None]
            window = self.config.get("sliding_window") or len(x)
            scores = np.where((later <= 0) & (later > -window), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = scores / scores.sum(-1, keepdims=True)
        mixed = np.einsum("gmpq,qgs->pgms", probabilities, value)
        written = np.einsum("pgms,gmsd->pd", mixed, self.read(layer.output))
        return written + self.read(layer.output_bias)

    def position_bias(self, layer: Attention, length: int, stream: Stream) -> np.ndarray:
        if layer.position_table is not None:
            offsets = np.arange(length)[None, :] - np.arange(length)[:, None]
            buckets = relative_buckets(
                offsets,
                bidirectional=stream.label == "encoder",
                buckets=self.config["relative_attention_num_buckets"],
                furthest=self.config["relative_attention_max_distance"],
            )
            self.bias = np.moveaxis(self.read(layer.position_table)[buckets], (0, 1), (2, 3))
        return self.bias


def turn(x: np.ndarray, rotary: Rotary) -> np.ndarray:
    """Rotate the planes of ``x`` (first axis: position)."""
    turned = x.copy()
    positions = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 2))
    for (first, second), frequency in zip(rotary.planes, rotary.frequencies, strict=True):
        cosine, sine = np.cos(positions * frequency), np.sin(positions * frequency)
        turned[..., first] = x[..., first] * cosine - x[..., second] * sine
        turned[..., second] = x[..., second] * cosine + x[..., first] * sine
    return turned
