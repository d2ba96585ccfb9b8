"""Two trained models from end to end: every tensor of each."""

from __future__ import annotations

import math

import numpy as np
import safetensors

from fiberscope.checkpoints.formats import WeightSource, open_checkpoint
from tests.checkpoints.formats.writers import interleaved
from tests.checkpoints.real_weights import (
    MINILM_PARAMETERS,
    SMOLLM2_PARAMETERS,
    minilm_directory,
    smollm2_gguf,
)


def all_finite(weights: WeightSource) -> int:
    """Read everything (values that are not finite raise) and count it."""
    return sum(weights.read_float64(name).size for name in weights.tensors)


def test_minilm() -> None:
    directory = minilm_directory()
    checkpoint = open_checkpoint(directory)
    weights = checkpoint.weights
    assert weights is not None
    assert checkpoint.config["architectures"] == ["BertModel"]
    assert checkpoint.notes == ()
    buffer = weights.tensors["embeddings.position_ids"]
    assert (buffer.dtype, buffer.shape) == ("int64", (1, 512))
    assert {info.dtype for name, info in weights.tensors.items() if info != buffer} == {"float32"}
    assert all_finite(weights) - math.prod(buffer.shape) == MINILM_PARAMETERS
    with safetensors.safe_open(directory / "model.safetensors", "np") as expected:
        assert set(expected.keys()) == set(weights.tensors)
        for name in expected.keys():  # noqa: SIM118 - not a mapping
            np.testing.assert_array_equal(weights.read(name), expected.get_tensor(name))


def test_smollm2() -> None:
    path = smollm2_gguf()
    checkpoint = open_checkpoint(path)
    weights = checkpoint.weights
    assert weights is not None
    config = checkpoint.config
    assert config["tie_word_embeddings"] is True
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e5, 1e-5)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert weights.tensors["model.embed_tokens.weight"].dtype == "Q8_0"
    assert weights.tensors["model.layers.7.self_attn.q_proj.weight"].dtype == "Q4_1"
    assert weights.tensors["model.norm.weight"].dtype == "float32"
    assert all_finite(weights) == SMOLLM2_PARAMETERS


def test_the_rows_of_smollm2_are_in_rotation_pairs() -> None:
    """Training makes the two rows of a rotation plane alike in norm: evidence from the weights.

    Nothing here knows how the converter reorders. Over the 60 query and key projections, the norms
    correlate more between rows i and r/2 + i as read than as stored; 45 of 60 by chance has
    probability 1e-4.
    """
    weights = open_checkpoint(smollm2_gguf()).weights
    assert weights is not None

    def likeness(rows: np.ndarray, heads: int) -> float:
        norms = np.log(np.linalg.norm(rows.reshape(heads, 2, 32, -1), axis=3))
        return float(np.corrcoef(norms[:, 0].ravel(), norms[:, 1].ravel())[0, 1])

    larger = 0
    for layer in range(30):
        for role, heads in (("q", 9), ("k", 3)):
            rows = weights.read_float64(f"model.layers.{layer}.self_attn.{role}_proj.weight")
            larger += likeness(rows, heads) > likeness(interleaved(rows, heads), heads)
    assert larger >= 45
