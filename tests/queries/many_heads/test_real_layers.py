"""Layers of real trained weights behind a black box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.checkpoints.attention_layer import read_attention_layer
from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.cli.main import main
from fiberscope.queries import QuerySession, Request, recover_attention
from fiberscope.queries.class_tests import class_tests
from fiberscope.queries.layer_oracle import AttentionLayer, LayerOracle, readout_vector
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import NotOfThisFormError
from tests.checkpoints.real_weights import minilm_directory, smollm2_gguf


class MiniLM:
    """Self-attention of one layer with its biases, read out along one direction."""

    def __init__(self, layer: int) -> None:
        weights = open_checkpoint(minilm_directory()).weights
        assert weights is not None
        name = f"encoder.layer.{layer}.attention.self"
        self.parts = {
            part: (
                weights.read_float64(f"{name}.{part}.weight").reshape(12, 32, 384),
                weights.read_float64(f"{name}.{part}.bias").reshape(12, 32),
            )
            for part in ("query", "key", "value")
        }
        self.readout = np.random.default_rng(0).normal(size=(12, 32))
        self.width, self.arithmetic, self.identity = 384, Arithmetic.FLOAT64, "MiniLM"

    def answer(self, sequences: Sequence[NDArray[Any]], bits: int = 128) -> list[float]:
        return [self.one(np.asarray(tokens)) for tokens in sequences]

    def one(self, tokens: NDArray[np.float64]) -> float:
        total = 0.0
        for h in range(12):
            query, key, value = (tokens @ w[h].T + b[h] for w, b in self.parts.values())
            scores = key @ query[-1] / np.sqrt(32)
            weights = np.exp(scores - scores.max())
            total += float(weights @ value @ self.readout[h] / weights.sum())
        return total


def test_biases_of_minilm_lie_outside_and_are_named() -> None:
    with pytest.raises(NotOfThisFormError) as refused:
        recover_attention(QuerySession(MiniLM(0)), Request(heads=12))
    assert refused.value.test in ("linear", "oddness", "power of two")


def smollm2_layer(layer: int) -> LayerOracle:
    weights = AttentionLayer.from_arrays(read_attention_layer(smollm2_gguf(), layer))
    return LayerOracle(weights, readout_vector("0", weights.outputs))


def test_a_layer_of_smollm2_is_of_this_form() -> None:
    oracle = smollm2_layer(12)
    assert (oracle.width, oracle.layer.heads, oracle.layer.rank) == (576, 9, 64)
    tests = class_tests(QuerySession(oracle), np.random.default_rng(1))
    assert tests.failed == ()


def test_the_oracle_of_a_layer_is_what_the_file_says() -> None:
    """Grouped heads written out from the named tensors, one token and head at a time."""
    weights = open_checkpoint(smollm2_gguf()).weights
    assert weights is not None
    query, key, value, output = (
        weights.read_float64(f"model.layers.3.self_attn.{part}_proj.weight") for part in "qkvo"
    )
    readout = np.random.default_rng(0).normal(size=576) / np.sqrt(576)
    tokens = np.random.default_rng(1).normal(size=(6, 576))
    total = np.zeros(576)
    for head in range(9):
        mine, shared = slice(64 * head, 64 * head + 64), slice(head // 3 * 64, head // 3 * 64 + 64)
        asked = query[mine] @ tokens[-1]
        scores = np.array([(key[shared] @ token) @ asked / 8 for token in tokens])
        shares = np.exp(scores) / np.exp(scores).sum()
        mixed = sum(s * (value[shared] @ token) for s, token in zip(shares, tokens, strict=True))
        total += output[:, mine] @ mixed
    oracle = smollm2_layer(3)
    assert oracle.answer([tokens])[0] == pytest.approx(readout @ total, rel=1e-11)
    heads = oracle.true_heads()
    assert heads.evaluate(tokens) == pytest.approx(readout @ total, rel=1e-11)


def test_a_layer_of_minilm_is_refused_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recover", "attention", "--oracle", str(minilm_directory()), "--layer", "0"])
    assert ended.value.code == 1
    assert "NOT OF THIS FORM" in capsys.readouterr().out
