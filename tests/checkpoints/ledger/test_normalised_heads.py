"""Discrete symmetries of normalised queries and keys, against the class and by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.ledger.rules.discrete import (
    COMPONENTS,
    HALF_TURNS,
    QUARTER_TURNS,
    ROW_SIGNS,
)
from tests.checkpoints.ledger.toys import llama

MECHANISMS = (ROW_SIGNS, QUARTER_TURNS, HALF_TURNS)
CONFIG = llama(
    "qwen3", "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2, vocab_size=24
)


@pytest.mark.parametrize("bias", [False, True])
def test_the_published_class_does_not_notice(bias: bool) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from fiberscope.checkpoints.twins import build_twin

    config = {**CONFIG, "attention_bias": bias}
    model = architecture(dict(config))
    twin = build_twin(config, "logits", 0, inputs=4)
    rng = np.random.default_rng(0)
    parameters = {
        name: 1 + 0.3 * rng.standard_normal(shape) if len(shape) == 1 else rng.normal(size=shape)
        for name, shape in model.tensors.items()
    }
    before = twin.observe(parameters)
    items = [item for item in ledger(model).items if item.mechanism in MECHANISMS]
    assert {item.mechanism for item in items} == set(MECHANISMS)
    for item in items:
        assert item.build is not None
        symmetry = item.build()
        for _ in range(4):
            element = symmetry.random(rng)
            moved = symmetry.act(element, parameters)
            back = symmetry.act(symmetry.inverse(element), moved)
            assert all(np.array_equal(back[name], parameters[name]) for name in parameters)
            assert np.abs(twin.observe(moved) - before).max() < 1e-13 * np.abs(before).max() * 10


def test_orders_against_all_signed_permutations() -> None:
    """Two rows, one plane, two groups: every signed permutation of rows and gains is tried."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((2, 6, 2))  # queries and keys of six positions
    gains = rng.standard_normal((2, 2))
    angles = np.array([0.3, 1.1, 2.0])
    turns = np.array([[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in angles])

    def scores(query, key, gain):  # type: ignore[no-untyped-def]
        sides = [
            x / np.sqrt((x**2).mean(-1, keepdims=True)) * g
            for x, g in zip((query, key), gain, strict=True)
        ]
        return np.einsum("ia,tab,jb->tij", sides[0], turns, sides[1])

    signed = [
        np.diag(signs)[list(order)]
        for order in ((0, 1), (1, 0))
        for signs in product((1.0, -1.0), repeat=2)
    ]
    expected = scores(rows[0], rows[1], gains)
    total = 0
    for left, right in product(signed, repeat=2):
        moved = gains[0] @ left.T, gains[1] @ right.T
        inside = sum(
            np.allclose(scores(rows[0] @ one.T, rows[1] @ other.T, moved), expected)
            for one, other in product(signed, repeat=2)
        )
        total += inside**2  # the two groups choose independently
    model = architecture({**CONFIG, "head_dim": 2})
    found = {
        item.mechanism: item.log10_order / np.log10(2)
        for item in ledger(model).items
        if item.mechanism in MECHANISMS
    }
    # One sign of the product of gains a plane is counted with the continuous groups' components.
    assert any(item.mechanism == COMPONENTS for item in ledger(model).items)
    assert np.log2(total) == pytest.approx(sum(found.values()) + 1)
