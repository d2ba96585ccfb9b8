"""Functional dimensions of attention against published and independently computed values."""

import numpy as np
import pytest

from fiberscope.analysis import dimension, symmetry_rank
from fiberscope.families import MultiHeadAttention, QueryKeyNorm

ALL = frozenset({"query", "key", "value", "output"})
PLAIN, GAINS, SHARED = QueryKeyNorm.PLAIN, QueryKeyNorm.HEAD_GAINS, QueryKeyNorm.SHARED_GAINS


def attention(d, H, r, s, G=None, **options):
    return MultiHeadAttention(
        input_width=d, heads=H, groups=G, query_width=r, value_width=s, **options
    )


def measured(family):
    """Dimension, parameters, and what the symmetries leave unexplained."""
    result = dimension(family)
    assert result.decided
    assert result.saturated
    point, design = _point(family)
    union = symmetry_rank(
        family.symmetries(design), point, family.space, family.jacobian(point, design)
    )
    assert union.nullity == result.nullity
    assert union.worst_residual < 1e-12
    return result.value, result.parameters, union.unexplained


def _point(family):
    design = family.design(2 * family.sufficient_size, np.random.default_rng([0, 1]))
    return family.generic(np.random.default_rng([0, 0])), design


# (d, H, r, s), dimension, parameters
HENRY = [
    ((4, 1, 2, 2), 24, 32),
    ((4, 2, 2, 2), 48, 64),
    ((5, 2, 2, 3), 74, 100),
    ((6, 3, 2, 2), 120, 144),
    ((4, 2, 4, 4), 64, 128),
    ((4, 4, 1, 1), 56, 64),
]


@pytest.mark.parametrize(("sizes", "value", "parameters"), HENRY)
@pytest.mark.parametrize("tokens", [2, 3])
def test_heads_without_biases(sizes, value, parameters, tokens):
    assert measured(attention(*sizes, tokens=tokens)) == (value, parameters, 0)
    d, H, r, s = sizes
    assert value == H * (r * (2 * d - r) + s * (2 * d - s))


@pytest.mark.parametrize(("sizes", "value", "parameters"), HENRY[:3])
def test_causal_mask_changes_nothing(sizes, value, parameters):
    assert measured(attention(*sizes, causal=True)) == (value, parameters, 0)


@pytest.mark.parametrize("p", [2, 3, 6])
def test_output_width_differs_from_input_width(p):
    d, H, r, s = 4, 2, 2, 2
    value = H * (r * (2 * d - r) + s * (d + p - s))
    assert measured(attention(d, H, r, s, output_width=p))[::2] == (value, 0)


@pytest.mark.parametrize(
    ("sizes", "G", "options", "value", "parameters"),
    [
        ((4, 2, 2, 2), None, {"biases": ALL}, 56, 80),
        ((5, 2, 3, 2), None, {"biases": ALL}, 85, 121),
        ((4, 4, 2, 2), 2, {}, 80, 96),
        ((6, 4, 2, 2), 2, {}, 128, 144),
        ((4, 4, 2, 2), 1, {}, 72, 80),
        ((5, 4, 2, 2), 2, {"biases": ALL}, 117, 141),
        ((4, 2, 4, 2), None, {"rotated": 4, "causal": True}, 80, 96),
        ((5, 4, 4, 2), 2, {"rotated": 4}, 164, 180),
        ((4, 2, 4, 2), None, {"rotated": 2}, 76, 96),
        ((4, 1, 4, 2), None, {"rotated": 4, "frequencies": (0.8, 0.8)}, 36, 48),
        ((4, 2, 4, 2), None, {"rotated": 4, "biases": ALL}, 100, 120),
        ((4, 2, 4, 2), None, {"rotated": 2, "biases": ALL}, 92, 120),
        ((5, 4, 4, 2), 2, {"rotated": 4, "biases": ALL}, 193, 213),
        ((5, 4, 4, 2), 2, {"rotated": 2, "biases": ALL}, 185, 213),
    ],
)
def test_biases_groups_and_rotary(sizes, G, options, value, parameters):
    assert measured(attention(*sizes, G, **options)) == (value, parameters, 0)


@pytest.mark.parametrize(
    ("sizes", "value", "parameters"),
    [((4, 1, 4, 2), 40, 48), ((4, 2, 4, 2), 80, 96), ((5, 2, 2, 2), 68, 80)],
)
@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_rotary_at_every_length(sizes, value, parameters, tokens):
    family = attention(*sizes, rotated=sizes[2], tokens=tokens)
    assert measured(family) == (value, parameters, 0)


