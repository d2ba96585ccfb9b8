"""The published ball algorithm and the shorter one: counts, lengths and enclosures."""

from __future__ import annotations

from typing import Any

import flint
import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.ball_design import BallDesign
from fiberscope.queries.many_heads.balls import recover_heads_in_balls
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.oracle import Arithmetic, FunctionOracle, ball_oracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import BoundKind, Estimate
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.many_heads.ball_oracles import ball, ball_session, encloses, random_heads

# Heads and width: corners of the grid, the whole of which is run by benchmarks.
CELLS = [(1, 1), (3, 1), (6, 1), (1, 2), (2, 3), (6, 2), (4, 4), (5, 3), (1, 8), (2, 8)]


def arrays(found: Estimate) -> tuple[NDArray[Any], NDArray[Any]]:
    return found.heads.W, found.heads.v


@pytest.mark.parametrize(("heads", "width"), CELLS)
@pytest.mark.parametrize("shorter", [False, True])
def test_counts_lengths_and_enclosures(heads: int, width: int, shorter: bool) -> None:
    rng = np.random.default_rng(100 * heads + width)
    truth = random_heads(heads, width, rng)
    session = ball_session(*truth)
    found = recover_heads_in_balls(session, heads=heads, shorter=shorter, rng=rng)
    published = 4 * heads * width**2 - 2 * heads + 1
    short = 2 * heads * (width**2 + width - 1) + 1
    assert session.counts[Purpose.RECOVERY].queries == (short if shorter else published)
    assert session.counts[Purpose.RECOVERY].longest == 2 * heads + 1
    assert session.counts[Purpose.RETRIES].queries == 0
    assert encloses(arrays(found), truth)
    assert found.precision.kind is BoundKind.CERTIFIED
    assert found.precision.bits is not None and found.precision.bits > 40


def test_six_heads_of_width_eight() -> None:
    rng = np.random.default_rng(68)
    truth = random_heads(6, 8, rng)
    session = ball_session(*truth)
    found = recover_heads_in_balls(session, heads=6, shorter=True, rng=rng)
    assert session.queries - session.counts[Purpose.FINAL_CHECK].queries == 853
    assert encloses(arrays(found), truth)


def test_stated_bits_hold_for_the_midpoints() -> None:
    rng = np.random.default_rng(5)
    W, v = random_heads(3, 2, rng)
    found = recover_heads_in_balls(ball_session(W, v), heads=3, rng=rng)
    flint.ctx.prec, before = 4096, flint.ctx.prec
    try:
        for h in range(3):
            exact = W[
                min(range(3), key=lambda k: abs(W[k] - found.heads.middle().W[h]).max())
            ].reshape(-1)
            differences = [
                a.mid() - ball(float(b)) for a, b in zip(found.heads.W[h].flat, exact, strict=True)
            ]
            error = sum((x * x for x in differences), flint.arb(0)).sqrt()
            norm = sum((ball(float(b)) ** 2 for b in exact), flint.arb(0)).sqrt()
            assert error <= norm * flint.arb(2) ** (-found.precision.W[h])
    finally:
        flint.ctx.prec = before


@pytest.mark.parametrize("bound", [3, 5])
def test_only_a_bound_is_known(bound: int) -> None:
    rng = np.random.default_rng(bound)
    truth = random_heads(2, 3, rng)
    session = ball_session(*truth)
    found = recover_heads_in_balls(session, heads_at_most=bound, rng=rng)
    assert encloses(arrays(found), truth)
    assert session.counts[Purpose.RECOVERY].queries == 4 * bound * 9 - 2 * bound + 1
    assert session.counts[Purpose.RECOVERY].longest == 2 * bound + 1


def test_nothing_is_known() -> None:
    rng = np.random.default_rng(3)
    truth = random_heads(5, 2, rng)
    found = recover_heads_in_balls(ball_session(*truth), rng=rng)
    assert encloses(arrays(found), truth)


