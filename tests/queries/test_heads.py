import math

import numpy as np
import pytest

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.functions import attention


def draw(seed, H=3, d=3):
    rng = np.random.default_rng(seed)
    return AttentionHeads(rng.standard_normal((H, d, d)), rng.standard_normal((H, d)))


def by_definition(heads, X):
    return math.fsum(attention(W, v, X) for W, v in zip(heads.W, heads.v, strict=True))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_evaluation_follows_the_definition(length):
    heads = draw(0)
    X = np.random.default_rng(1).standard_normal((length, 3))
    assert heads.evaluate(X) == pytest.approx(by_definition(heads, X), rel=1e-13)


def test_ball_evaluation_encloses_the_definition_in_rationals_and_mpmath():
    pytest.importorskip("flint")
    import mpmath

    heads = draw(2)
    X = np.random.default_rng(3).standard_normal((4, 3))
    ball = HeadsOracle(heads, Arithmetic.BALLS).answer([X], bits=200)[0]
    with mpmath.workdps(70):
        total = mpmath.mpf(0)
        for W, v in zip(heads.W.tolist(), heads.v.tolist(), strict=True):
            rows = X.tolist()
            scores = [
                sum(mpmath.mpf(x[i]) * W[i][j] * rows[-1][j] for i in range(3) for j in range(3))
                for x in rows
            ]
            weights = [mpmath.exp(s) for s in scores]
            values = [sum(mpmath.mpf(a) * b for a, b in zip(x, v, strict=True)) for x in rows]
            total += sum(w * u for w, u in zip(weights, values, strict=True)) / sum(weights)
        text = mpmath.nstr(total, 60)
    from flint import arb, ctx

    ctx.prec, before = 240, ctx.prec
    try:
        assert ball.overlaps(arb(text))
        assert ball.rad() < arb(2) ** -180
    finally:
        ctx.prec = before


def test_canonical_form_merges_drops_and_orders():
    first, second = draw(4, H=2).W
    v = np.array([[1.0, 0, 0], [0, 3.0, 0], [0.5, 0, 0], [0, -3.0, 0], [0, 0, 2.0]])
    zero = np.zeros((3, 3))
    heads = AttentionHeads(np.stack([first, second, first, second, zero]), v)
    found = heads.canonical()
    assert np.array_equal(found.W, np.stack([zero, first]))
    assert np.array_equal(found.v, [[0, 0, 2.0], [1.5, 0, 0]])
    X = np.random.default_rng(5).standard_normal((6, 3))
    assert found.evaluate(X) == pytest.approx(heads.evaluate(X), rel=1e-12)


def test_canonical_form_does_not_depend_on_the_order():
    heads = draw(6, H=4)
    turned = AttentionHeads(heads.W[[2, 0, 3, 1]], heads.v[[2, 0, 3, 1]])
    a, b = heads.canonical(), turned.canonical()
    assert np.array_equal(a.W, b.W) and np.array_equal(a.v, b.v)
    again = a.canonical()
    assert np.array_equal(a.W, again.W) and np.array_equal(a.v, again.v)


def test_canonical_tolerance():
    W = draw(7, H=1).W[0]
    heads = AttentionHeads(np.stack([W, W + 1e-9]), np.array([[1.0, 0, 0], [-1.0, 1e-9, 0]]))
    assert heads.canonical().count == 2
    assert heads.canonical(1e-7).count == 0


def test_canonical_form_in_balls():
    pytest.importorskip("flint")
    from fiberscope.numbers.balls import Balls

    plain = draw(8, H=2)
    W = np.stack([plain.W[0], plain.W[1], plain.W[0]])
    v = np.stack([plain.v[0], plain.v[1], -plain.v[0]])
    system = Balls(100)
    found = AttentionHeads(system.array(W), system.array(v)).canonical()
    assert found.count == 1
    assert np.array_equal(found.middle().W[0], plain.W[1])


def test_no_heads_are_the_zero_function():
    nothing = AttentionHeads(np.zeros((0, 2, 2)), np.zeros((0, 2)))
    assert nothing.evaluate(np.ones((3, 2))) == 0
    assert nothing.canonical().count == 0


def test_size_bounds_the_answer():
    heads = draw(9)
    X = np.random.default_rng(10).standard_normal((20, 5, 3))
    assert np.all(np.abs(heads.evaluate_many(X)) * 3 <= heads.size(X))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="no"):
        AttentionHeads(np.zeros((2, 3, 3)), np.zeros((1, 3)))
