from fractions import Fraction
from math import factorial

import numpy as np
import pytest

from fiberscope.numbers import DualNumbers, UnsupportedError
from fiberscope.numbers.power_series import JET_PRIME, PowerSeries, Series

LENGTH = 9


def random_series(system: PowerSeries, shape: tuple[int, ...], seed: int, start: int = 0) -> Series:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(1, 50, shape) for _ in range(system.length)]
    parts = [np.zeros_like(p) if k < start else p for k, p in enumerate(parts)]
    return system.from_coefficients(parts)


def same(modular: Series, rational: Series) -> bool:
    """The residues of rational coefficients, recomputed one by one."""
    residues = [
        value.numerator * pow(value.denominator, -1, JET_PRIME) % JET_PRIME
        for value in rational.coefficients.reshape(-1)
    ]
    return modular.coefficients.reshape(-1).tolist() == residues


@pytest.mark.parametrize("operation", ["+", "-", "*", "/", "@", "exp", "sum", "const"])
def test_prime_field_is_the_residue_of_the_rationals(operation: str) -> None:
    results = []
    for modulus in (JET_PRIME, None):
        system = PowerSeries(LENGTH, modulus)
        a, b = random_series(system, (2, 3, 3), 1), random_series(system, (3, 3), 2)
        result = {
            "+": lambda a=a, b=b: a + b,
            "-": lambda a=a, b=b: 3 - a - b,
            "*": lambda a=a, b=b: a * b,
            "/": lambda a=a, b=b: 2 / b + a / b,
            "@": lambda a=a, b=b: a @ b.swapaxes(0, 1),
            "exp": lambda s=system: s.exp(random_series(s, (2, 2), 3, start=1)),
            "sum": lambda a=a: a.sum((0, 2), keepdims=True).reshape(3),
            "const": lambda a=a: Fraction(1, 3) * a - 0.5,
        }[operation]()
        results.append(result)
    assert same(*results)


def test_known_series() -> None:
    system = PowerSeries(8, None)
    t = system.from_coefficients([np.array(0), np.array(1)])
    geometric = 1 / (1 - t)
    assert geometric.coefficients.tolist() == [1] * 8
    assert system.exp(t).coefficients.tolist() == [Fraction(1, factorial(k)) for k in range(8)]


def test_square_root() -> None:
    system = PowerSeries(7)
    a = random_series(system, (4,), 5)
    root = system.sqrt(a * a)
    squares = (root * root).coefficients
    assert np.array_equal(squares, (a * a).coefficients)
    with pytest.raises(UnsupportedError):
        system.sqrt(system.array(np.array([-1])))


def test_duals_over_series_differentiate() -> None:
    # d/dp of p t / (1 + p t) is t / (1 + p t)^2, computed here without duals.
    system = PowerSeries(6)
    duals = DualNumbers(system)
    t = system.from_coefficients([np.array([0]), np.array([1])])
    p = duals.variables(system.array(np.array([7])))
    derivative = (p * t / (p * t + 1)).tangent[0]
    expected = t / ((7 * t + 1) * (7 * t + 1))
    assert np.array_equal(derivative.coefficients, expected.coefficients)


def test_refusals() -> None:
    system = PowerSeries(4)
    with pytest.raises(UnsupportedError):
        system.exp(system.array(np.array([1])))
    with pytest.raises(ZeroDivisionError):
        1 / system.zeros((1,))
    with pytest.raises(ZeroDivisionError):
        system.array(Fraction(1, JET_PRIME))
    with pytest.raises(UnsupportedError):
        system.to_float64(system.zeros((1,)))
