import numpy as np
import pytest

from fiberscope.queries.class_tests import IDENTITIES, class_tests
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.noise import kept_decimals, shown_arithmetic, significant_bits
from fiberscope.queries.oracle import Arithmetic, FunctionOracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.counting import CountingOracle
from tests.queries.functions import IN_CLASS, OUT_OF_CLASS, WIDTH, Functions

SEEDS = range(3)
FLOATS = [Arithmetic.FLOAT64, Arithmetic.FLOAT32, Arithmetic.BFLOAT16]

EXPECTED = {
    # What must fail, by hand; others may fail as well.
    "random": {"repeat"},
    "nan": {"finite"},
    "constant": {"linear"},
    "value_bias": {"linear"},
    "last_token": {"reflection"},
    "residual": {"reflection"},
    "sliding_window": {"permutation"},
    "wide_window": {"duplication"},
    "alibi": {"permutation"},
    "rotary": {"permutation"},
    "query_bias": {"oddness"},
    "sink": {"linear"},
    "relu_network": {"linear"},
    "softcap": {"reflection"},
}


def session(name, seed, width=WIDTH):
    return QuerySession(CountingOracle(FunctionOracle(getattr(Functions(seed), name), width)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", OUT_OF_CLASS)
def test_other_functions_are_not_of_this_form(name, seed):
    asking = session(name, seed)
    with np.errstate(over="ignore"), pytest.raises(NotOfThisFormError) as caught:
        class_tests(asking, np.random.default_rng(seed)).require()
    assert caught.value.violation > caught.value.threshold
    assert caught.value.test in EXPECTED.get(name, set(IDENTITIES))
    assert asking.queries == len(asking.oracle.lengths) <= 130


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", IN_CLASS)
def test_functions_of_this_form_pass(name, seed):
    asking = session(name, seed)
    tests = class_tests(asking, np.random.default_rng(seed))
    assert not tests.failed
    assert {test.name for test in tests.tests} == set(IDENTITIES)
    counts = asking.counts
    assert counts[Purpose.CLASS_TESTS].queries == asking.queries == len(asking.oracle.lengths)
    assert 110 <= asking.queries <= (130 if name != "overflowing" else 400)


@pytest.mark.parametrize("arithmetic", FLOATS)
@pytest.mark.parametrize("seed", range(12))
def test_random_models_of_all_sizes_pass(seed, arithmetic):
    rng = np.random.default_rng(seed)
    H, d = int(rng.integers(1, 9)), int(rng.choice([1, 2, 3, 8, 32]))
    W = 10 ** rng.uniform(-2, 2) * rng.standard_normal((H, d, d)) / np.sqrt(d)
    v = 10 ** rng.uniform(-3, 3) * rng.standard_normal((H, d))
    asking = QuerySession(HeadsOracle(AttentionHeads(W, v), arithmetic))
    assert not class_tests(asking, rng).failed


@pytest.mark.parametrize("arithmetic", FLOATS[:2])
@pytest.mark.parametrize("seed", range(12))
def test_heads_that_nearly_cancel_pass(seed, arithmetic):
    """Their answers are differences of larger numbers: rounding is large beside them."""
    rng = np.random.default_rng(seed)
    W, v = rng.standard_normal((WIDTH, WIDTH)), rng.standard_normal(WIDTH)
    little = 10.0 ** rng.uniform(-16, -3)
    second = W * (1 + (2e-16 if seed % 2 else little))
    opposite = -v * (1 if seed % 3 else 1 + little)
    heads = AttentionHeads(np.stack([W, second]), np.stack([v, opposite]))
    asking = QuerySession(HeadsOracle(heads, arithmetic))
    assert not class_tests(asking, rng).failed


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_token_size_follows_the_scores(scale):
    functions = Functions(1)
    heads = AttentionHeads(scale * functions.W[None], functions.v[None])
    tests = class_tests(QuerySession(HeadsOracle(heads)), np.random.default_rng(0))
    reach = tests.scale.size**2 * np.linalg.norm(heads.W[0], 2)
    assert 0.3 < reach < 100


def test_answers_that_show_float32_are_asked_on_its_grid():
    functions = Functions(2)
    heads = AttentionHeads(functions.W[None], functions.v[None])
    oracle = HeadsOracle(heads, Arithmetic.FLOAT32)
    asking = QuerySession(FunctionOracle(lambda X: oracle.answer(X[None])[0], WIDTH))
    tests = class_tests(asking, np.random.default_rng(0))
    assert not tests.failed
    assert asking.arithmetic is Arithmetic.FLOAT32
    assert tests.noise.unit == 2.0**-24


def test_noise_is_measured():
    noisy = class_tests(session("noisy", 0), np.random.default_rng(0)).noise
    # Uniform in +-1e-6: standard deviation 5.8e-7; the bound must cover it, not by much.
    assert not noisy.repeatable
    assert 1e-6 < noisy.absolute < 1e-5
    rounded = class_tests(session("rounded", 0), np.random.default_rng(0)).noise
    assert rounded.repeatable
    assert rounded.absolute == pytest.approx(0.5e-7)


def test_a_coarser_arithmetic_inside_is_undecided():
    for seed in SEEDS:
        with pytest.raises(NotRecoveredError, match="--arithmetic"):
            class_tests(session("coarse_inside", seed), np.random.default_rng(seed)).require()


def test_in_balls_identities_are_proved_to_fail():
    flint = pytest.importorskip("flint")
    from fiberscope.queries.oracle import ball_oracle

    functions = Functions(3)
    heads = AttentionHeads(functions.W[None], functions.v[None])
    inside = HeadsOracle(heads, Arithmetic.BALLS)
    assert not class_tests(QuerySession(inside), np.random.default_rng(0)).failed

    @ball_oracle
    def leaks(X, bits):
        ball = inside.answer([X], bits)[0]
        return ball + flint.arb(2) ** -60 * flint.arb(float(X[0, 0])).tanh()

    tests = class_tests(QuerySession(FunctionOracle(leaks, WIDTH)), np.random.default_rng(0))
    assert "permutation" in {test.name for test in tests.failed}


@pytest.mark.parametrize("name", IN_CLASS)
def test_functions_of_this_form_are_recovered(name):
    functions = Functions(5)
    found = recover_attention(session(name, 5), Request(heads=1), seed=1)
    heads, precision = found.heads, found.estimate.precision
    truth = {
        "zero": (None, None),
        "mean": (np.zeros((WIDTH, WIDTH)), functions.v),
        "last_and_equal_heads": (functions.W, functions.v + functions.read),
    }.get(name, (functions.W, functions.v))
    if truth[0] is None:
        assert heads.count == 0
        return
    assert heads.count == 1
    size = np.linalg.norm(truth[0]) or 1.0
    assert np.linalg.norm(heads.W[0] - truth[0]) <= 2.0 ** -precision.W[0] * size
    assert np.linalg.norm(heads.v[0] - truth[1]) <= 2.0 ** -precision.v[0] * np.linalg.norm(
        truth[1]
    )
    assert found.final_check.passed
    assert precision.bits > (10 if name in {"rounded", "noisy"} else 38)


@pytest.mark.parametrize("name", ["rounded", "noisy"])
def test_absolute_errors_do_not_need_a_number_of_heads(name):
    functions = Functions(1)
    found = recover_attention(session(name, 1), Request(), seed=0)
    error = np.linalg.norm(found.heads.W[0] - functions.W) / np.linalg.norm(functions.W)
    assert found.heads.count == 1
    assert error <= 2.0**-found.estimate.precision.bits < 2.0**-14


def test_digits_of_answers():
    values = np.random.default_rng(0).standard_normal(50)
    assert significant_bits(values) == 53
    assert significant_bits(np.array([0.75, 3.0, 0.0])) == 2
    single = values.astype(np.float32).astype(np.float64)
    assert shown_arithmetic(single, Arithmetic.FLOAT64) is Arithmetic.FLOAT32
    assert shown_arithmetic(single[:5], Arithmetic.FLOAT64) is Arithmetic.FLOAT64
    assert kept_decimals(np.round(values, 5), 2.0**-53) == 5
    assert kept_decimals(values, 2.0**-53) is None
    assert kept_decimals(1e12 * values, 2.0**-53) is None