def degenerate() -> dict[str, tuple[Any, Any]]:
    """Heads as given, and the canonical heads by hand."""
    rng = np.random.default_rng(11)
    W, v = np.round(rng.normal(size=(2, 2, 2)), 3), np.round(8 * rng.normal(size=(3, 2))) / 8
    zero = np.zeros((2, 2))
    return {
        "equal": ((W[[0, 0, 1]], v), (W, np.stack([v[0] + v[1], v[2]]))),
        "cancelling": ((W[[0, 0, 1]], np.stack([v[0], -v[0], v[2]])), (W[1:], v[2:])),
        "proportional": ((np.stack([W[0], 2 * W[0], -W[0]]), v),) * 2,
        "mean pooling": ((np.stack([zero, W[0], W[1]]), v),) * 2,
        "sum zero": ((W, np.stack([v[0], -v[0]])),) * 2,
        "equal values": ((W, v[[0, 0]]),) * 2,
        "nothing": ((W[[0, 0]], np.stack([v[0], -v[0]])), (W[:0], v[:0])),
        "zero values": ((W, np.stack([v[0], 0 * v[0]])), (W[:1], v[:1])),
    }


@pytest.mark.parametrize("name", degenerate())
@pytest.mark.parametrize("shorter", [False, True])
def test_canonical_form(name: str, shorter: bool) -> None:
    given, canonical = degenerate()[name]
    rng = np.random.default_rng(1)
    session = ball_session(*given)
    found = recover_heads_in_balls(session, heads=len(given[0]), shorter=shorter, rng=rng)
    assert encloses(arrays(found), canonical)
    if name == "equal values" and shorter:
        # Equal heights do not match heads: the rest of the published queries does.
        assert session.counts[Purpose.RECOVERY].queries == 4 * 2 * 4 - 2 * 2 + 1


@pytest.mark.parametrize("heads", [2, 3, 4, 7])
@pytest.mark.parametrize("width", [1, 3])
def test_more_heads_than_the_bound(heads: int, width: int) -> None:
    rng = np.random.default_rng(heads)
    session = ball_session(*random_heads(heads, width, rng))
    with pytest.raises(RecoveryRefusedError) as refused:
        recover_heads_in_balls(session, heads_at_most=heads - 1, rng=rng)
    assert refused.value.kind in (Reason.MORE_HEADS, Reason.CHECK_FAILED)


@pytest.mark.parametrize("case", ["invisible", "equal scores"])
def test_coincidences_of_a_draw_are_drawn_again(case: str) -> None:
    first = BallDesign.draw(2, np.random.default_rng(7)).directions[0]
    orthogonal = np.array([first[1], -first[0]])
    assert first @ orthogonal == 0
    W, v = random_heads(2, 2, np.random.default_rng(8))
    W = np.round(W * 2**12) / 2**12
    if case == "invisible":
        v[1] = orthogonal
    else:
        # First direction: both heads have the same score for every last token.
        W[1] = W[0] + np.outer(orthogonal, [0.5, 0.25])
    session = ball_session(W, v)
    found = recover_heads_in_balls(session, heads=2, rng=np.random.default_rng(7))
    assert encloses(arrays(found), (W, v))
    assert session.counts[Purpose.RECOVERY].queries == 4 * 2 * 4 - 2 * 2 + 1
    assert session.counts[Purpose.RETRIES].queries == 4 * 2 * 4 - 2 * 2 + 1


@pytest.mark.parametrize("name", ["square", "cosine", "constant"])
def test_other_functions_are_refused(name: str) -> None:
    @ball_oracle
    def function(tokens: NDArray[Any], bits: int) -> Any:
        flint.ctx.prec, before = bits, flint.ctx.prec
        try:
            total = sum((ball(x) for x in tokens[:, 0]), flint.arb(0)) / len(tokens)
            return {"square": total * total, "cosine": total.cos(), "constant": flint.arb(1)}[name]
        finally:
            flint.ctx.prec = before

    session = QuerySession(FunctionOracle(function, 2, identity=name))
    with pytest.raises(RecoveryRefusedError):
        recover_heads_in_balls(session, heads_at_most=2, rng=np.random.default_rng(0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nobody_has_to_promise_a_number_of_heads(count: int) -> None:
    """The whole route without a bound: found with more and more copies, and said so."""
    W, v = random_heads(count, 3, np.random.default_rng(count))
    session = QuerySession(HeadsOracle(AttentionHeads(W, v), Arithmetic.BALLS))
    found = recover_attention(session, Request(), seed=1)
    assert found.heads.count == count
    assert any(f"{count} show at one probe" in note for note in found.estimate.notes)
    wanted = AttentionHeads(W, v).canonical()
    inside = [
        a.contains(float(b))
        for a, b in zip(found.heads.W.reshape(-1), wanted.W.reshape(-1), strict=True)
    ]
    assert all(inside)
