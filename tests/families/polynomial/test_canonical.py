"""Canonical forms, comparison and fibers of given weights."""

import importlib.util
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.canonical import canonical
from fiberscope.analysis.compare import compare
from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.canonical import canonical_form, quadratic_decomposition
from fiberscope.families.polynomial.comparison import Relation, compare_networks
from fiberscope.families.polynomial.fiber import fiber, kruskal_rank
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.weights import WeightedNetwork
from fiberscope.verdict import Outcome


def exact(matrices, degrees=2, biases=None, **options):
    widths = [len(matrices[0][0]), *(len(matrix) for matrix in matrices)]
    architecture = Architecture.build(widths, degrees, bias=biases is not None, **options)
    point = {}
    for layer, matrix in enumerate(matrices, start=1):
        point[f"W{layer}"] = RATIONALS.array(matrix)
        if biases is not None:
            point[f"b{layer}"] = RATIONALS.array(biases[layer - 1])
    return WeightedNetwork(PolynomialNetwork(architecture), point, True)


def floating(network):
    values = {name: array.astype(float) for name, array in network.parameters.items()}
    return WeightedNetwork(network.family, values, False)


SQUARE = [[1, 1], [1, -1]]
ONE = [[1, 0], [0, 1]]
HALF = [["1/2", "1/2"], ["1/2", "-1/2"]]