@pytest.mark.parametrize(
    ("d", "r", "H", "norm", "value", "nullity"),
    [
        (4, 2, 1, PLAIN, 29, 3),
        (5, 3, 1, PLAIN, 50, 5),
        (5, 3, 2, PLAIN, 100, 10),
        (4, 2, 1, GAINS, 32, 4),
        (5, 3, 1, GAINS, 56, 5),
    ],
)
def test_query_key_norm(d, r, H, norm, value, nullity):
    # The reference counts a free d x d map per head; here it is a product, with GL(d) more.
    found = measured(attention(d, H, r, d, norm=norm))
    assert found == (value, value + nullity + H * d * d, 0)


@pytest.mark.parametrize(("H", "G"), [(2, 2), (2, 1), (4, 2)])
def test_gains_shared_by_all_heads(H, G):
    d, r, s = 4, 3, 2
    family = attention(d, H, r, s, G, norm=SHARED)
    value, parameters, unexplained = measured(family)
    # r products of gains and one scale for each query head and key group.
    assert (parameters - value, unexplained) == (r + H + G + G * s * s, 0)


@pytest.mark.parametrize("rotated", [2, 4])
def test_shared_gains_with_rotary_keep_one_factor_a_plane(rotated):
    d, H, G, r, s = 4, 2, 1, 4, 2
    value, parameters, unexplained = measured(
        attention(d, H, r, s, G, norm=SHARED, rotated=rotated)
    )
    factors = rotated // 2 + (r - rotated)
    assert (parameters - value, unexplained) == (factors + H + G + G * s * s, 0)


def test_plain_norm_with_rotary_keeps_one_angle_a_plane():
    d, H, r, s = 4, 2, 4, 2
    value, parameters, unexplained = measured(attention(d, H, r, s, norm=PLAIN, rotated=4))
    assert (parameters - value, unexplained) == (H * (2 + 2) + H * s * s, 0)
    equal = attention(d, H, r, s, norm=PLAIN, rotated=4, frequencies=(0.8, 0.8))
    value, parameters, unexplained = measured(equal)
    assert (parameters - value, unexplained) == (H * (4 + 2) + H * s * s, 0)


@pytest.mark.parametrize(
    ("d", "D", "r", "value"),
    [(3, 1, 2, 17), (3, 2, 2, 25), (4, 2, 2, 40)],
)
def test_serial_stack(d, D, r, value):
    assert value == d * d + D * r * (2 * d - r)
    assert measured(attention(d, 1, r, d, depth=D))[::2] == (value, 0)


@pytest.mark.parametrize(
    ("d", "D", "r", "value", "parameters"),
    [(3, 1, 2, 17, 21), (3, 2, 2, 34, 42), (4, 2, 2, 56, 64), (3, 3, 1, 42, 45)],
)
def test_residual_stack(d, D, r, value, parameters):
    # As above, the reference counts free d x d maps.
    found = measured(attention(d, 1, r, d, depth=D, residual=True))
    assert found == (value, parameters + D * d * d, 0)


@pytest.mark.parametrize("residual", [False, True])
def test_biases_in_a_stack_absorb_a_constant(residual):
    d, H, r, s, D = 3, 2, 2, 2, 2
    free = measured(attention(d, H, r, s, depth=D, residual=residual))
    biased = measured(attention(d, H, r, s, depth=D, residual=residual, biases=ALL))
    # Query biases and output biases are seen, except one constant at the interface.
    assert biased[0] - free[0] == D * (H * r + d) - d
    assert biased[2] == 0


@pytest.mark.parametrize(("G", "s", "p"), [(2, 2, 3), (2, 3, 3), (3, 1, 4)])
def test_value_biases_without_an_output_bias(G, s, p):
    with_bias = measured(attention(4, G, 2, s, output_width=p, biases={"value"}))
    without = measured(attention(4, G, 2, s, output_width=p))
    # Only their sum through the output maps is seen, a vector of width p.
    assert with_bias[0] - without[0] == min(G * s, p)
    assert with_bias[2] == 0


@pytest.mark.parametrize(("s", "p"), [(3, 4), (4, 5)])
def test_head_width_between_the_widths_it_joins_hides_freedom(s, p):
    d = 2
    family = attention(d, 1, 2, s, output_width=p)
    assert not family.complete
    value, _, unexplained = measured(family)
    # The product of p x s and s x d has rank k = min(s, d, p) and dimension k (d + p - k).
    assert value == 2 * (2 * d - 2) + d * p
    assert unexplained == (s - d) * (p - s)
