"""Heads that nearly agree, or are weak: refused where they show, said where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.queries import QuerySession, Request, recover_attention
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.spare_directions import (
    Spare,
    SpareError,
    with_spare_directions,
)
from fiberscope.queries.many_heads.steps import Fit
from fiberscope.queries.many_heads.sweep import Bilinear
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import NotRecoveredError
from fiberscope.queries.weights_oracle import HeadsOracle


def merged_bits(found: AttentionHeads, W: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Bits of one found head against two that nearly agree, taken for the best single one."""
    total = v.sum(axis=0)
    share = float(v[1] @ total) / float(total @ total)
    merged = W[0] + share * (W[1] - W[0])
    W_error = np.linalg.norm(found.W[0] - merged) / np.linalg.norm(merged)
    v_error = np.linalg.norm(found.v[0] - total) / np.linalg.norm(total)
    return float(-np.log2(W_error)), float(-np.log2(v_error))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("distance", [3e-4, 3e-5, 3e-6, 1e-7])
def test_near_heads_in_float32(distance: float, seed: int) -> None:
    rng = np.random.default_rng(1)
    first, change = rng.standard_normal((2, 3, 3))
    W, v = np.array([first, first + distance * change]), rng.standard_normal((2, 3))
    session = QuerySession(HeadsOracle(AttentionHeads(W, v), Arithmetic.FLOAT32))
    try:
        found = recover_attention(session, Request(heads=2), seed=seed)
    except NotRecoveredError:
        # The difference shows at a hundred times the rounding for the larger distances.
        return
    assert distance < 1e-4
    assert found.heads.count == 1
    W_bits, v_bits = merged_bits(found.heads, W, v)
    precision = found.estimate.precision
    assert precision.W[0] <= W_bits
    assert precision.v[0] <= v_bits
    assert any("count as one" in note for note in found.estimate.notes)
    assert any("2 heads were stated and 1 show" in note for note in found.estimate.notes)


@pytest.mark.parametrize("seed", [3, 17])
def test_near_heads_of_rank_one_in_float32(seed: int) -> None:
    """Two of three heads differ by 0.3 percent: answers of one in their place miss by percents."""
    rng = np.random.default_rng(5)
    left, right = rng.standard_normal((2, 3, 3, 1))
    left[1] = left[0] + 0.003 * rng.standard_normal((3, 1))
    right[1] = right[0] + 0.003 * rng.standard_normal((3, 1))
    W = left @ right.transpose(0, 2, 1) / np.sqrt(3)
    heads = AttentionHeads(W, rng.standard_normal((3, 3)))
    session = QuerySession(HeadsOracle(heads, Arithmetic.FLOAT32))
    try:
        found = recover_attention(session, Request(heads_at_most=4, rank=1), seed=seed)
    except NotRecoveredError:
        return
    tokens = rng.standard_normal((200, 9, 3))
    truth = heads.evaluate_many(tokens)
    missed = found.heads.evaluate_many(tokens) - truth
    assert np.sqrt(np.mean(missed**2)) < 0.02 * np.sqrt(np.mean(truth**2))


def test_a_weak_head_of_low_rank_is_not_lost_silently() -> None:
    """Its answers are hundreds of times the rounding, and some percents of a thousandth."""
    rng = np.random.default_rng(2)
    W = np.einsum("hir,hjr->hij", *rng.standard_normal((2, 2, 6, 4))) / np.sqrt(24)
    v = rng.standard_normal((2, 6)) * np.array([[1.0], [3e-5]])
    session = QuerySession(HeadsOracle(AttentionHeads(W, v), Arithmetic.FLOAT32))
    with pytest.raises(NotRecoveredError):
        recover_attention(session, Request(heads=2, rank=4), seed=1)


def test_errors_grow_to_what_further_directions_show() -> None:
    rng = np.random.default_rng(4)
    W, w = rng.standard_normal((2, 5, 5)), rng.standard_normal((2, 5))
    known = Bilinear(W, w, np.full(2, 1e-6), np.full(2, 1e-6), 0.0)
    wrong = Bilinear(W + 2e-6 * rng.standard_normal((2, 5, 5)) / 5, w, *(np.zeros(2),) * 2, 0.0)

    def spares(truth: Bilinear) -> list[Spare]:
        unit = np.full(2, 1e-9)
        rows = rng.standard_normal((3, 5))
        return [Spare(z, Fit(truth.steps(z), np.zeros(9), unit, unit), 1.0) for z in rows]

    same = with_spare_directions(known, spares(known), 2.0**-24)
    assert (same.W_errors == known.W_errors).all()
    grown = with_spare_directions(known, spares(wrong), 2.0**-24)
    assert (grown.W_errors >= known.W_errors).all()
    assert grown.W_errors.max() > 1.2e-6
    far = Bilinear(W * 1.001, w, *(np.zeros(2),) * 2, 0.0)
    with pytest.raises(SpareError, match="nearly agree"):
        with_spare_directions(known, spares(far), 2.0**-24)


@pytest.mark.parametrize(("apart", "height"), [(5.5e-4, 0.4), (3e-2, 0.3), (0.06, -0.09)])
def test_near_steepnesses_of_width_one_in_float32(apart: float, height: float) -> None:
    """Two steepnesses that one step nearly explains: no more bits than of the merged head."""
    w, v = np.array([0.9287, 0.9287 * (1 + apart), -0.8]), np.array([0.39, height, 0.2])
    heads = AttentionHeads(w.reshape(-1, 1, 1), v.reshape(-1, 1))
    session = QuerySession(HeadsOracle(heads, Arithmetic.FLOAT32))
    try:
        found = recover_attention(session, Request(heads_at_most=4), seed=3)
    except NotRecoveredError:
        return
    total = v[0] + v[1]
    merged = [((v[0] * w[0] + v[1] * w[1]) / total, total), (w[2], v[2])]
    truth = merged if found.heads.count == 2 else list(zip(w, v, strict=True))
    assert found.heads.count == len(truth)
    precision = found.estimate.precision
    for h in range(found.heads.count):
        W, value = found.heads.W[h, 0, 0], found.heads.v[h, 0]
        true_w, true_v = min(truth, key=lambda each: abs(each[0] - W))
        assert abs(W - true_w) <= 2.0 ** -precision.W[h] * abs(true_w)
        assert abs(value - true_v) <= 2.0 ** -precision.v[h] * abs(true_v)
