"""Answers that differ from call to call: nothing wrong is given, and nothing right is denied."""

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.one_head_fit import head_and_slopes
from fiberscope.queries.oracle import FunctionOracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle

WIDTH = 4


class Noisy:
    """Heads by the definition, with relative or additive errors, and something on top."""

    def __init__(self, seed, second=0.0, relative=0.0, additive=0.0, constant=0.0):
        rng = np.random.default_rng(seed)
        self.W = rng.standard_normal((2, WIDTH, WIDTH)) / np.sqrt(WIDTH)
        self.v = rng.standard_normal((2, WIDTH))
        self.v[1] *= second
        self.relative, self.additive, self.constant = relative, additive, constant
        self.rng = np.random.default_rng(seed + 99)

    def __call__(self, X):
        total = self.constant
        for W, v in zip(self.W, self.v, strict=True):
            scores = X @ W @ X[-1]
            weights = np.exp(scores - scores.max())
            total += float(weights @ X @ v / weights.sum())
        total *= 1 + self.relative * self.rng.standard_normal()
        return total + self.additive * self.rng.standard_normal()


def recovered(function, seed):
    session = QuerySession(FunctionOracle(function, WIDTH))
    return recover_attention(session, Request(heads=1), seed)


@pytest.mark.parametrize("second", [1.0, 0.1])
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 6, 8, 12])
def test_a_second_head_does_not_hide_in_relative_noise(seed, second):
    with pytest.raises(NotRecoveredError):
        recovered(Noisy(seed, second, relative=0.01), seed)


@pytest.mark.parametrize("relative", [0.003, 0.01, 0.03])
def test_what_hides_behind_noise_is_smaller_than_stated(relative):
    """One head is given with a size; a second head above that size is refused."""
    given = 0
    for seed in range(2):
        found = recovered(Noisy(seed, relative=relative), seed)
        given += 1
        stated = found.estimate.further_head
        assert 0 < stated < 0.5
        assert any("would not have been seen" in note for note in found.estimate.notes)
        assert found.to_dict()["smallest_visible_further_head"] == stated
        for factor in (1.0, 0.1):
            function = Noisy(seed + 50, relative=relative)
            function.v[1] = np.random.default_rng(seed).standard_normal(WIDTH)
            function.v[1] *= factor * np.linalg.norm(function.v[0]) / np.linalg.norm(function.v[1])
            try:
                found = recovered(function, seed)
            except NotRecoveredError:
                continue
            assert factor < found.estimate.further_head
    assert given == 2


def test_slopes_of_one_head_against_differences():
    rng = np.random.default_rng(0)
    W, v, X = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(5, 4, 3))
    slopes = head_and_slopes(W, v, X)[1]
    for place in range(12):
        move = np.zeros(12)
        move[place] = 1e-6
        ends = [
            AttentionHeads(
                (W + s * move[:9].reshape(3, 3))[None], (v + s * move[9:])[None]
            ).evaluate_many(X)
            for s in (1, -1)
        ]
        assert np.allclose((ends[0] - ends[1]) / 2e-6, slopes[:, place], atol=1e-8)


@pytest.mark.parametrize("seed", [20, 22, 25])
def test_a_constant_does_not_hide_in_relative_noise(seed):
    with pytest.raises((NotRecoveredError, NotOfThisFormError)):
        recovered(Noisy(seed, relative=0.01, constant=0.1), seed)


def test_one_noisy_head_is_of_this_form_and_its_bound_holds():
    given = 0
    for seed in range(4):
        for noise in ({"relative": 0.01}, {"additive": 0.03}):
            function = Noisy(seed, **noise)
            try:
                found = recovered(function, seed)
            except NotRecoveredError:
                continue
            given += 1
            error = np.linalg.norm(found.heads.W[0] - function.W[0])
            assert error <= 2.0 ** -found.estimate.precision.W[0] * np.linalg.norm(function.W[0])
            # 100 sequences, four times each.
            assert found.queries[Purpose.FINAL_CHECK].queries == 400
    assert given == 8


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decimals", [3, 6])
def test_declared_errors_do_not_excuse_a_second_head(decimals, seed):
    """Errors of a hundred times the declared ones are refused; rounding alone is excused."""
    tau = 10.0**-decimals

    def ask(second):
        function = Noisy(seed, second)
        session = QuerySession(FunctionOracle(lambda X: round(function(X), decimals), WIDTH))
        return recover_attention(session, Request(heads=1, noise=tau), seed)

    with pytest.raises((NotRecoveredError, NotOfThisFormError)):
        ask(100 * tau)
    found, W = ask(0.0), Noisy(seed).W[0]
    bound = 2.0 ** -found.estimate.precision.W[0] * np.linalg.norm(W)
    assert np.linalg.norm(found.heads.W[0] - W) <= bound


def test_noisy_heads_that_drown_at_small_tokens_are_not_called_random():
    for seed in range(20, 28):
        with pytest.raises(NotRecoveredError):
            recovered(Noisy(seed, second=1.0, additive=0.1), seed)


def test_no_token_beyond_the_bound_is_sent():
    function = Noisy(0, second=1.0)
    longest = []

    def watched(X):
        longest.append(np.linalg.norm(X, axis=1).max())
        return function(X)

    for request in (Request(heads=2, token_bound=0.5), Request(heads=1, token_bound=0.01)):
        session = QuerySession(FunctionOracle(watched, WIDTH))
        with pytest.raises(NotRecoveredError, match=r"token-bound|one head"):
            recover_attention(session, request, 0)
        assert max(longest) <= request.token_bound
        longest.clear()


def test_no_token_beyond_the_bound_is_sent_to_a_ball_oracle():
    pytest.importorskip("flint")
    from fiberscope.queries.oracle import Arithmetic

    heads = AttentionHeads(Noisy(0).W, np.ones((2, WIDTH)))
    session = QuerySession(HeadsOracle(heads, Arithmetic.BALLS))
    with pytest.raises(NotRecoveredError, match="token-bound"):
        recover_attention(session, Request(heads=2, token_bound=0.5), 0)


@pytest.mark.parametrize("answer", [None, "1.5", b"1.5"])
def test_what_is_no_number_is_bad_input(answer):
    session = QuerySession(FunctionOracle(lambda X: answer, WIDTH))
    with pytest.raises(InputError, match="one number"):
        recover_attention(session, Request(heads=1))


def test_integers_beyond_floats_are_infinite():
    session = QuerySession(FunctionOracle(lambda X: 10**400, WIDTH))
    with pytest.raises(NotOfThisFormError, match="finite"):
        recover_attention(session, Request(heads=1))


def test_an_oracle_that_exits_is_bad_input():
    def leaves(X):
        raise SystemExit(0)

    with pytest.raises(InputError, match="SystemExit"):
        recover_attention(QuerySession(FunctionOracle(leaves, WIDTH)), Request(heads=1))
