"""Polynomial networks keep the contract of all families."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.contract import check_family
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.numbers.balls import Balls
from fiberscope.numbers.prime_field import PrimeField


def network(widths, degrees, **options):
    return PolynomialNetwork(Architecture.build(widths, degrees, **options))


CASES = [
    ((2, 2, 2), 2, {}, True),
    ((3, 3, 2), 2, {}, True),
    ((3, 2, 1), 2, {}, True),
    ((3, 3, 3, 1), 2, {}, True),
    ((2, 3, 2), 4, {}, True),
    ((3, 2, 2, 2), (3, 2), {}, True),
    ((2, 2, 1), 3, {"bias": True}, True),
    ((3, 2, 1), 2, {"bias": True}, True),
    ((2, 2, 1), None, {"activation": "z^3+z^2"}, True),
    ((3, 2, 2), None, {"activation": "z^3+z"}, True),
    ((2, 2, 2), None, {"activation": "z^4+z^2+1"}, True),
    ((2, 2, 1), None, {"activation": "(z+1)^3-1", "bias": True}, True),
    ((2, 2, 2), 2, {"activation": "generic", "bias": True}, True),
    ((2, 3, 1), 3, {"activation": "generic-through-origin"}, True),
    ((2, 3, 2), 2, {}, False),
    ((2, 2), 2, {}, True),
]


@pytest.mark.parametrize(("widths", "degrees", "options", "complete"), CASES)
def test_keeps_the_contract(widths, degrees, options, complete):
    family = network(widths, degrees, **options)
    assert family.complete is complete
    systems = (PrimeField(2_147_483_629), Balls(128))
    report = check_family(family, seed=3, systems=systems)
    assert report.unexplained == 0 or not complete


@pytest.mark.parametrize(
    ("widths", "degrees", "options"),
    [
        ((3, 2, 2, 1), (3, 2), {}),
        ((2, 2, 1), None, {"activation": "(z-1)^3+2", "bias": True}),
        ((2, 2, 2), None, {"activation": "z^3+z"}),
    ],
)
def test_moves_preserve_the_observation_in_prime_fields_and_balls(widths, degrees, options):
    """Exact elements act on exact weights; then every number system sees the same function."""
    family = network(widths, degrees, **options)
    rng = np.random.default_rng(7)

    def fractions(shape):
        values = rng.choice([-3, -2, -1, 1, 2, 3], shape)
        return np.vectorize(lambda n: Fraction(int(n), 2), otypes=[object])(values)

    point = {name: fractions(shape) for name, shape in family.space.shapes.items()}
    moved = point
    for symmetry in family.symmetries():
        if "permutations" in symmetry.name:
            element = symmetry.random(rng)
        elif "rotations" in symmetry.name:
            upper = np.triu(fractions((symmetry.size,) * 2), 1)
            element = (upper - upper.T,)
        elif "signs" in symmetry.name:
            element = np.array([Fraction(-1), Fraction(1)])
        else:
            element = fractions(symmetry.size)
        moved = symmetry.act(element, moved)
    assert any((moved[name] != point[name]).any() for name in point)
    design = family.design(4, rng)
    field = PrimeField(2_147_483_629)
    values = [
        family.observe({n: field.array(v) for n, v in p.items()}, design, field).values.tolist()
        for p in (point, moved)
    ]
    assert values[0] == values[1]
    balls = Balls(256)
    with balls.precision():
        enclosed = [
            family.observe({n: balls.array(v) for n, v in p.items()}, design, balls).reshape(-1)
            for p in (point, moved)
        ]
        assert all(a.overlaps(b) and a.rad() < 1e-40 for a, b in zip(*enclosed, strict=True))


@pytest.mark.parametrize(
    ("widths", "degrees", "options"),
    [
        ((2, 3, 2), 3, {}),
        ((2, 2, 1), None, {"activation": "2/7*z^3+z-1/3", "bias": True}),
    ],
)
def test_prime_fields_and_balls_agree_with_fractions(widths, degrees, options):
    """Exact values by Python fractions are the oracle."""
    family = network(widths, degrees, **options)
    rng = np.random.default_rng(5)
    draw = np.vectorize(lambda n: Fraction(int(n), 8), otypes=[object])
    point = {
        name: draw(rng.integers(-20, 20, shape)) for name, shape in family.space.shapes.items()
    }
    design = family.design(4, rng)

    def by_hand(x):
        values = [Fraction(float(v)) for v in x]
        for layer in range(1, family.architecture.layers + 1):
            rows = point[f"W{layer}"]
            values = [
                sum((w * v for w, v in zip(r, values, strict=True)), Fraction(0)) for r in rows
            ]
            if family.architecture.bias:
                values = [v + b for v, b in zip(values, point[f"b{layer}"], strict=True)]
            if layer < family.architecture.layers:
                sigma = family.activations[layer - 1]
                values = [
                    sum((c * v**i for i, c in enumerate(sigma.coefficients)), Fraction(0))
                    for v in values
                ]
        return values

    exact = [value for x in design.inputs for value in by_hand(x)]
    field = PrimeField(1_000_003)
    found = family.observe({n: field.array(v) for n, v in point.items()}, design, field)
    p = field.prime
    assert found.values.tolist() == [v.numerator * pow(v.denominator, -1, p) % p for v in exact]
    balls = Balls(200)
    with balls.precision():
        enclosed = family.observe({n: balls.array(v) for n, v in point.items()}, design, balls)
        for ball, value in zip(enclosed.reshape(-1), exact, strict=True):
            assert ball.contains(balls.number(value))
            assert ball.rad() < 1e-30
