"""Many heads of low rank: bits against the true weights, counts, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries import QuerySession, Request, recover_attention
from fiberscope.queries.many_heads.low_rank import SPARE, recover_low_rank_heads
from fiberscope.queries.many_heads.low_rank_design import EXTRA, separated_points
from fiberscope.queries.many_heads.low_rank_fit import FramedProblem
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.many_heads.steps import Steps, fit_steps
from fiberscope.queries.oracle import Arithmetic, FunctionOracle
from fiberscope.queries.result import NotRecoveredError
from fiberscope.queries.session import Purpose
from tests.queries.many_heads.test_floats import attention, session_for, true_bits

Heads = tuple[NDArray[np.float64], NDArray[np.float64]]


def draw(heads: int, width: int, rank: int, seed: int) -> Heads:
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(heads, width, rank)), rng.normal(size=(heads, rank, width))
    return left @ right / np.sqrt(width * rank), rng.normal(size=(heads, width))


@pytest.mark.parametrize(
    ("heads", "width", "rank"), [(2, 24, 4), (4, 32, 4), (3, 24, 1), (6, 48, 6)]
)
@pytest.mark.parametrize("known", ["heads", "heads_at_most"])
def test_bits_and_queries(heads: int, width: int, rank: int, known: str) -> None:
    truth = draw(heads, width, rank, heads)
    asked: list[int] = []
    model = attention(truth)

    def counted(tokens: NDArray[Any]) -> float:
        asked.append(len(tokens))
        return model(tokens)

    session = QuerySession(FunctionOracle(counted, width))
    number = heads if known == "heads" else heads + 2
    found = recover_attention(session, Request(rank=rank, **{known: number}), seed=1)
    bits = true_bits(found.estimate, truth)
    assert min(bits) > 28
    assert found.estimate.precision.bits is not None
    assert found.estimate.precision.bits <= min(bits)
    assert np.linalg.matrix_rank(found.heads.W[0], tol=1e-6) == rank
    # The oracle counts what it answers; repetitions of the class tests are queries as well.
    assert len(asked) == session.queries
    recovery = found.queries[Purpose.RECOVERY]
    assert recovery.longest == 2
    # Points of every direction: all coordinates for the first ones, then the frames; single
    # tokens; and less than 700 a circle with moves off it, at most four circles.
    whole = (rank + SPARE) * heads * (1.02 * width + EXTRA + 1)
    inner = (width - rank - SPARE) * heads * (1.02 * rank + EXTRA + 1)
    assert recovery.queries <= whole + inner + 2 * width + 2 * heads * width + 4 * 700


@pytest.mark.parametrize("seed", range(3))
def test_float32(seed: int) -> None:
    W, v = (each.astype(np.float32).astype(np.float64) for each in draw(3, 24, 4, seed))
    session = session_for((W, v), Arithmetic.FLOAT32)
    found = recover_attention(session, Request(heads=3, rank=4), seed=seed).estimate
    assert min(true_bits(found, (W, v))) > 7
    assert found.precision.bits is not None
    assert found.precision.bits <= min(true_bits(found, (W, v)))


def awkward() -> dict[str, tuple[Heads, Heads, float]]:
    """Heads of rank at most 4, their canonical form by hand, and the bits asked for."""
    W, v = draw(3, 24, 4, 5)
    small = draw(1, 24, 2, 6)[0][0]
    mixed = np.random.default_rng(7).normal(size=(24, 24)) / 5

    def replaced(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([W[0], matrix, W[2]])

    merged = (W[[0, 2]], np.stack([v[0] + v[1], v[2]]))
    return {
        "equal": ((replaced(W[0]), v), merged, 30),
        "smaller rank": ((replaced(small), v),) * 2 + (30,),
        "no values": ((W, v * [[1], [0], [1]]), (W[[0, 2]], v[[0, 2]]), 30),
        "doubled": ((replaced(2 * W[0]), v),) * 2 + (20,),
        "minus two": ((replaced(-2 * W[0]), v),) * 2 + (20,),
        "mirrored": ((replaced(-W[0]), v),) * 2 + (30,),
        "mean pooling": ((replaced(0 * W[0]), v),) * 2 + (30,),
        "weak": ((W, v * [[1], [1e-3], [1]]),) * 2 + (25,),
        "steep": ((replaced(10 * W[1]), v),) * 2 + (30,),
        "same rows": ((replaced(mixed @ W[0]), v),) * 2 + (30,),
        "same columns": ((replaced(W[0] @ mixed), v),) * 2 + (30,),
        "nothing": ((W, 0 * v), (W[:0], v[:0]), 0),
    }


@pytest.mark.parametrize("name", awkward())
def test_awkward_heads(name: str) -> None:
    given, canonical, least = awkward()[name]
    session = session_for(given)
    found = recover_attention(session, Request(heads=3, rank=4), seed=1).estimate
    bits = true_bits(found, canonical)
    assert min(bits, default=99.0) >= least
    assert found.precision.bits is None or found.precision.bits <= min(bits)


@pytest.mark.parametrize("excess", [1.0, 1e-4, 1e-8])
def test_a_larger_rank_is_refused(excess: float) -> None:
    W, v = draw(3, 24, 4, 5)
    W[1] += excess * draw(1, 24, 1, 6)[0][0]
    session = session_for((W, v))
    with pytest.raises(RecoveryRefusedError, match="rank at least 5") as refused:
        recover_attention(session, Request(heads=3, rank=4), seed=1)
    assert refused.value.kind is Reason.RANK


def test_more_heads_than_stated_are_refused() -> None:
    session = session_for(draw(3, 24, 4, 5))
    with pytest.raises(RecoveryRefusedError) as refused:
        recover_attention(session, Request(heads_at_most=2, rank=4), seed=1)
    assert refused.value.kind is Reason.MORE_HEADS


def test_fewer_heads_than_stated_are_said() -> None:
    truth = draw(3, 24, 4, 5)
    found = recover_attention(session_for(truth), Request(heads=5, rank=4), seed=1).estimate
    assert min(true_bits(found, truth)) > 30
    assert any("5 heads were stated and 3 show" in note for note in found.notes)


def test_one_head_of_that_rank_asked_for_as_many() -> None:
    truth = draw(1, 24, 4, 5)
    found = recover_attention(session_for(truth), Request(heads_at_most=3, rank=4), seed=1).estimate
    assert min(true_bits(found, truth)) > 30


def test_a_rank_alone_promises_one_head() -> None:
    with pytest.raises(NotRecoveredError):
        recover_attention(session_for(draw(2, 12, 2, 5)), Request(rank=2), seed=1)


def test_balls_and_idle_options_are_refused_in_one_sentence() -> None:
    session = session_for(draw(2, 12, 2, 5), Arithmetic.FLOAT64)
    with pytest.raises(InputError, match="--precision coarse would change nothing with --rank"):
        recover_attention(session, Request(rank=2, heads=2, full=False))
    with pytest.raises(InputError, match="rank must be at least 1"):
        recover_low_rank_heads(session, 12, rng=np.random.default_rng(0))
    session.arithmetic = Arithmetic.BALLS
    with pytest.raises(InputError, match="--rank would change nothing for many heads of a ball"):
        recover_attention(session, Request(rank=2, heads=2))
    assert session.queries == 0


def test_the_fit_agrees_with_dense_least_squares() -> None:
    """The same minimum as Levenberg-Marquardt with a dense Jacobian, and the same errors."""
    rng = np.random.default_rng(0)
    W, v = draw(3, 12, 12, 1)
    z = 3 * rng.normal(size=12)
    true = Steps(np.einsum("i,hij->hj", z, W), v @ z)
    near = Steps(true.directions * (1 + 0.02 * rng.normal(size=(3, 12))), true.heights * 1.01)
    points = separated_points(near, None, 2.0, rng)
    values = true(points) + 1e-6 * rng.normal(size=len(points))
    framed = FramedProblem(points, None, near).fit(values, near, 1e-9)
    dense = fit_steps(points, values, near, 1e-9)
    # Weighted and plain least squares differ by a share of the errors.
    for h in range(3):
        distance = np.linalg.norm(framed.steps.directions[h] - dense.steps.directions[h])
        assert distance < 3 * 1e-6 * dense.direction_errors[h]
    np.testing.assert_allclose(framed.direction_errors, dense.direction_errors, rtol=0.5)
    np.testing.assert_allclose(framed.height_errors, dense.height_errors, rtol=0.5)
    assert framed.spread == pytest.approx(1e-6, rel=0.3)
