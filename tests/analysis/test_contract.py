"""The contract check passes sound families, and fails each kind of broken one by name."""

import json

import numpy as np
import pytest

from fiberscope.analysis import CheckOutcome, ContractError, check_family
from fiberscope.family import Comparison, Family
from fiberscope.numbers import FLOAT64
from fiberscope.symmetry import Kind, ScaledSlot, Scaling
from fiberscope.verdict import Outcome
from tests.analysis.toy_families import LEFT, RIGHT, CanonicalProducts, Products, Rationals

TORUS = (ScaledSlot(LEFT, 0), ScaledSlot(RIGHT, 0, -1))


def failures(family, **options):
    report = check_family(family, throw=False, **options)
    return {check.name for check in report.failed}


def names(report, outcome):
    return {check.name for check in report.checks if check.outcome is outcome}


def test_sound_family_passes_and_what_it_lacks_is_not_provided():
    report = check_family(Products())
    assert not report.failed
    assert names(report, CheckOutcome.NOT_PROVIDED) == {"canonical form", "comparison"}
    assert (report.dimension, report.nullity, report.unexplained) == (3, 3, 0)
    assert "0 failed" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_canonical_form_and_comparison_are_checked_when_offered():
    report = check_family(CanonicalProducts(), seed=4)
    assert not report.not_provided
    assert {"canonical form: idempotent", "comparison: witness"} <= {c.name for c in report.passed}


def test_error_lists_every_failed_check_with_numbers():
    class Wrong(Products):
        def symmetries(self, design):
            return [Scaling("both", 3, (ScaledSlot(LEFT, 0), ScaledSlot(RIGHT, 0)))]

    with pytest.raises(ContractError, match="breaks the contract") as caught:
        check_family(Wrong())
    assert isinstance(caught.value, AssertionError)
    text = str(caught.value)
    assert "both: invariance" in text
    assert "both: kernel" in text
    assert "deviation" in text
    assert failures(Wrong()) == {"both: invariance", "both: kernel"}


def test_incomplete_symmetries():
    class Incomplete(Products):
        def symmetries(self, design):
            return [Scaling("one", 1, [ScaledSlot(s.view, 0, s.power, (0, 0, 0)) for s in TORUS])]

    report = check_family(Incomplete(), throw=False)
    assert {c.name for c in report.failed} == {"unexplained nullity"}
    assert report.unexplained == 2

    class Modest(Incomplete):
        complete = False

    assert check_family(Modest()).unexplained == 2


def test_more_symmetry_than_nullity_is_caught():
    class Extra(Products):
        complete = False

        def symmetries(self, design):
            return [
                *super().symmetries(design),
                Scaling("left alone", 3, (ScaledSlot(LEFT, 0),)),
            ]

    assert "unexplained nullity" in failures(Extra())


class Torus(Scaling):
    def __init__(self):
        super().__init__("torus", 3, TORUS)


def family_with(symmetry):
    class WithSymmetry(Products):
        def symmetries(self, design):
            return [symmetry]

    return WithSymmetry()


def test_wrong_inverse_and_wrong_composition():
    class NoInverse(Torus):
        def inverse(self, element):
            return element

    class NoComposition(Torus):
        def compose(self, first, second):
            return first

    class NoIdentity(Torus):
        def identity(self):
            return np.full(3, 2.0)

    for broken in (NoInverse(), NoComposition(), NoIdentity()):
        assert failures(family_with(broken)) == {"torus: group laws"}


def test_wrong_tangents():
    class Halved(Torus):
        def tangents(self, parameters, space):
            return 0.5 * super().tangents(parameters, space)

    assert failures(family_with(Halved())) == {"torus: tangents"}


def test_acting_in_place_or_beyond_what_is_stated():
    class InPlace(Torus):
        def act(self, element, parameters):
            if np.iscomplexobj(element):
                return super().act(element, parameters)
            self.apply(element, parameters)
            return parameters

    class Hidden(Torus):
        touches = ("left",)

        def act(self, element, parameters):
            return Torus().act(element, parameters)

    assert "torus: touches" in failures(family_with(InPlace()))
    assert "torus: touches" in failures(family_with(Hidden()))


