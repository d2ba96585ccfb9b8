"""Dimensions against published and independently computed tables."""

import csv
from math import comb
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.bounds import upper_bound, waring_dimension
from fiberscope.families.polynomial.dimension import DimensionStatus, dimension
from fiberscope.families.polynomial.jacobian_rank import (
    error_probability,
    rank_modulo,
    undersampled_rank,
)
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.theorems import Notion
from fiberscope.numbers import DualNumbers, PrimeField

DATA = Path(__file__).parent / "data"


def table(name):
    with (DATA / name).open() as stream:
        return list(csv.DictReader(stream))


def widths_of(row):
    return tuple(int(width) for width in row["widths"].split())


@pytest.mark.parametrize("row", table("monomial.csv"), ids=lambda row: row["widths"])
def test_monomial_table(row):
    found = dimension(Architecture.build(widths_of(row), int(row["degree"])))
    assert found.dimension == int(row["dimension"])
    assert found.parameters == int(row["parameters"])
    assert found.effective == int(row["effective"])
    assert found.ambient == int(row["ambient"])
    assert found.defect == int(row["defect"])
    assert found.filling is bool(int(row["filling"]))
    assert found.notions[Notion.FINITE].answer is bool(int(row["finite"]))


def test_nearly_all_of_the_table_is_proved():
    found = [
        dimension(Architecture.build(widths_of(row), int(row["degree"])))
        for row in table("monomial.csv")
    ]
    proved = [result.status is DimensionStatus.PROVED for result in found]
    assert sum(proved) >= 0.95 * len(proved)
    for result in found:
        assert (result.error_probability == 0) is (result.status is DimensionStatus.PROVED)
        assert result.error_probability < 1e-6


@pytest.mark.parametrize("row", table("activations.csv"), ids=lambda row: row["widths"])
def test_activation_table(row):
    widths, degree = widths_of(row), int(row["degree"])

    def found(**options):
        return dimension(Architecture.build(widths, degree, **options))

    origin = found(activation="generic-through-origin")
    assert (origin.dimension, origin.parameters) == (
        int(row["through_origin"]),
        int(row["weights"]),
    )
    assert found(activation="generic").dimension == int(row["with_constant"])
    plain = found()
    assert (plain.dimension, plain.effective) == (
        int(row["monomial"]),
        int(row["monomial_effective"]),
    )
    biased = found(activation="generic", bias=True)
    assert (biased.dimension, biased.parameters) == (
        int(row["generic_bias"]),
        int(row["parameters_bias"]),
    )
    plain = found(bias=True)
    assert (plain.dimension, plain.effective) == (
        int(row["monomial_bias"]),
        int(row["monomial_bias_effective"]),
    )


@pytest.mark.parametrize(
    ("widths", "activation", "bias", "wanted"),
    [
        ((2, 2, 1), "z^3+z^2", False, 6),
        ((2, 3, 1), "z^3+z^2", False, 7),
        ((2, 2, 2, 1), "z^3+z^2", False, 10),
        ((2, 2, 1), "(z+1)^3-1", False, 6),
        ((2, 3, 1), "(z+1)^3-1", False, 9),
        ((2, 3, 2), "(z+1)^3-1", False, 12),
        ((2, 2, 1), "z^2+z", False, 5),
        ((3, 2, 1), "z^2+z", False, 7),
        ((3, 3, 1), "z^2+z", False, 9),
        ((2, 2, 2), "z^2+z", False, 8),
        ((2, 2, 2, 2), "z^2+z", False, 12),
        ((2, 3, 1), "z^3+z", False, 6),
        ((3, 3, 2), "(z+1)^3-1", True, 17),
    ],
)
def test_named_activations(widths, activation, bias, wanted):
    found = dimension(Architecture.build(widths, activation=activation, bias=bias))
    assert found.dimension == wanted
    assert found.status is DimensionStatus.PROVED


