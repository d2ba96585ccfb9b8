"""The distance modulo symmetry is zero along the group, and the size of noise off it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.equality.comparison import _distance
from fiberscope.checkpoints.equality.decision import decided
from fiberscope.checkpoints.equality.distance import _balanced_complex
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import Parameters, compared, drawn, laid_out, moved
from tests.checkpoints.ledger import toys

CONFIGS = {
    "one frequency": toys.llama(
        rope_theta=1.0, num_attention_heads=4, num_key_value_heads=2, hidden_size=12, vocab_size=40
    ),
    "normalised": toys.llama(
        "qwen3", "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2, vocab_size=24
    ),
    "plain": toys.llama(
        num_attention_heads=4, num_key_value_heads=2, hidden_size=12, vocab_size=40
    ),
}


def measured(config: dict[str, Any], first: Parameters, second: Parameters) -> float:
    """The distance, whatever the verdict."""
    model = laid_out(config)
    pair = StoredModel.of(model, first), StoredModel.of(model, second)
    found = _distance(*pair, decided(*pair, None)[0])
    assert found is not None
    return found.relative


@pytest.mark.parametrize("name", list(CONFIGS))
def test_zero_along_the_group_and_not_off_it(name: str) -> None:
    config = CONFIGS[name]
    model = laid_out(config)
    attention = wire(model, model.default_observable).attentions[0]
    for seed in range(3):
        source = drawn(model, seed)
        copy = moved(model, source, seed + 5)
        assert measured(config, source, copy) < 1e-6
        changed = {key: value.copy() for key, value in source.items()}
        query = attention.query.read(changed)
        query += 0.1 * np.random.default_rng(seed).standard_normal(query.shape)
        attention.query.write(changed, query)
        near = measured(config, source, moved(model, changed, seed + 5))
        # Only queries differ: a distance that leaves out their planes would be zero.
        assert 1e-3 < near < 0.3
        found = compared(model, source, moved(model, changed, seed + 5))
        assert found.outcome is Outcome.DIFFERENT
        assert found.first_difference.startswith("layer 0 attention QK")
        assert found.distance is not None
        assert found.distance.relative < found.distance.shuffled


def test_complex_factors_of_minimal_norm() -> None:
    rng = np.random.default_rng(0)

    def complex_normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    first, second = complex_normal(2, 3, 7), complex_normal(2, 3, 5)
    product = np.conj(first).swapaxes(-1, -2) @ second
    found = _balanced_complex(first, second)
    np.testing.assert_allclose(np.conj(found[0]).swapaxes(-1, -2) @ found[1], product, atol=1e-12)
    # Least norm: twice the sum of the product's singular values.
    norm = sum(float((np.abs(part) ** 2).sum()) for part in found)
    assert norm == pytest.approx(2 * np.linalg.svd(product, compute_uv=False).sum())
