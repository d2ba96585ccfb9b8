"""Attention keeps the contract of all families, over its variants."""

import numpy as np
import pytest

from fiberscope.analysis import check_family, rank_of, symmetry_rank
from fiberscope.families import MultiHeadAttention, QueryKeyNorm

ALL = frozenset({"query", "key", "value", "output"})

CONFIGURATIONS = {
    "plain": {},
    "grouped with biases": {"heads": 4, "groups": 2, "biases": ALL},
    "causal rotary": {"query_width": 3, "rotated": 2, "causal": True, "biases": ALL},
    "equal frequencies": {
        "heads": 1,
        "input_width": 4,
        "query_width": 4,
        "rotated": 4,
        "frequencies": (0.7, 0.7),
    },
    "normalised": {"norm": QueryKeyNorm.PLAIN, "biases": {"query", "key"}},
    "normalised, gains by head": {
        "heads": 4,
        "groups": 2,
        "norm": QueryKeyNorm.HEAD_GAINS,
        "output_width": 2,
    },
    "normalised, shared gains, rotary": {
        "query_width": 3,
        "rotated": 2,
        "groups": 1,
        "norm": QueryKeyNorm.SHARED_GAINS,
        "biases": {"query", "key", "value"},
    },
    "serial stack": {"depth": 2, "biases": ALL},
    "residual stack": {"depth": 2, "residual": True, "biases": ALL, "query_width": 2, "rotated": 2},
    "more value biases than outputs": {"biases": {"value"}, "output_width": 2},
    "wide heads": {"query_width": 4, "value_width": 4, "input_width": 3},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_keeps_the_contract(name):
    sizes = {"input_width": 3, "heads": 2, "query_width": 2, "value_width": 2}
    family = MultiHeadAttention(**{**sizes, **CONFIGURATIONS[name]})
    assert family.complete
    report = check_family(family, seed=1)
    assert report.unexplained == 0
    assert report.nullity > 0


def test_balls_agree_with_float64():
    pytest.importorskip("flint")
    from fiberscope.numbers.balls import Balls

    family = MultiHeadAttention(
        input_width=2,
        heads=2,
        groups=1,
        query_width=2,
        value_width=1,
        rotated=2,
        norm=QueryKeyNorm.SHARED_GAINS,
        biases=ALL,
        causal=True,
        residual=True,
    )
    report = check_family(family, systems=[Balls()])
    assert "number system balls" in {check.name for check in report.passed}


def random_configuration(rng):
    """Small sizes and all flags, uniformly enough to meet every combination of two."""
    G, m, r = (int(n) for n in rng.integers(1, (3, 3, 5)))
    norm = list(QueryKeyNorm)[rng.choice(4, p=[0.55, 0.15, 0.15, 0.15])]
    depth, residual = int(rng.choice([1, 2])), bool(rng.random() < 0.3)
    drawn = {
        "input_width": int(rng.integers(2, 4)),
        "heads": G * m,
        "groups": G,
        "query_width": r if norm is QueryKeyNorm.NONE else max(r, 2),
        "value_width": int(rng.integers(1, 5)),
        "rotated": 2 * int(rng.integers(0, r // 2 + 1)) if rng.random() < 0.5 else 0,
        "norm": norm,
        "causal": bool(rng.random() < 0.3),
        "residual": residual,
        "depth": depth,
        "tokens": int(rng.integers(2, 4)),
        "biases": ALL if rng.random() < 0.4 else {b for b in sorted(ALL) if rng.random() < 0.5},
    }
    if depth == 1 and not residual:
        drawn["output_width"] = int(rng.integers(1, 5))
    return drawn


def test_completeness_claims_hold_over_random_configurations():
    rng = np.random.default_rng(2024)
    checked = complete = 0
    while checked < 60:
        drawn = random_configuration(rng)
        family = MultiHeadAttention(**drawn)
        if family.space.size > 90:
            continue
        point = family.generic(np.random.default_rng(checked))
        design = family.design(2 * family.sufficient_size, np.random.default_rng(checked + 1))
        jacobian = family.jacobian(point, design)
        union = symmetry_rank(family.symmetries(design), point, family.space, jacobian)
        assert rank_of(jacobian).decided, drawn
        assert union.worst_residual < 1e-12, drawn
        assert union.unexplained >= 0, drawn
        assert not family.complete or union.unexplained == 0, drawn
        checked += 1
        complete += family.complete
    assert complete > 20
