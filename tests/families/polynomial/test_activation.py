"""Parsing and properties of activations."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiberscope.errors import InputError
from fiberscope.families.polynomial.activation import (
    Polynomial,
    deltas,
    good_for_two,
    parse_polynomial,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("z^3+z+1", [1, 1, 0, 1]),
        ("(z+1)^3 - 1", [0, 3, 3, 1]),
        ("3/7*x**2", [0, 0, Fraction(3, 7)]),
        ("-z^2 + 0.5 z", [0, Fraction(1, 2), -1]),
        ("2(z-1)(z+1)", [-2, 0, 2]),
        ("z^2/3 - z^2/3", []),
        ("--z", [0, 1]),
        ("7", [7]),
    ],
)
def test_parsing(text, wanted):
    assert parse_polynomial(text) == Polynomial.of(wanted)


@pytest.mark.parametrize(
    "text", ["", "z^", "z^1.5", "z+", "(z", "z)", "z+y", "z/z", "z^3 & 1", "1/0", "z^99999", "*z"]
)
def test_unparsable_text_is_a_sentence(text):
    with pytest.raises(InputError) as caught:
        parse_polynomial(text)
    assert repr(text) in str(caught.value)


coefficients = st.lists(
    st.fractions(min_value=-5, max_value=5, max_denominator=7), min_size=1, max_size=5
)


@settings(deadline=None)
@given(coefficients, coefficients, st.fractions(max_denominator=5, min_value=-3, max_value=3))
def test_text_and_arithmetic(first, second, at):
    p, q = Polynomial.of(first), Polynomial.of(second)

    def value(polynomial, x):
        return sum((c * x**i for i, c in enumerate(polynomial.coefficients)), Fraction(0))

    assert parse_polynomial(str(p)) == p
    assert value(p + q, at) == value(p, at) + value(q, at)
    assert value(p * q, at) == value(p, at) * value(q, at)
    assert value(p(q), at) == value(p, value(q, at))


def test_printed_conditions_for_two():
    assert deltas(parse_polynomial("z^3+z+1")) == (6, 27)
    assert deltas(parse_polynomial("z^3+z^2+z")) == (4, -7)
    assert good_for_two(parse_polynomial("z^3+z+1"))
    assert not good_for_two(parse_polynomial("z^3+1"))
    assert not good_for_two(parse_polynomial("z^2+z"))


def test_shape_of_activations():
    assert parse_polynomial("(z-2)^4+3").is_shifted_monomial
    assert parse_polynomial("z^2+5z+1").is_shifted_monomial
    assert not parse_polynomial("z^3+z").is_shifted_monomial
    assert parse_polynomial("z^3+z").parity == -1
    assert parse_polynomial("z^4+1").parity == 1
    assert parse_polynomial("z^4+z").parity == 0


def test_large_powers_and_roots():
    """Binomial coefficients; a power plus something small is no power."""
    pytest.importorskip("flint")
    power = parse_polynomial("(z+1)^1000")
    assert power.coefficients == tuple(comb(1000, i) for i in range(1001))
    assert power.as_power() == (1000, parse_polynomial("z+1"))
    assert (power + parse_polynomial("z")).as_power()[0] == 1
    inner = parse_polynomial("(z+1)^100+1/3*z")
    assert (inner * inner).as_power() == (2, inner)
    assert power(parse_polynomial("z-1")) == Polynomial.monomial(1000)
    assert inner.power(3) == inner * inner * inner
