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
from fiberscope.families.polynomial.dimension import dimension
from fiberscope.families.polynomial.fiber import fiber, kruskal_rank
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.theorems import Notion
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


def rounded(matrices, degrees):
    return floating(exact(matrices, degrees))


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


@pytest.mark.parametrize(
    ("factor", "degree"), [(0.1, 9), (1e-4, 3), (0.25, 16), (-1e-3, 5), (1e5, 4)]
)
def test_rescaled_neurons_stay_alive_and_related_in_float64(factor, degree):
    """Row times c, output divided by c^r: a neuron rescaling, whatever the sizes."""
    first = rounded([[[1, 2], [1, 3]], [[1, 1]]], degree)
    second = rounded([[[1, 2], [factor, 3 * factor]], [[1, factor**-degree]]], degree)
    found = compare_networks(first, second)
    assert (found.outcome, found.relation) == (Outcome.SAME, Relation.SYMMETRY)
    assert "numerical" in found.certainty
    carried = found.carry(first.parameters)
    for name, target in second.parameters.items():
        assert np.allclose(carried[name], target, rtol=1e-10, atol=0)
    for network in (first, second):
        report = fiber(network)
        assert not report.neurons
        assert (
            report.jacobian_rank == fiber(exact([[[1, 2], [1, 3]], [[1, 1]]], degree)).jacobian_rank
        )


def test_small_rows_are_not_zero():
    report = fiber(rounded([[[1.0, 2.0], [1e-12, 3e-12]], [[1, 3e30]]], 3))
    assert not report.neurons
    assert (report.jacobian_rank, report.local_freedom) == (4, 0)


def test_a_neuron_below_rounding_is_undecided_not_inactive():
    report = fiber(rounded([[[1.0, 2.0], [1e-12, 3e-12]], [[1, 1]]], 3))
    assert not report.neurons
    assert report.undecided
    assert report.identifiable is None
    assert "contributes less" in report.why


def test_a_small_neuron_is_not_forgotten_when_functions_are_compared():
    """x^3 + (y / 10^5)^3 and x^3 + 2 (y / 10^5)^3: 2 and 3 at (1, 10^5)."""
    rows = [[1.0, 0.0], [0.0, 1e-5]]
    found = compare_networks(rounded([rows, [[1, 1]]], 3), rounded([rows, [[1, 2]]], 3))
    assert found.outcome is Outcome.DIFFERENT
    x, y = found.point
    assert found.first_value[0] == pytest.approx(x**3 + (1e-5 * y) ** 3)
    assert found.second_value[0] == pytest.approx(x**3 + 2 * (1e-5 * y) ** 3)
    # Nowhere alone: the same inputs feed a large neuron.
    rows = [[1.0, 1.0], [1e-5, -1e-5]]
    found = compare_networks(rounded([rows, [[1, 1]]], 3), rounded([rows, [[1, 2]]], 3))
    assert found.outcome is not Outcome.SAME


def test_float_identities_need_exact_equality_of_the_stored_numbers():
    half = [[0.5, 0.5], [0.5, -0.5]]
    first = rounded([ONE, SQUARE, ONE], (2, 2))
    found = compare_networks(first, rounded([SQUARE, half, [[1, 0], [1, -1]]], (2, 2)))
    assert (found.outcome, found.relation) == (Outcome.SAME, Relation.IDENTITY)
    assert "exact rationals" in found.certainty
    # 0.3 / 3 is not 0.1 in binary: true over the reals, beyond what float64 can tell.
    turned = rounded(
        [[[3.0, 3.0], [3.0, -3.0]], [[1 / 18, 1 / 18], [1 / 18, -1 / 18]], ONE], (2, 2)
    )
    other = rounded([ONE, SQUARE, [[1, 0], [1, -1]]], (2, 2))
    assert compare_networks(other, turned).outcome is Outcome.UNDECIDED


