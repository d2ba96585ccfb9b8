from fractions import Fraction

import numpy as np
import pytest
import sympy

from fiberscope.errors import InputError
from fiberscope.families.deep_attention import NORMALIZERS, CustomNormalizer
from fiberscope.families.deep_attention.normalizers import normalizer
from fiberscope.numbers import FLOAT64

S = sympy.Symbol("s")
FORMULAS = {
    "softmax": sympy.exp(S),
    "cosh": sympy.cosh(S),
    "exp-square": sympy.exp(S**2),
    "one-plus-square": 1 + S**2,
    "sigmoid": 1 / (1 + sympy.exp(-S)),
    "softplus": sympy.log(1 + sympy.exp(S)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_taylor_data_against_sympy(name: str) -> None:
    phi, formula = NORMALIZERS[name], FORMULAS[name]
    lam = 1 / sympy.log(2)
    for mine, f in [
        (phi.taylor(6), formula / formula.subs(S, 0)),
        (phi.log_taylor(6), sympy.log(formula / formula.subs(S, 0))),
    ]:
        for k, constants in enumerate(mine):
            value = sum(
                sympy.Rational(c.numerator, c.denominator) * lam**j for j, c in enumerate(constants)
            )
            expected = sympy.diff(f, S, k).subs(S, 0) / sympy.factorial(k)
            assert abs(sympy.N(value - expected, 30)) < 1e-25


@pytest.mark.parametrize("name", FORMULAS)
def test_values_derivatives_and_parities(name: str) -> None:
    phi, formula = NORMALIZERS[name], FORMULAS[name]
    s = np.linspace(-3, 3, 13)
    value, slope = (sympy.lambdify(S, f, "numpy") for f in (formula, sympy.diff(formula, S)))
    assert np.allclose(phi.value(s, FLOAT64), value(s), rtol=1e-13)
    assert np.allclose(phi.derivative(s, FLOAT64), slope(s), rtol=1e-12, atol=1e-14)
    assert phi.even == np.allclose(value(s), value(-s))
    h = np.log(value(s) / value(np.zeros(1)))
    assert phi.log_odd == np.allclose(h, -h[::-1])


def test_degrees() -> None:
    degrees = {name: phi.contact_degree for name, phi in NORMALIZERS.items()}
    assert degrees == {
        "softmax": 1,
        "cosh": 2,
        "exp-square": 2,
        "one-plus-square": 2,
        "softplus": 1,
        "sigmoid": 1,
    }
    assert not NORMALIZERS["softmax"].has_curvature
    assert NORMALIZERS["softplus"].has_slope and NORMALIZERS["softplus"].has_curvature
    assert NORMALIZERS["sigmoid"].first_degree(parity=0) == 2
    assert normalizer("exp") is NORMALIZERS["softmax"]


def test_custom_normalizer() -> None:
    phi = CustomNormalizer("cubic", lambda s: 2 + s**3, lambda s: 3 * s**2, [2, 0, 0, 1])
    assert phi.contact_degree == 3
    assert phi.taylor(3)[3] == (Fraction(1, 2),)
    with pytest.raises(InputError, match="degree 4 is needed"):
        phi.taylor(4)
    with pytest.raises(InputError, match="constant"):
        CustomNormalizer("flat", lambda s: s, lambda s: s, [1, 0])
    with pytest.raises(InputError, match="not positive"):
        CustomNormalizer("low", lambda s: s, lambda s: s, [0, 1])
    with pytest.raises(InputError, match="declared even"):
        CustomNormalizer("odd", lambda s: s, lambda s: s, [1, 1], even=True)
    with pytest.raises(InputError, match="no normalizer"):
        normalizer("relu")
