from fractions import Fraction

import numpy as np
import pytest

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.oracle import Arithmetic, FunctionOracle, ball_oracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import BoundKind, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.counting import CountingOracle

pytest.importorskip("flint")


def draw(seed, d, rank=None, heads=1):
    """Weights with sixteenths as entries, so that every number is known exactly."""
    rng = np.random.default_rng(seed)
    rank = d if rank is None else rank
    left, right = rng.integers(-8, 9, (heads, d, rank)), rng.integers(-8, 9, (heads, rank, d))
    return AttentionHeads(left @ right / 64.0, rng.integers(1, 9, (heads, d)) / 8.0)


def recover(heads, request, seed=0):
    oracle = CountingOracle(HeadsOracle(heads, Arithmetic.BALLS))
    session = QuerySession(oracle)
    found = recover_attention(session, request, seed)
    return found, session


def encloses(balls, truth):
    pairs = zip(balls.reshape(-1), truth.reshape(-1).tolist(), strict=True)
    return all(ball.contains(value) for ball, value in pairs)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_count_and_enclosures(d):
    heads = draw(d, d)
    found, session = recover(heads, Request(heads=1))
    assert session.counts[Purpose.RECOVERY].queries == d + d * d
    assert session.counts[Purpose.RECOVERY].longest == 2
    assert session.counts[Purpose.RETRIES].queries == 0
    assert encloses(found.heads.W[0], heads.W[0]) and encloses(found.heads.v[0], heads.v[0])
    precision = found.estimate.precision
    assert precision.kind is BoundKind.CERTIFIED and precision.bits > 64
    error = found.heads.middle().W[0] - heads.W[0]
    assert np.linalg.norm(error) <= 2.0**-50 * np.linalg.norm(heads.W[0])


@pytest.mark.parametrize(("d", "rank"), [(4, 1), (6, 2)])
def test_rank_bound_saves_queries(d, rank):
    heads = draw(3, d, rank)
    found, session = recover(heads, Request(rank=rank))
    assert session.counts[Purpose.RECOVERY].queries == d + 2 * rank * d - rank**2
    assert encloses(found.heads.W[0], heads.W[0])
    assert found.estimate.precision.kind is BoundKind.CERTIFIED


def test_a_larger_rank_is_proved_to_disagree():
    with pytest.raises(NotRecoveredError, match="final check"):
        recover(draw(4, 5, 3), Request(rank=2))


def test_a_second_head_is_proved_to_disagree():
    with pytest.raises(NotRecoveredError):
        recover(draw(5, 3, heads=2), Request(heads=1))


def test_zeros_in_the_value_vector():
    heads = draw(6, 4)
    v = heads.v * np.array([0, 0, 1, 0])
    found, session = recover(AttentionHeads(heads.W, v), Request(heads=1))
    assert session.counts[Purpose.RECOVERY].queries == 4 + 16
    assert encloses(found.heads.W[0], heads.W[0])


def test_the_zero_function():
    found, _ = recover(AttentionHeads(np.ones((1, 3, 3)), np.zeros((1, 3))), Request(heads=1))
    assert found.heads.count == 0


def test_large_scores_need_more_bits_and_no_more_queries():
    heads = AttentionHeads(draw(7, 2).W * 64, draw(7, 2).v)
    found, session = recover(heads, Request(heads=1))
    assert session.counts[Purpose.RECOVERY].queries == 2 + 4
    assert encloses(found.heads.W[0], heads.W[0])
    assert found.estimate.precision.bits > 64


def test_a_rational_function_is_asked_with_fractions():
    """Mean pooling answers exact fractions: no python-flint in the oracle at all."""

    @ball_oracle
    def mean(X, bits):
        assert all(type(x) is Fraction for x in X.reshape(-1))
        return sum(row[0] - 2 * row[1] for row in X) / len(X)

    session = QuerySession(FunctionOracle(mean, 2))
    found = recover_attention(session, Request(heads=1))
    assert encloses(found.heads.W[0], np.zeros((2, 2)))
    assert encloses(found.heads.v[0], np.array([1.0, -2.0]))
