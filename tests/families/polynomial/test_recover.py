"""Recovery from queries: the hidden weights are the oracle."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.canonical import canonical_form
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.oracle import Oracle, load_oracle, network_oracle
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.recover import recover_shallow
from fiberscope.families.polynomial.search import recover
from fiberscope.families.polynomial.weights import WeightedNetwork


def hidden(widths, degrees, seed=0, **options):
    family = PolynomialNetwork(Architecture.build(widths, degrees, **options))
    rng = np.random.default_rng(seed)
    values = [n for n in range(-9, 10) if n]
    point = {
        name: RATIONALS.array(rng.choice(values, shape)) / int(rng.integers(1, 5))
        for name, shape in family.space.shapes.items()
    }
    return WeightedNetwork(family, point, True)


def same(network, found):
    form = canonical_form(network.family, network.parameters, decompose=False).parameters
    return all(form[name].tolist() == found.parameters[name].tolist() for name in form)


@pytest.mark.parametrize(
    ("widths", "degree"),
    [
        ((3, 3, 1), 3),
        ((5, 5, 3), 2),
        ((4, 9, 1), 5),
        ((6, 6, 1), 3),
        ((3, 6, 2), 4),
        ((3, 1, 1), 2),
        ((2, 4, 3), 6),
    ],
)
def test_shallow_networks_exactly(widths, degree):
    network = hidden(widths, degree)
    found = recover_shallow(network_oracle(network, True), network.architecture)
    assert found.recovered
    assert same(network, found)
    assert found.precision_bits == float("inf")
    # Interpolation, and the verification at fresh inputs (again when a contraction was unlucky).
    assert found.queries <= comb(widths[0] + degree - 1, degree) + 6 * 4


@pytest.mark.parametrize("size", [3, 5, 8])
def test_shallow_networks_in_float64(size):
    bits = []
    for seed in range(10):
        family = PolynomialNetwork(Architecture.build((size, size, 1), 3))
        point = family.generic(np.random.default_rng(seed))
        oracle = network_oracle(WeightedNetwork(family, point, False), False)
        found = recover_shallow(oracle, family.architecture)
        assert found.recovered
        bits.append(found.precision_bits)
        x = np.random.default_rng(99).standard_normal((5, size))
        truth, value = family.values(point, x), family.values(found.parameters, x)
        assert (
            np.abs(truth - value).max() <= 2.0 ** (8 - found.precision_bits) * np.abs(truth).max()
        )
    assert np.median(bits) > 38


def test_fewer_neurons_than_asked_for():
    network = hidden((3, 2, 2), 3)
    oracle = network_oracle(network, True)
    found = recover_shallow(oracle, Architecture.build((3, 3, 2), 3))
    assert found.recovered
    assert found.parameters["W1"][2].tolist() == [0, 0, 0]
    assert found.parameters["W1"][:2].tolist() == sorted(found.parameters["W1"][:2].tolist())


@pytest.mark.parametrize(("widths", "degree"), [((4, 5, 1), 3), ((3, 4, 2), 3)])
def test_identifiable_but_out_of_reach_is_undecided(widths, degree):
    network = hidden(widths, degree)
    found = recover_shallow(network_oracle(network, True), network.architecture)
    assert not found.recovered
    assert found.to_dict()["outcome"] == "UNDECIDED"
    assert "identifiable does not mean recoverable" in found.reason


@pytest.mark.parametrize(
    ("widths", "degrees", "options"),
    [
        ((3, 3, 2, 2), 2, {}),
        ((3, 3, 3, 3), 2, {}),
        ((3, 4, 2), 3, {}),
        ((2, 2, 2), None, {"activation": "z^3+z^2"}),
        ((2, 2, 2), 2, {"bias": True}),
    ],
)
def test_search_with_exact_verification(widths, degrees, options):
    network = hidden(widths, degrees, seed=1, **options)
    found = recover(network_oracle(network, True), network.architecture, seconds=60)
    assert found.recovered, found.reason
    x = RATIONALS.array(np.random.default_rng(5).integers(-50, 50, (6, widths[0])))
    family = network.family
    truth = family.values(network.parameters, x, RATIONALS)
    assert (truth == family.values(found.parameters, x, RATIONALS)).all()


def test_a_search_without_success_is_undecided():
    network = hidden((4, 4, 4, 2), 3)
    found = recover(network_oracle(network, True), network.architecture, seconds=0.2)
    assert not found.recovered
    assert found.parameters is None
    assert "within 0.2 s" in found.reason


def test_a_function_that_is_no_such_network_is_undecided():
    oracle = Oracle(lambda x: [x[0] ** 3 + x[1]], 2, 1, True)
    found = recover(oracle, Architecture.build((2, 2, 1), 3), seconds=0.2)
    assert not found.recovered


def test_bad_oracles_are_a_sentence():
    architecture = Architecture.build((2, 2, 1), 3)
    for function, message in [
        (lambda x: [1, 2], "2 numbers where 1 were expected"),
        (lambda x: [0.5], "where a rational number is needed"),
        (lambda x: ["a"], "where a rational number is needed"),
    ]:
        with pytest.raises(InputError, match=message):
            recover(Oracle(function, 2, 1, True), architecture, seconds=0)
    with pytest.raises(InputError, match="no finite number"):
        recover(Oracle(lambda x: [float("nan")], 2, 1, False), architecture, seconds=0)
    for text, message in [
        ("nothing", "neither a weight file"),
        ("no_such_module:f", "cannot be loaded"),
        ("math:pi", "is not a function"),
    ]:
        with pytest.raises(InputError, match=message):
            load_oracle(text)
    assert load_oracle("math:sqrt")(4) == 2
    assert Oracle(lambda x: x[0] / 3, 1, 1, True)(RATIONALS.array([[1]]))[0, 0] == Fraction(1, 3)
