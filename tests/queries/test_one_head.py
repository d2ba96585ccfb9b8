import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.one_head import leaning_directions
from fiberscope.queries.oracle import Arithmetic, FunctionOracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import BoundKind, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.counting import CountingOracle
from tests.queries.functions import Functions


def draw(seed, d, scale=1.0, rank=None):
    rng = np.random.default_rng(seed)
    rank = d if rank is None else rank
    W = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d)) / np.sqrt(d * rank)
    return AttentionHeads(scale * W[None], rng.standard_normal((1, d)))


def recover(heads, request, seed=0, arithmetic=Arithmetic.FLOAT64):
    oracle = CountingOracle(HeadsOracle(heads, arithmetic))
    session = QuerySession(oracle)
    found = recover_attention(session, request, seed)
    assert len(oracle.lengths) == session.queries
    return found, session, oracle.oracle.heads


def true_bits(found, truth):
    errors = []
    for got, wanted in ((found.heads.W[0], truth.W[0]), (found.heads.v[0], truth.v[0])):
        size = np.linalg.norm(wanted) or 1.0
        errors.append(np.linalg.norm(got - wanted) / size)
    return [-np.log2(max(error, 1e-30)) for error in errors]


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("d", [1, 2, 5, 16])
@pytest.mark.parametrize(
    ("arithmetic", "least"), [(Arithmetic.FLOAT64, 40), (Arithmetic.FLOAT32, 12)]
)
def test_count_precision_and_bound(d, scale, arithmetic, least):
    found, session, truth = recover(draw(d, d, scale), Request(heads=1), 7, arithmetic)
    counts = session.counts
    assert counts[Purpose.RECOVERY].queries == d + d * d
    assert counts[Purpose.RECOVERY].longest == 2
    # Asking again for scale only: a few columns, not everything.
    assert counts[Purpose.RETRIES].queries <= 8 * d + d * d // 2
    bits = true_bits(found, truth)
    stated = found.estimate.precision
    assert bits[0] >= stated.W[0] >= least
    assert bits[1] >= stated.v[0] >= least
    assert stated.kind is BoundKind.CONDITIONAL
    assert found.final_check.passed and found.final_check.longest == 33


def test_columns_of_very_different_size():
    heads = draw(1, 8)
    W = heads.W * 10.0 ** np.linspace(-3, 3, 8)
    found, _, truth = recover(AttentionHeads(W, heads.v), Request(heads=1))
    assert true_bits(found, truth)[0] >= found.estimate.precision.W[0] > 35


def test_value_vector_with_zeros_needs_no_margin():
    v = np.zeros((1, 6))
    v[0, 2] = 1.0
    found, _, truth = recover(AttentionHeads(draw(2, 6).W, v), Request(heads=1))
    assert true_bits(found, truth)[0] > 40


def test_same_seed_same_queries():
    heads = draw(3, 4)
    oracles = [CountingOracle(HeadsOracle(heads)) for _ in range(2)]
    for oracle in oracles:
        recover_attention(QuerySession(oracle), Request(heads=1), seed=11)
    assert oracles[0].seen == oracles[1].seen


@pytest.mark.parametrize("mode", [Request(heads=1), Request(rank=2), Request(noise=1e-6)])
def test_two_heads_are_not_passed_off_as_one(mode):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        heads = AttentionHeads(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4)))
        with pytest.raises(NotRecoveredError):
            recover(heads, mode, seed)


def test_a_weak_second_head_is_noticed():
    first, second = draw(4, 6), draw(5, 6)
    heads = AttentionHeads(
        np.concatenate([first.W, second.W]), np.concatenate([first.v, 1e-9 * second.v])
    )
    with pytest.raises(NotRecoveredError):
        recover(heads, Request(heads=1))


def test_two_heads_with_opposite_values_are_not_the_zero_function():
    first, second = draw(6, 4), draw(7, 4)
    heads = AttentionHeads(np.concatenate([first.W, second.W]), np.concatenate([first.v, -first.v]))
    with pytest.raises(NotRecoveredError, match="final check"):
        recover(heads, Request(heads=1))


def test_leaning_directions():
    for d in (1, 2, 9):
        v = np.random.default_rng(d).standard_normal(d)
        rows = leaning_directions(v)
        assert np.allclose(rows @ v, np.linalg.norm(v) * (1 + 1 / np.sqrt(d)))
        assert np.linalg.svd(rows)[1].min() >= 1 - 1e-12
        assert np.linalg.norm(rows, axis=1).max() <= 2 + 1e-12