def test_random_networks_and_moves():
    """The benchmark's check; it runs on 10,000 networks there."""
    path = Path(__file__).parents[3] / "benchmarks" / "polynomial_canonical.py"
    spec = importlib.util.spec_from_file_location("polynomial_canonical", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    failures = [module.failure(np.random.default_rng([1, number])) for number in range(200)]
    assert not [failure for failure in failures if failure]


def test_scaling_comes_after_the_layer_before_is_sorted():
    """The trap: a row scaled by its first entry before its inputs are sorted."""
    first = exact([[[2, 1], [1, 3]], [[3, 5], [1, 2]], [[1, 4]]], degrees=(3, 3))
    second = exact([[[1, 3], [2, 1]], [[2, 1], [5, 3]], [[4, 1]]], degrees=(3, 3))
    forms = [canonical_form(n.family, n.parameters).parameters for n in (first, second)]
    for name in forms[0]:
        assert forms[0][name].tolist() == forms[1][name].tolist()


def test_superfluous_neurons_go():
    network = exact(
        [[[1, 2], [2, 4], [0, 0], [1, 1], [3, 3]], [[1, 1, 7, 2, 0], [0, 1, 5, 1, 0]]], degrees=3
    )
    form = canonical_form(network.family, network.parameters)
    assert form.widths == (2, 2, 2)
    assert (form.inactive, form.redundant, form.collinear) == (2, 0, 1)
    assert form.moves is None
    # (x + 2y)^3 with 1 + 8 and 8; (x + y)^3 with 2 and 1.
    assert form.parameters["W1"][:2].tolist() == [[1, 1], [1, 2]]
    assert form.parameters["W2"][:, :2].tolist() == [[2, 9], [1, 8]]


def test_inequivalent_networks_with_one_function():
    first = exact([ONE, SQUARE, ONE], degrees=(2, 2))
    second = exact([SQUARE, HALF, [[1, 0], [1, -1]]], degrees=(2, 2))
    forms = [canonical_form(n.family, n.parameters).parameters for n in (first, second)]
    assert any(forms[0][n].tolist() != forms[1][n].tolist() for n in forms[0])
    found = compare_networks(first, second)
    assert found.outcome is Outcome.SAME
    assert found.relation is Relation.IDENTITY
    assert "proved" in found.certainty
    assert not found.witness


def test_dependent_features():
    rows = [[1, 0], [0, 1], [1, 1], [1, -1]]
    first, second = (
        exact([rows, [[1, 2, 3, 4], [1, 1, 1, 1]]]),
        exact([rows, [[3, 4, 2, 3], [1, 1, 1, 1]]]),
    )
    found = compare_networks(first, second)
    assert (found.outcome, found.relation) == (Outcome.SAME, Relation.IDENTITY)
    report = fiber(first)
    assert report.dependent_features == (1,)
    assert report.identifiable is False
    assert report.local_freedom > 0


def test_a_difference_comes_with_a_point():
    first = exact([ONE, [[1, 1]]], degrees=3)
    second = exact([ONE, [[1, "1001/1000"]]], degrees=3)
    found = compare_networks(first, second)
    assert found.outcome is Outcome.DIFFERENT
    x, y = found.point
    assert found.first_value == (x**3 + y**3,)
    assert found.second_value == (x**3 + Fraction(1001, 1000) * y**3,)
    assert found.first_value != found.second_value
    rounded = compare_networks(floating(first), floating(second))
    assert rounded.outcome is Outcome.DIFFERENT
    x, y = rounded.point
    assert rounded.first_value[0] == pytest.approx(x**3 + y**3)


def test_rounding_that_may_or_may_not_matter_is_undecided():
    first = exact([ONE, [[1, 1]]], degrees=3)
    nudged = {name: array.copy() for name, array in floating(first).parameters.items()}
    nudged["W2"][0, 0] += 1e-9
    found = compare_networks(floating(first), WeightedNetwork(first.family, nudged, False))
    assert found.outcome is Outcome.UNDECIDED


def test_many_monomials_are_compared_with_a_probability():
    first = exact([[[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]], SQUARE, [[1, 2]]], degrees=(4, 4))
    second = exact(
        [[[5, 4, 3, 2, 1], [1, 2, 3, 4, 5]], [[1, 2], [1, -1]], [[1, 2]]], degrees=(4, 4)
    )
    extra = exact(
        [[[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 2, 3, 4, 5]], [[1, 1, 0], [1, -1, 0]], [[1, 2]]],
        degrees=(4, 4),
    )
    assert compare_networks(first, second).outcome is Outcome.DIFFERENT
    found = compare_networks(first, extra)
    assert (found.outcome, found.relation) == (Outcome.SAME, Relation.REDUCTION)
    assert "probability" in found.certainty


def test_witness_is_exact_and_reapplied():
    rng = np.random.default_rng(0)
    network = exact([[[1, 2, 0], [3, -1, 1], [2, 2, 5]], [[1, 2, 3], [2, -1, 1]]], degrees=2)
    family = network.family
    point = network.parameters
    for symmetry in family.symmetries():
        element = symmetry.random(rng)
        if "rescalings" in symmetry.name:
            element = RATIONALS.array([-2, "1/3", 5])
        point = symmetry.act(element, point)
    found = compare_networks(network, WeightedNetwork(family, point, True))
    assert found.relation is Relation.SYMMETRY
    carried = found.carry(network.parameters)
    assert all(carried[name].tolist() == point[name].tolist() for name in point)


def test_rotated_last_layer_is_one_fiber():
    network = exact([[[1, 2, 0], [3, -1, 1]], [[2, -3]]])
    rotation = next(s for s in network.family.symmetries() if "rotations" in s.name)
    skew = RATIONALS.array([[0, 1], [-1, 0]])
    turned = rotation.act((skew,), network.parameters)
    assert turned["W1"].tolist() != network.parameters["W1"].tolist()
    found = compare_networks(network, WeightedNetwork(network.family, turned, True))
    assert found.relation is Relation.SYMMETRY


def test_quadratic_forms_without_a_diagonal():
    form = RATIONALS.array([[0, 1, 2], [1, 0, 0], [2, 0, 0]])
    rows, weights = quadratic_decomposition(form, 3, True)
    assert len(rows) == 2
    assert ((rows.T * weights) @ rows == form).all()
    rows, weights = quadratic_decomposition(form.astype(float), 3, False)
    assert np.allclose((rows.T * weights) @ rows, form.astype(float))


def test_analysis_entry_points():
    network = exact([[[2, 1], [1, 3]], [[1, 1], [0, 2]]], degrees=3)
    family, rng = network.family, np.random.default_rng(0)
    design = family.design(5, rng)
    result = canonical(family, network.parameters, design, RATIONALS)
    assert result.deviation == 0
    assert result.moved
    assert not canonical(family, result.parameters, design, RATIONALS).moved
    rounded = canonical(family, floating(network).parameters, design)
    assert rounded.deviation < 1e-14
    assert compare(family, network.parameters, result.parameters, design).outcome is Outcome.SAME
    with pytest.raises(InputError, match="do not fit"):
        canonical(family, {"W1": network.parameters["W1"]}, design)
    with pytest.raises(InputError, match="second point does not fit"):
        compare(family, network.parameters, {}, design)
    other = exact([ONE, [[1, 1]]], degrees=3)
    with pytest.raises(InputError, match="different numbers of inputs or outputs"):
        compare_networks(network, other)


def test_float_and_exact_forms_agree():
    network = exact([[[1, 2, 0], [3, -1, 1], [2, 2, 5]], [[1, 2, 3], [2, -1, 1]]], degrees=3)
    precise = canonical_form(network.family, network.parameters)
    rounded = canonical_form(network.family, floating(network).parameters)
    # Different pivots, same function and same number of neurons.
    points = np.random.default_rng(0).standard_normal((4, 3))
    values = [
        network.family.values({n: a.astype(float) for n, a in form.parameters.items()}, points)
        for form in (precise, rounded)
    ]
    assert np.allclose(*values)
    assert precise.widths == rounded.widths


def test_identifiable_weights():
    network = exact([[[1, 0, 1], [0, 1, 1], [1, 1, 0]], [[1, 2, 3]]], degrees=3)
    report = fiber(network)
    assert report.identifiable is True
    assert "Prop. 35" in report.source
    assert (report.orbit, report.jacobian_rank, report.local_freedom) == (3, 9, 0)
    collinear = exact([[[1, 0, 1], [-2, 0, -2], [1, 1, 0]], [[1, 2, 3]]], degrees=3)
    report = fiber(collinear)
    assert report.identifiable is False
    assert (report.neurons[0].kind, report.neurons[0].factor) == ("collinear", -2)
    # Parallel but unequal rows are fine for an activation that is no monomial.
    wide = exact([[[1], [2]], [[1, 1]]], degrees=None, activation=f"(z^2+z)^{9}")
    assert fiber(wide).identifiable is True
    twins = exact([[[1], [1]], [[1, 1]]], degrees=None, activation=f"(z^2+z)^{9}")
    assert fiber(twins).identifiable is False
    assert fiber(twins).neurons[0].kind == "redundant"


def test_unbalanced_outputs_do_not_fool_the_local_rank():
    """A narrow layer before many outputs: a few inputs give most values, but not the rank."""
    rng = np.random.default_rng(3)
    family = PolynomialNetwork(Architecture.build((5, 2, 1, 6), 2))
    point = {
        name: RATIONALS.array(rng.integers(1, 9, shape))
        for name, shape in family.space.shapes.items()
    }
    precise = fiber(WeightedNetwork(family, point, True))
    rounded = fiber(floating(WeightedNetwork(family, point, True)))
    assert precise.jacobian_rank == rounded.jacobian_rank
    # Quadratic forms of rank two, squared, times a vector: 9 + 6 - 1.
    assert precise.jacobian_rank == 14


def test_kruskal_rank():
    rows = RATIONALS.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert kruskal_rank(rows, True) == 2
    assert kruskal_rank(rows.astype(float), False) == 2
    assert kruskal_rank(rows[[0, 1, 3]], True) == 3
    assert kruskal_rank(RATIONALS.array([[0, 0], [1, 0]]), True) == 0