@pytest.mark.parametrize(
    ("widths", "degree", "wanted"),
    [
        ((5, 14, 88, 1), 3, 616),
        ((5, 12, 98, 1), 3, 412),
        ((5, 8, 78, 1), 3, 152),
        ((5, 6, 100, 1), 3, 80),
        ((3, 2, 243, 2), 3, 12),
        ((3, 3, 50, 2), 3, 26),
        ((3, 4, 55, 2), 3, 48),
        ((3, 5, 17, 2), 3, 80),
        ((2, 3, 4, 7, 8, 7, 10, 3), 2, 195),
        ((2, 3, 4, 5, 9, 7, 10, 3), 2, 195),
        ((2, 3, 4, 4, 10, 17, 11, 12, 4, 2), 2, 514),
        ((5, 8, 1), 3, 35),
        ((5, 14, 1), 3, 35),
        ((5, 14, 1), 4, 69),
        ((4, 5, 5, 3, 1), 2, 47),
    ],
)
def test_larger_and_exceptional_architectures(widths, degree, wanted):
    found = dimension(Architecture.build(widths, degree))
    assert found.dimension == wanted
    assert found.status is DimensionStatus.PROVED


def test_published_sample():
    """Every thirtieth row here; the benchmark runs all of them."""
    rows = table("neurovariety_r2_sample.csv")[::30]
    for number, row in enumerate(rows):
        found = dimension(Architecture.build(widths_of(row), int(row["degree"])), number)
        assert found.dimension == int(row["dimension"]), row
        assert found.ambient == int(row["ambient_dimension"])
        assert all(trial.saturated for trial in found.trials)
        assert (found.status is DimensionStatus.PROVED) is (found.upper.value == found.dimension)


def test_bounds_prove_nearly_all_of_the_published_sample():
    """The published dimensions are the oracle: no bound below one, nearly all bounds equal."""
    tight = 0
    rows = table("neurovariety_r2_sample.csv")
    for row in rows:
        bound = upper_bound(Architecture.build(widths_of(row), int(row["degree"]))).value
        assert bound >= int(row["dimension"]), row
        tight += bound == int(row["dimension"])
    assert tight >= 0.95 * len(rows)


@pytest.mark.parametrize(
    ("widths", "degrees", "options"),
    [
        ((2, 3, 2), 3, {}),
        ((2, 3, 2, 2), (2, 3), {"bias": True}),
        ((3, 2, 2), 3, {"activation": "generic"}),
        ((2, 3, 3, 1), None, {"activation": "z^3+2*z^2-1/2*z"}),
    ],
)
def test_rank_without_the_jacobian_equals_the_jacobians_rank(widths, degrees, options):
    """The oracle forms the Jacobian by dual numbers over the same field."""
    architecture = Architecture.build(widths, degrees, **options)
    field = PrimeField(2_147_483_629)
    family = PolynomialNetwork(architecture, seed=9)
    rng = np.random.default_rng(9)
    point = {name: field.random_array(s, rng) for name, s in family.space.shapes.items()}
    stream = field.random_array((architecture.parameters, widths[0]), rng)
    duals = DualNumbers(field)
    flat = duals.variables(
        field.array(np.concatenate([point[n].values.reshape(-1) for n in family.space.shapes]))
    )
    named = {n: flat[w].reshape(family.space.shapes[n]) for n, w in family.space.slices()}
    values = family.values(named, stream, duals).reshape(architecture.parameters * widths[-1])
    oracle = field.rank(values.tangent)
    assert rank_modulo(architecture, upper_bound(architecture).value, rng).rank == oracle


def test_bounds_are_never_below_the_rank():
    rng = np.random.default_rng(1)
    for _ in range(150):
        layers = int(rng.integers(2, 5))
        widths = tuple(int(d) for d in rng.integers(1, 6, layers + 1))
        degrees = tuple(int(r) for r in rng.integers(2, 4, layers - 1))
        kind = ["monomial", "generic", "generic-through-origin"][int(rng.integers(3))]
        architecture = Architecture.build(
            widths, degrees, activation=kind, bias=bool(rng.integers(2))
        )
        # Without the bound's own help: many points, no early end.
        found = undersampled_rank(
            architecture, min(architecture.effective, architecture.ambient) + 1, 2_147_483_647, rng
        )
        assert found <= upper_bound(architecture).value, architecture


def test_too_few_points_are_noticed():
    """Unbalanced outputs: dimension / outputs points are not enough, the check adds more."""
    architecture = Architecture.build((5, 2, 1, 6), 2)
    rng = np.random.default_rng(0)
    full = rank_modulo(architecture, upper_bound(architecture).value, rng)
    few = undersampled_rank(architecture, 2, full.prime, rng)
    assert full.saturated
    assert few < full.rank


