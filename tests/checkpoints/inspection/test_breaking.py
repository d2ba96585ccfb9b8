"""The size of the breaking by epsilon, against norms evaluated directly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fiberscope.checkpoints.inspection import Breaking, inspect
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors


def test_size_is_the_derivative_of_a_norm_in_the_logarithm_of_the_scale() -> None:
    x = np.random.default_rng(0).normal(size=64)
    epsilon, t = 0.01, 1e-6
    mean_square = float(np.mean(x**2))

    def norm(scale: float) -> np.ndarray:
        return scale * x / np.sqrt(scale**2 * mean_square + epsilon)

    change = np.linalg.norm(norm(1 + t) - norm(1 - t)) / np.linalg.norm(norm(1.0)) / (2 * t)
    assert np.isclose(Breaking("m", "w", epsilon, mean_square).size, change, rtol=1e-8)
    assert Breaking("m", "w", epsilon, 0.0).size == 1.0


def test_mean_square_of_the_first_sum(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    found = inspect(checkpoint(tmp_path / "a", TINY_GPT2, tensors)).weights
    assert found is not None
    (breaking,) = found.breaking
    # Token and position rows are added; a LayerNorm sees their variance.
    tables = (tensors["transformer.wte.weight"], tensors["transformer.wpe.weight"])
    expected = sum(float(np.mean(np.var(table.astype(np.float64), axis=1))) for table in tables)
    assert np.isclose(breaking.mean_square, expected, rtol=1e-12)
    assert breaking.where == "layer 0 first norm"
    assert breaking.epsilon == 1e-5


def test_normalised_queries_and_keys(tmp_path: Path) -> None:
    config = {
        **TINY_LLAMA,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 4,
        "rms_norm_eps": 1e-3,
    }
    tensors = random_tensors(config)
    found = inspect(checkpoint(tmp_path / "a", config, tensors)).weights
    assert found is not None
    heads = [b for b in found.breaking if b.mechanism == "scale of normalised queries and keys"]
    assert len(heads) == 2 * 2
    # Inputs of unit size in all directions: average the square of a query over many of them.
    inputs = np.random.default_rng(1).normal(size=(200_000, 8))
    gain = tensors["model.layers.0.input_layernorm.weight"]
    queries = (inputs * gain) @ tensors["model.layers.0.self_attn.q_proj.weight"].T
    squares = np.mean(queries.reshape(-1, 4, 4) ** 2, axis=(0, 2))
    # 200,000 draws leave about 0.3 % of statistical error.
    assert np.isclose(heads[0].mean_square, squares.min(), rtol=0.02)