def test_near_ties_are_undecided():
    """Two distinct lines, so rank 4 exactly; the fourth singular value is about 1e-16."""
    rows = [[1.0, 2.0], [1.0, 2.00000003]]
    report = fiber(rounded([rows, [[1, 3]]], 3))
    assert report.undecided
    assert (report.identifiable, report.jacobian_rank, report.local_freedom) == (None, None, None)
    assert "almost proportional" in report.why
    precise = fiber(exact([[["1", "2"], ["1", "200000003/100000000"]], [[1, 3]]], 3))
    assert (precise.identifiable, precise.jacobian_rank) == (True, 4)


def test_collinear_up_to_rounding():
    report = fiber(rounded([[[0.1, 0.3], [0.2 / 3, 0.2]], [[1.0, 1.0]]], 3))
    assert report.neurons[0].kind == "collinear"
    assert report.identifiable is False


@pytest.mark.parametrize("options", [{"degrees": 3}, {"degrees": None, "activation": "z^3+z+1"}])
def test_too_many_parameters_make_every_fiber_infinite(options):
    """Four cubic monomials in two variables (and two linear ones): 6 or 9 directions do not fit."""
    network = exact([[[1, 2], [2, 5], [3, -1]], [[1, 3, 2]]], **options)
    report = fiber(network)
    assert report.local_freedom > 0
    assert report.identifiable is False
    assert "upper bound" in report.why


def test_rotations_make_a_quadric_unidentifiable_in_both_reports():
    architecture = Architecture.build((2, 2, 1), 2)
    report = fiber(exact([[[1, 2], [3, 1]], [[1, 2]]], 2))
    assert report.identifiable is False
    assert any("rotations" in acting.name for acting in report.symmetries)
    assert dimension(architecture).notions[Notion.FINITE].answer is False
    assert "permutations and rescalings" in Notion.FINITE.value


def test_cancelling_neurons_are_not_called_the_same_as_none():
    """10^13 (l^3 - m^3) with l - m = 2e-13 y is about -6 l^2 y, not zero."""
    rows = [[1.0, 2.0], [1.0, 2.0 + 2e-13], [1.0, 0.0]]
    first = rounded([rows, [[1e13, -1e13, 1.0]]], 3)
    second = rounded([rows, [[0.0, 0.0, 1.0]]], 3)
    assert compare_networks(first, second).outcome is not Outcome.SAME
    # Exactly equal rows cancel exactly.
    twins = [[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]]
    found = compare_networks(rounded([twins, [[3.0, -3.0, 1.0]]], 3), second)
    assert found.outcome is Outcome.SAME


@pytest.mark.parametrize("size", [1e-7, 1e-4])
def test_small_squares_are_not_lost_in_a_quadratic_form(size):
    """The second square is 1e-14 or 1e-8 of the first, and twice as large in one network."""
    rows = [[1.0, 2.0], [size, -3 * size]]
    first, second = rounded([rows, [[1, 1]]], 2), rounded([rows, [[1, 2]]], 2)
    assert compare_networks(first, second).outcome is not Outcome.SAME


@pytest.mark.parametrize(
    ("widths", "degree", "activation", "bias"),
    [
        ((2, 2, 1), 2, "monomial", False),
        ((3, 2, 1), 2, "monomial", True),
        ((2, 3, 2), 3, "monomial", False),
        ((2, 2, 2, 1), None, "z^4+z^2+1", True),
        ((3, 3, 2), None, "z^3+z", False),
    ],
)
def test_a_changed_neuron_is_never_the_same(widths, degree, activation, bias):
    """One weight changed by a share of itself, in a neuron of any size."""
    family = PolynomialNetwork(Architecture.build(widths, degree, activation=activation, bias=bias))
    for seed in range(30):
        rng = np.random.default_rng(seed)
        point = family.generic(rng)
        neuron = int(rng.integers(widths[1]))
        point["W1"][neuron] *= 10.0 ** -int(rng.integers(0, 9))
        changed = {name: array.copy() for name, array in point.items()}
        factor = 1 + 10.0 ** -int(rng.integers(1, 6))
        if seed % 2:
            changed["W1"][neuron, 0] *= factor
        else:
            changed["W2"][0, neuron] *= factor
        pair = [WeightedNetwork(family, weights, False) for weights in (point, changed)]
        assert compare_networks(*pair).outcome is not Outcome.SAME
