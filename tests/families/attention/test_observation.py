"""The observation against a direct loop over tokens and heads, and its Jacobian."""

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.families import MultiHeadAttention, QueryKeyNorm, TokenBank

ALL = frozenset({"query", "key", "value", "output"})

FAMILIES = [
    MultiHeadAttention(input_width=3, heads=2, query_width=2, value_width=2, output_width=4),
    MultiHeadAttention(
        input_width=3,
        heads=4,
        groups=2,
        query_width=5,
        value_width=2,
        rotated=4,
        frequencies=(1.1, 0.4),
        biases=ALL,
        causal=True,
        tokens=4,
    ),
    MultiHeadAttention(
        input_width=3,
        heads=2,
        groups=1,
        query_width=2,
        value_width=3,
        rotated=2,
        norm=QueryKeyNorm.HEAD_GAINS,
        biases={"key", "output"},
        residual=True,
        depth=2,
    ),
    MultiHeadAttention(
        input_width=2,
        heads=2,
        query_width=3,
        value_width=1,
        norm=QueryKeyNorm.SHARED_GAINS,
        biases={"query"},
        depth=3,
    ),
    MultiHeadAttention(
        input_width=2, heads=2, query_width=2, value_width=1, norm=QueryKeyNorm.PLAIN
    ),
]


def rotation(c, position):
    matrix = np.eye(c.query_width)
    half = c.rotated // 2
    frequencies = c.frequencies or [10.0 ** (-2 * j / c.rotated) for j in range(half)]
    for j in range(half):
        cos, sin = np.cos(position * frequencies[j]), np.sin(position * frequencies[j])
        matrix[j, j], matrix[j, j + half] = cos, -sin
        matrix[j + half, j], matrix[j + half, j + half] = sin, cos
    return matrix


def one_sequence(c, point, tokens):
    """The definition, token by token, head by head."""
    for layer in range(c.depth):
        w = {role: point[role if c.depth == 1 else f"layers.{layer}.{role}"] for role in c.roles}

        def vector(role, unit, x, position, w=w):
            y = w[role][unit] @ x
            if f"{role}_bias" in w:
                y = y + w[f"{role}_bias"][unit]
            if c.norm is not QueryKeyNorm.NONE:
                y = y / np.sqrt(np.mean(y**2))
            if f"{role}_gain" in w:
                gain = w[f"{role}_gain"]
                y = y * (gain[unit] if gain.ndim == 2 else gain)
            return rotation(c, position) @ y

        outputs = []
        for i, x in enumerate(tokens):
            y = np.zeros(w["output"].shape[1])
            for head in range(c.heads):
                group = head // (c.heads // w["key"].shape[0])
                seen = range(i + 1) if c.causal else range(len(tokens))
                query = vector("query", head, x, i)
                scores = np.array([query @ vector("key", group, tokens[j], j) for j in seen])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                for a, j in zip(weights, seen, strict=True):
                    value = w["value"][group] @ tokens[j]
                    if "value_bias" in w:
                        value = value + w["value_bias"][group]
                    y = y + a * (w["output"][head] @ value)
            y = y + w.get("output_bias", 0.0)
            outputs.append(x + y if c.residual else y)
        tokens = np.array(outputs)
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_the_definition(family):
    point = family.generic(np.random.default_rng(0))
    design = family.design(5, np.random.default_rng(1))
    direct = np.stack([one_sequence(family.configuration, point, x) for x in design.inputs])
    np.testing.assert_allclose(family.observe(point, design), direct.ravel(), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_jacobian_agrees_with_complex_steps(family):
    point = family.generic(np.random.default_rng(2))
    design = family.design(2, np.random.default_rng(3))
    jacobian = family.jacobian(point, design)
    vector = family.space.vector(point).astype(complex)
    for k in range(family.space.size):
        stepped = vector.copy()
        stepped[k] += 1e-30j
        column = np.imag(family.observe(family.space.parameters(stepped), design)) / 1e-30
        np.testing.assert_allclose(jacobian[:, k], column, atol=1e-12)


def test_larger_designs_extend_smaller_ones():
    family = FAMILIES[0]
    small, large = (family.design(n, np.random.default_rng(4)).inputs for n in (3, 6))
    np.testing.assert_array_equal(small, large[:3])


def test_foreign_designs_are_refused():
    family = FAMILIES[0]
    with pytest.raises(InputError, match="3 tokens of width 3"):
        family.observe(family.generic(np.random.default_rng(0)), TokenBank(1, np.zeros((1, 2, 3))))
    with pytest.raises(InputError, match="at least 1"):
        family.design(0, np.random.default_rng(0))