@pytest.mark.parametrize("d", [16, 40])
@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_count_and_precision(d, rank):
    found, session, truth = recover(draw(8, d, rank=rank), Request(rank=rank))
    k = rank + 1
    assert session.counts[Purpose.RECOVERY].queries == d + k * (2 * d - k)
    assert session.counts[Purpose.RETRIES].queries <= 8 * d
    bits = true_bits(found, truth)
    assert bits[0] >= found.estimate.precision.W[0] > 36


def test_rank_bounds_that_are_too_small_or_too_large():
    heads = draw(9, 12, rank=3)
    with pytest.raises(NotRecoveredError, match="rank at least 3"):
        recover(heads, Request(rank=2))
    found, _, truth = recover(heads, Request(rank=5))
    assert true_bits(found, truth)[0] >= found.estimate.precision.W[0] > 30
    assert any("rank 3" in note for note in found.estimate.notes)
    with pytest.raises(InputError, match="says nothing at width 12"):
        recover(heads, Request(rank=12))


class Wrong:
    """Adds errors of exactly ``tau``, with random signs or all against the same side."""

    arithmetic, identity = Arithmetic.FLOAT64, "wrong"

    def __init__(self, heads, tau, signs):
        self.oracle, self.width, self.tau, self.signs = HeadsOracle(heads), heads.width, tau, signs

    def answer(self, sequences, bits=0):
        values = self.oracle.answer(sequences)
        return values + self.tau * self.signs(len(values))


@pytest.mark.parametrize("bound", [None, 2.0, 16.0])
@pytest.mark.parametrize("tau", [1e-6, 1e-3])
@pytest.mark.parametrize("d", [2, 8])
def test_the_guarantee_holds_for_every_error_pattern(d, tau, bound):
    heads = draw(10 + d, d, 2.0)
    rng = np.random.default_rng(0)
    patterns = [
        lambda n: rng.choice([-1.0, 1.0], n),
        lambda n: rng.uniform(-1, 1, n),
        np.ones,
        lambda n: -np.ones(n),
    ]
    given = 0
    for signs in patterns:
        session = QuerySession(CountingOracle(Wrong(heads, tau, signs)))
        request = Request(heads=1, noise=tau, token_bound=bound)
        try:
            found = recover_attention(session, request)
        except NotRecoveredError:
            assert tau == 1e-3 and bound == 2.0
            continue
        given += 1
        assert session.counts[Purpose.RECOVERY].queries == d + d * d
        bits, stated = true_bits(found, heads), found.estimate.precision
        assert bits[0] >= stated.W[0] - 1e-6 and bits[1] >= stated.v[0] - 1e-6
        assert stated.W[0] >= 1
        norms = [np.linalg.norm(np.reshape(x, (-1, d)), axis=1).max() for x in session.oracle.seen]
        assert bound is None or max(norms) <= bound
    assert given or bound == 2.0


def test_a_lie_about_the_errors_is_noticed():
    heads = draw(12, 4)
    rng = np.random.default_rng(0)
    session = QuerySession(Wrong(heads, 1e-2, lambda n: rng.uniform(-1, 1, n)))
    request = Request(heads=1, noise=1e-9, token_bound=8.0)
    # The guarantee is for errors of 1e-9; repeated answers show a hundredth, and so do fresh ones.
    with pytest.raises(NotRecoveredError, match="final check"):
        recover_attention(session, request)


def test_requests_that_make_no_sense():
    for wrong in (
        {"heads": 0},
        {"heads": 2, "heads_at_most": 3},
        {"rank": 0},
        {"noise": 0.0},
        {"noise": float("inf")},
        {"token_bound": -1.0},
    ):
        with pytest.raises(InputError):
            Request(**wrong)
    session = QuerySession(FunctionOracle(Functions(0).one_head, 4))
    with pytest.raises(InputError, match="--noise is for one head"):
        recover_attention(session, Request(heads=2, noise=1e-3))


def test_bfloat16_is_averaged_and_its_bound_holds():
    given = 0
    for seed in range(6):
        try:
            found, session, truth = recover(
                draw(seed, 8), Request(heads=1), seed, Arithmetic.BFLOAT16
            )
        except NotRecoveredError:
            continue
        given += 1
        bits, stated = true_bits(found, truth), found.estimate.precision
        assert bits[0] >= stated.W[0] >= 3
        assert session.counts[Purpose.RECOVERY].queries == 8 + 64
    assert given >= 4


def test_two_heads_in_bfloat16_are_not_passed_off_as_one():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        v = rng.standard_normal((2, 6)) * np.array([[1.0], [0.3]])
        heads = AttentionHeads(rng.standard_normal((2, 6, 6)) / 2, v)
        with pytest.raises(NotRecoveredError):
            recover(heads, Request(heads=1), seed, Arithmetic.BFLOAT16)