def test_two_symmetries_of_one_name():
    class Twice(Products):
        def symmetries(self, design):
            return [Torus(), Torus()]

    assert failures(Twice()) == {"symmetry names"}


def test_approximate_symmetry_must_say_what_breaks_it():
    def almost(broken_by):
        class Almost(Products):
            def symmetries(self, design):
                extra = (ScaledSlot(LEFT, ()),)
                kind = Kind.APPROXIMATE
                return [Torus(), Scaling("rough", 1, extra, kind=kind, broken_by=broken_by)]

        return Almost()

    assert failures(almost("")) == {"rough: invariance"}
    assert not failures(almost("the scale itself"))


@pytest.mark.parametrize(
    ("form", "failed"),
    [
        (
            lambda p: {"left": 2 * p["left"], "right": p["right"] / 2},
            {"canonical form: idempotent", "canonical form: constant"},
        ),
        (lambda p: dict(p), {"canonical form: constant"}),
        (lambda p: {k: np.zeros(3) for k in p}, {"canonical form: in the fiber"}),
    ],
)
def test_broken_canonical_forms(form, failed):
    class Broken(CanonicalProducts):
        def canonical(self, parameters, design):
            return form(parameters)

    assert failures(Broken()) == failed


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (Comparison(Outcome.SAME), {"comparison: witness", "comparison: different"}),
        (Comparison(Outcome.UNDECIDED), {"comparison: same", "comparison: different"}),
        (Comparison(Outcome.DIFFERENT), {"comparison: same"}),
    ],
)
def test_broken_comparisons(answer, failed):
    class Broken(CanonicalProducts):
        def compare(self, first, second, design):
            return answer

    assert failures(Broken()) == failed


class Exact(Products):
    number_systems = frozenset({"float64", "rationals"})


def test_declared_number_system_is_compared():
    report = check_family(Exact(), systems=[Rationals()])
    assert "number system rationals" in names(report, CheckOutcome.PASSED)
    assert "number system rationals" in names(check_family(Exact()), CheckOutcome.NOT_PROVIDED)


def test_lying_number_systems():
    class Lying(Exact):
        def observe(self, parameters, design, system=FLOAT64):
            observed = super().observe(parameters, design, system)
            return observed + 1 if system.name == "rationals" else observed

    class Unable(Exact):
        def observe(self, parameters, design, system=FLOAT64):
            if system.name == "rationals":
                return system.exp(parameters["left"])
            return super().observe(parameters, design, system)

    for family in (Lying(), Unable()):
        assert failures(family, systems=[Rationals()]) == {"number system rationals"}

    class Without(Products):
        number_systems = frozenset()

    assert failures(Without()) == {"number systems"}


def test_wrong_jacobian():
    class Wrong(Products):
        def jacobian(self, parameters, design, system=FLOAT64):
            return 2 * Family.jacobian(self, parameters, design, system)

    assert {"jacobian against differences", "jacobian against duals"} <= failures(Wrong())

    class Closed(Products):
        def jacobian(self, parameters, design, system=FLOAT64):
            left, right = parameters["left"], parameters["right"]
            return np.concatenate([design.inputs * right, design.inputs * left], axis=1)

    report = check_family(Closed())
    assert "jacobian against duals" in names(report, CheckOutcome.PASSED)


def test_insufficient_design_and_unseeded_draws():
    class Hasty(Products):
        sufficient_size = 2

    assert failures(Hasty()) >= {"sufficient design"}

    class Unseeded(Products):
        draws = 0

        def generic(self, rng):
            Unseeded.draws += 1
            point = super().generic(rng)
            return {name: value + Unseeded.draws for name, value in point.items()}

    assert failures(Unseeded()) == {"seeds"}


def test_observation_must_be_flat():
    class Matrix(Products):
        def observe(self, parameters, design, system=FLOAT64):
            return super().observe(parameters, design, system).reshape(-1, 1)

        def jacobian(self, parameters, design, system=FLOAT64):
            return Products().jacobian(parameters, design, system)

    assert "observation" in failures(Matrix())