def test_a_small_prime_gives_a_smaller_rank_and_is_refused():
    architecture = Architecture.build((2, 3, 3, 3, 2, 1), 2)
    small = rank_modulo(architecture, 17, np.random.default_rng(0), prime=13)
    assert small.rank < 17 == dimension(architecture).dimension
    with pytest.raises(InputError, match="not above the total degree 16"):
        dimension(architecture, primes=[13])
    assert dimension(architecture, primes=[1_000_003]).dimension == 17


def test_waring_by_hand():
    assert waring_dimension(3, 2, 2) == 5
    assert waring_dimension(4, 2, 9) == comb(5, 2)
    assert [waring_dimension(n, r, d) for n, r, d in [(5, 3, 7), (5, 3, 8), (3, 4, 5)]] == [
        34,
        35,
        14,
    ]


def test_seeds_repeat():
    architecture = Architecture.build((2, 8, 3, 5, 7, 8, 4, 2), 2)
    first, second = dimension(architecture, 4), dimension(architecture, 4)
    assert first == second
    assert first.status is DimensionStatus.PROBABLE
    # One small prime, then two word-size ones.
    assert [trial.prime > 2**30 for trial in first.trials] == [False, True, True]
    assert first.to_dict()["status"] == "PROBABLE"


@pytest.mark.parametrize(
    ("widths", "degrees", "options", "message"),
    [
        ((2, 0, 1), 2, {}, "every width must be at least 1"),
        ((2,), 2, {}, "at least inputs and outputs"),
        ((2, 2, 1), 1, {}, "every degree must be at least 2"),
        ((2, 2, 1), 0, {}, "every degree must be at least 2"),
        ((2, 2, 2, 1), (2,), {}, "2 hidden layers but 1 degrees"),
        ((2, 2, 1), None, {}, "no degree is given"),
        ((2, 2, 1), None, {"activation": "z^"}, "cannot be read"),
        ((2, 2, 1), None, {"activation": "2*z+1"}, "has degree 1"),
        ((2, 2, 1), 4, {"activation": "z^3+z"}, "has degree 3, not 4"),
        ((2,) * 33, 2, {}, "no word-size prime"),
    ],
)
def test_bad_architectures_are_a_sentence(widths, degrees, options, message):
    with pytest.raises(InputError, match=message):
        Architecture.build(widths, degrees, **options)


def test_a_chosen_prime_bounds_no_odds():
    """Ranks modulo 5 are too small here: 9 and 17 are the dimensions."""
    generic = Architecture.build((2, 3, 1), 3, activation="generic")
    assert dimension(generic).dimension == 9
    found = dimension(generic, primes=[5])
    assert found.dimension < 9
    assert found.status is DimensionStatus.LOWER_BOUND
    assert found.error_probability == 1.0
    assert found.defect is None
    assert all(answer.answer is not False for answer in found.notions.values())


def test_a_theorem_on_finite_fibers_and_the_dimension_agree():
    architecture = Architecture.build((3, 3, 2), 3, bias=True)
    found = dimension(architecture, primes=[5])
    assert max(trial.rank for trial in found.trials) < 17
    assert found.notions[Notion.FINITE].answer is True
    # 9 + 6 weights and 5 biases, minus three rescalings.
    assert (found.dimension, found.status.name) == (17, "PROVED")


def test_a_large_prime_that_divides_a_coefficient_proves_no_defect():
    prime = 2147483647
    architecture = Architecture.build((2, 3, 1), activation=f"z^3+{prime}*z")
    found = dimension(architecture, primes=[prime])
    assert found.dimension < dimension(architecture).dimension == 6
    assert found.status is DimensionStatus.LOWER_BOUND


def test_the_odds_depend_on_the_primes():
    architecture = Architecture.build((2, 3, 1), 3)
    assert error_probability(architecture, 4, []) == 1.0
    assert error_probability(architecture, 4, [5]) == 1.0
    large = error_probability(architecture, 4, [1073741827])
    assert 5 * 2 * 3 / 1073741827 < large < 1e-5
    assert error_probability(architecture, 4, [1073741827] * 2) == pytest.approx(large**2)


def test_denominators_count_for_the_odds():
    """A minor of z^3 + z / q has larger integers, hence more primes that may divide them."""
    odds = [
        error_probability(Architecture.build((2, 3, 1), activation=text), 5, [1073741827])
        for text in ("z^3+z", f"z^3+1/{2**200 + 1}*z")
    ]
    assert odds[0] < odds[1] < 1e-4
