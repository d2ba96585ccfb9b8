import sys
from fractions import Fraction

import numpy as np
import pytest

flint = pytest.importorskip("flint")

from fiberscope.errors import InputError  # noqa: E402
from fiberscope.numbers import DualNumbers  # noqa: E402
from fiberscope.numbers.balls import Balls, ball_precision  # noqa: E402


def test_conversions_are_exact_or_enclose() -> None:
    balls = Balls(100)
    with balls.precision():
        array = balls.array([0.1, 0.25])
        assert array[0].is_exact() and array[0].fmpq() == flint.fmpq(*(0.1).as_integer_ratio())
        third = balls.array([Fraction(1, 3)])[0]
        assert third.contains(flint.fmpq(1, 3)) and not third.is_exact()
        assert balls.array(np.array([3], dtype=np.int64))[0] == 3
        assert balls.array(["0.1"])[0].overlaps(flint.arb(1) / 10)
        assert balls.array(["0.1"])[0].rad() < 1e-29


def test_results_enclose_known_values() -> None:
    balls = Balls(200)
    with balls.precision():
        e = balls.exp(balls.array([1]))[0]
        root = balls.sqrt(balls.array([2]))[0]
        assert e.overlaps(flint.arb.const_e())
        assert e.rad() < 1e-58
        assert (root * root).contains(2)
        assert balls.log1p(balls.array([1]))[0].overlaps(flint.arb.const_log2())


def test_precision_is_put_back() -> None:
    before = flint.ctx.prec
    with ball_precision(333):
        assert flint.ctx.prec == 333
    with pytest.raises(ZeroDivisionError), ball_precision(99):
        1 / 0  # noqa: B018
    assert flint.ctx.prec == before


def test_duals_differentiate_in_balls() -> None:
    balls = Balls(160)
    duals = DualNumbers(balls)
    with balls.precision():
        x = duals.variables(balls.array([0.5, 2]))
        y = (x * x).sum(0) + duals.exp(x)[0]
        assert y.tangent[0].overlaps(1 + flint.arb(0.5).exp())
        assert y.tangent[1].overlaps(flint.arb(4))


def test_matrices_round_trip() -> None:
    balls = Balls(64)
    array = balls.array(np.arange(6).reshape(2, 3))
    again = balls.from_matrix(balls.matrix(array))
    assert again.shape == (2, 3)
    assert balls.to_float64(again).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_missing_flint_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(InputError, match=r"pip install 'fiberscope\[exact\]'"):
        Balls(64)
