"""Layers of real trained weights behind a black box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.queries import QuerySession, Request, recover_attention
from fiberscope.queries.class_tests import class_tests
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


def test_a_layer_of_smollm2_is_of_this_form() -> None:
    from benchmarks.recover_attention_smollm2 import LayerOracle

    oracle = LayerOracle(smollm2_gguf(), 12, np.random.default_rng(0))
    tests = class_tests(QuerySession(oracle), np.random.default_rng(1))
    assert tests.failed == ()
