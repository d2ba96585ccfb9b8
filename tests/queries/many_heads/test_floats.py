"""Many heads from floating-point oracles: bits, counts, awkward heads, and what is refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.queries.many_heads.floats import recover_heads_in_floats
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.many_heads.steps import Steps, fit_steps
from fiberscope.queries.many_heads.sweep import balanced_basis
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.oracle import Arithmetic, FunctionOracle
from fiberscope.queries.result import Estimate
from fiberscope.queries.session import Purpose, QuerySession
from tests.queries.many_heads.ball_oracles import random_heads

Heads = tuple[NDArray[np.float64], NDArray[np.float64]]


def attention(heads: Heads, kind: type[Any] = np.float64) -> Callable[[NDArray[Any]], float]:
    """The model, written out once more, in one kind of numbers."""
    W, v = heads[0].astype(kind), heads[1].astype(kind)

    def function(tokens: NDArray[Any]) -> float:
        X = tokens.astype(kind)
        total = kind(0)
        for matrix, vector in zip(W, v, strict=True):
            scores = X @ (matrix @ X[-1])
            weights = np.exp(scores - scores.max())
            total = total + (weights / weights.sum()) @ (X @ vector)
        return float(total)

    return function


def session_for(heads: Heads, arithmetic: Arithmetic = Arithmetic.FLOAT64) -> QuerySession:
    kind = np.float32 if arithmetic is Arithmetic.FLOAT32 else np.float64
    width = heads[1].shape[1]
    return QuerySession(FunctionOracle(attention(heads, kind), width, arithmetic, "test"))


def true_bits(found: Estimate, truth: Heads) -> list[float]:
    """Bits of every head against the nearest true one; each true head is met once."""
    W, v = truth
    assert found.heads.count == len(W)
    bits, used = [], set()
    for matrix, vector in zip(found.heads.W, found.heads.v, strict=True):
        near = min(range(len(W)), key=lambda k: float(np.linalg.norm(matrix - W[k])))
        used.add(near)
        errors = [
            np.linalg.norm(matrix - W[near]) / (np.linalg.norm(W[near]) or 1.0),
            np.linalg.norm(vector - v[near]) / np.linalg.norm(v[near]),
        ]
        bits.append(float(-np.log2(max(*errors, 1e-300))))
    assert len(used) == len(W)
    return bits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("arithmetic", "least"), [(Arithmetic.FLOAT64, 36), (Arithmetic.FLOAT32, 10)]
)
def test_four_heads_of_width_sixteen(seed: int, arithmetic: Arithmetic, least: float) -> None:
    W, v = random_heads(4, 16, np.random.default_rng(seed))
    if arithmetic is Arithmetic.FLOAT32:
        W, v = (each.astype(np.float32).astype(np.float64) for each in (W, v))
    session = session_for((W, v), arithmetic)
    found = recover_heads_in_floats(session, rng=np.random.default_rng(seed + 100))
    bits = true_bits(found, (W, v))
    assert min(bits) >= least
    # The stated bits are a lower bound.
    assert found.precision.bits is not None
    assert found.precision.bits <= min(bits)
    assert session.counts[Purpose.RECOVERY].queries <= 1.5 * 4 * 4 * 16**2


def test_tokens_are_exact_in_float32() -> None:
    sent: list[NDArray[Any]] = []
    model = attention(random_heads(2, 4, np.random.default_rng(0)), np.float32)

    def function(tokens: NDArray[Any]) -> float:
        sent.append(tokens)
        return model(tokens)

    session = QuerySession(FunctionOracle(function, 4, Arithmetic.FLOAT32, "test"))
    recover_heads_in_floats(session, rng=np.random.default_rng(1))
    assert all((each.astype(np.float32) == each).all() for each in sent)


def test_a_coarse_answer_costs_a_third() -> None:
    truth = random_heads(4, 16, np.random.default_rng(3))
    session = session_for(truth)
    found = recover_heads_in_floats(session, rng=np.random.default_rng(2), precision="coarse")
    assert min(true_bits(found, truth)) > 27
    assert session.queries < 0.55 * 4 * 4 * 16**2


def awkward() -> dict[str, tuple[Heads, Heads, float]]:
    """Heads, their canonical form by hand, and the bits asked for."""
    rng = np.random.default_rng(21)
    W, v = random_heads(3, 6, rng)
    thin = np.einsum("hi,hj->hij", rng.normal(size=(3, 6)), rng.normal(size=(3, 6)))
    zero = np.zeros((1, 6, 6))

    def scaled(factor: float) -> NDArray[np.float64]:
        return v * np.array([1, factor, 1])[:, None]

    def replaced(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([W[0], matrix, W[2]])

    return {
        "equal": ((replaced(W[0]), v), (W[[0, 2]], np.stack([v[0] + v[1], v[2]])), 40),
        "cancelling": ((replaced(W[0]), np.stack([v[0], -v[0], v[2]])), (W[2:], v[2:]), 40),
        "doubled": ((replaced(2 * W[0]), v),) * 2 + (30,),
        "minus two": ((replaced(-2 * W[0]), v),) * 2 + (30,),
        "mirrored": ((replaced(-W[0]), v),) * 2 + (40,),
        "mirrored, equal values": ((replaced(-W[0]), v[[0, 0, 2]]),) * 2 + (40,),
        "only a mirrored pair": ((np.stack([W[0], -W[0]]), v[[0, 0]]),) * 2 + (40,),
        "mirrored pair and mean": (
            (np.stack([W[0], -W[0], zero[0]]), v[[0, 0, 1]]),
            (np.stack([W[0], -W[0], zero[0]]), v[[0, 0, 1]]),
            40,
        ),
        "mean pooling": ((replaced(zero[0]), v),) * 2 + (40,),
        "only mean pooling": ((zero, v[:1]), (zero, v[:1]), 40),
        "weak": ((W, scaled(1e-3)),) * 2 + (30,),
        "very weak": ((W, scaled(1e-6)),) * 2 + (20,),
        "steep": ((replaced(30 * W[1]), v),) * 2 + (40,),
        "flat": ((replaced(0.01 * W[1]), v),) * 2 + (30,),
        "sum zero": ((W, np.stack([v[0], v[1], -v[0] - v[1]])),) * 2 + (40,),
        "equal values": ((W, v[[0, 0, 0]]),) * 2 + (40,),
        "rank one": ((thin / 2, v),) * 2 + (30,),
        "nothing": ((W[[0, 0]], np.stack([v[0], -v[0]])), (W[:0], v[:0]), 0),
    }


@pytest.mark.parametrize("name", awkward())
def test_awkward_heads(name: str) -> None:
    given, canonical, least = awkward()[name]
    session = session_for(given)
    found = recover_heads_in_floats(session, rng=np.random.default_rng(5))
    assert min(true_bits(found, canonical), default=99.0) >= least


def test_two_mirrored_pairs_of_equal_values_are_refused() -> None:
    W, v = random_heads(2, 4, np.random.default_rng(3))
    session = session_for((np.concatenate([W, -W]), np.concatenate([v, v])))
    with pytest.raises(RecoveryRefusedError):
        recover_heads_in_floats(session, rng=np.random.default_rng(5))
    assert session.queries < 20_000


@pytest.mark.parametrize(("heads", "width"), [(5, 3), (6, 4), (3, 2)])
def test_more_heads_than_dimensions(heads: int, width: int) -> None:
    truth = random_heads(heads, width, np.random.default_rng(heads))
    found = recover_heads_in_floats(session_for(truth), rng=np.random.default_rng(1))
    assert min(true_bits(found, truth)) > 25


def test_more_heads_than_the_bound() -> None:
    truth = random_heads(4, 6, np.random.default_rng(4))
    with pytest.raises(RecoveryRefusedError) as refused:
        recover_heads_in_floats(session_for(truth), heads_at_most=3, rng=np.random.default_rng(1))
    assert refused.value.kind is Reason.MORE_HEADS


@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-8])
def test_near_equal_heads_are_right_within_the_stated_bits_or_refused(distance: float) -> None:
    rng = np.random.default_rng(6)
    W, v = random_heads(3, 6, rng)
    W[1] = W[0] + distance * rng.normal(size=(6, 6)) / np.sqrt(6)
    session = session_for((W, v))
    try:
        found = recover_heads_in_floats(session, rng=np.random.default_rng(2))
    except RecoveryRefusedError:
        assert session.queries < 60_000
        return
    assert found.heads.count == 3
    assert found.precision.bits is not None
    assert found.precision.bits <= min(true_bits(found, (W, v)))


def test_scores_that_overflow_are_backed_off_from() -> None:
    W, v = random_heads(2, 4, np.random.default_rng(9))

    def naive(tokens: NDArray[Any]) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            weights = [np.exp(tokens @ (matrix @ tokens[-1])) for matrix in W]
            return float(sum(a @ (tokens @ b) / a.sum() for a, b in zip(weights, v, strict=True)))

    session = QuerySession(FunctionOracle(naive, 4, identity="naive"))
    found = recover_heads_in_floats(session, rng=np.random.default_rng(3))
    assert session.nonfinite > 0
    assert min(true_bits(found, (W, v))) > 36


def test_noise_is_respected() -> None:
    truth = random_heads(2, 8, np.random.default_rng(12))
    model, rng = attention(truth), np.random.default_rng(13)

    def noisy(tokens: NDArray[Any]) -> float:
        return model(tokens) + 1e-7 * float(np.linalg.norm(tokens)) * rng.standard_normal()

    session = QuerySession(FunctionOracle(noisy, 8, identity="noisy"))
    found = recover_heads_in_floats(
        session, rng=np.random.default_rng(1), noise=NoiseLevel(unit=4e-7)
    )
    bits = min(true_bits(found, truth))
    assert found.precision.bits is not None
    assert 10 < found.precision.bits <= bits


def others() -> dict[str, Callable[[NDArray[Any]], float]]:
    model = attention(random_heads(2, 4, np.random.default_rng(31)))
    rng = np.random.default_rng(32)

    def hashed(tokens: NDArray[Any]) -> float:
        digest = hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).digest()
        return int.from_bytes(digest[:6]) / 2**47 - 1

    return {
        "random": lambda tokens: float(rng.standard_normal()),
        "hash": hashed,
        "constant": lambda tokens: 1.0,
        "infinite": lambda tokens: float("nan"),
        "last token": lambda tokens: float(tokens[-1].sum()),
        "squashed": lambda tokens: float(np.tanh(model(tokens))),
        "positions": lambda tokens: model(tokens + 0.1 * np.arange(len(tokens))[:, None]),
        "window": lambda tokens: model(tokens[-3:]),
        "disturbed": lambda tokens: model(tokens) + 1e-3 * float(np.tanh(tokens[0, 0])),
    }


@pytest.mark.parametrize("name", others())
def test_other_functions_end_in_a_refusal(name: str) -> None:
    session = QuerySession(FunctionOracle(others()[name], 4, identity=name))
    started = time.process_time()
    with pytest.raises(RecoveryRefusedError):
        recover_heads_in_floats(session, rng=np.random.default_rng(1))
    assert session.queries < 200_000
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("W", "v", "least"),
    [
        ([0.7], [1.0], 45),
        ([0.7, -1.3], [1.0, 0.5], 45),
        ([0.7, -0.7], [1.0, 1.0], 45),
        ([0.7, 0.8], [1.0, -1.0], 30),
        ([0.0, 1.0], [2.0, 1.0], 45),
        ([0.7, 0.71], [1.0, 1.0], 25),
        ([-0.7, 1.2, 3.0], [0.3, -2.0, 1.0], 35),
    ],
)
def test_width_one(W: list[float], v: list[float], least: float) -> None:
    truth = np.array(W).reshape(-1, 1, 1), np.array(v).reshape(-1, 1)
    found = recover_heads_in_floats(session_for(truth), rng=np.random.default_rng(1))
    assert found.precision.bits is not None
    assert least <= min(true_bits(found, truth))
    assert found.precision.bits <= min(true_bits(found, truth))


def test_width_one_with_more_heads_than_allowed_or_of_another_form() -> None:
    truth = np.array([0.7, -1.3]).reshape(-1, 1, 1), np.ones((2, 1))
    with pytest.raises(RecoveryRefusedError) as refused:
        recover_heads_in_floats(session_for(truth), heads=1, rng=np.random.default_rng(1))
    assert refused.value.kind is Reason.MORE_HEADS
    other = QuerySession(FunctionOracle(lambda X: float(np.tanh(X).sum()), 1, identity="tanh"))
    with pytest.raises(RecoveryRefusedError):
        recover_heads_in_floats(other, rng=np.random.default_rng(1))


def test_fit_of_exact_steps() -> None:
    rng = np.random.default_rng(2)
    exact = Steps(rng.normal(size=(3, 4)), rng.normal(size=3), 0.25)
    points = 2 * rng.normal(size=(80, 4))
    near = Steps(exact.directions + 0.05 * rng.normal(size=(3, 4)), exact.heights * 1.1)
    fit = fit_steps(points, exact(points), near, 1e-16)
    np.testing.assert_allclose(fit.steps.directions, exact.directions, rtol=1e-9)
    np.testing.assert_allclose(fit.steps.heights, exact.heights, rtol=1e-9)


def test_balanced_basis_is_orthonormal_and_balanced() -> None:
    rng = np.random.default_rng(4)
    w = rng.normal(size=(4, 16))
    basis = balanced_basis(w, rng)
    np.testing.assert_allclose(basis @ basis.T, np.eye(16), atol=1e-12)
    shares = np.abs(basis @ w.T) / np.linalg.norm(w, axis=1)
    # A perfectly flat basis has 1/4 everywhere; a random one about 0.01 at its worst.
    assert shares.min() > 0.08
