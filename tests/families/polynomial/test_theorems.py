"""Theorem checkers against ranks, published thresholds and counterexamples."""

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.families.polynomial.activation import Polynomial, parse_polynomial
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.bounds import ALEXANDER_HIRSCHOWITZ, waring_dimension
from fiberscope.families.polynomial.dimension import dimension
from fiberscope.families.polynomial.theorems import (
    THEOREMS,
    Notion,
    answers,
    explicit_activation,
    growing_degree,
)
from fiberscope.families.polynomial.two_layers import block_finite, block_one_orbit


def conclusions(widths, degrees=2, **options):
    found = answers(Architecture.build(widths, degrees, **options))
    return tuple(found[notion].answer for notion in Notion)


def applying(architecture):
    return {t.source for t in THEOREMS if t.check(architecture).applies}


def test_no_theorem_contradicts_the_rank():
    """A small campaign; the benchmark runs a large one."""
    rng = np.random.default_rng(0)
    decided = 0
    for number in range(400):
        layers = int(rng.integers(2, 5))
        widths = tuple(int(d) for d in rng.integers(1, 6, layers + 1))
        degrees = tuple(int(r) for r in rng.integers(2, 6, layers - 1))
        architecture = Architecture.build(widths, degrees, bias=number % 4 == 3)
        if architecture.ambient > 5000:
            architecture = Architecture.build(widths, (2,) * (layers - 1), bias=architecture.bias)
        for theorem in THEOREMS:
            application = theorem.check(architecture)
            wanted = theorem.conclusions.get(Notion.FINITE)
            if application.applies and wanted is not None:
                found = dimension(architecture, number)
                assert (found.dimension == found.effective) is wanted, (architecture, theorem.name)
        decided += answers(architecture)[Notion.FINITE].answer is not None
    assert decided >= 0.85 * 400


def test_the_withdrawn_theorem_is_wrong_and_not_used():
    """Every block finitely identifiable with its own widths does not carry over."""
    widths, degrees = (2, 3, 3, 1), (3, 3)
    blocks = [block_finite(*widths[i : i + 3], degrees[i]).answer for i in range(2)]
    assert blocks == [True, True]
    architecture = Architecture.build(widths, degrees)
    found = dimension(architecture)
    assert (found.effective, found.ambient, found.dimension) == (12, 10, 10)
    assert found.notions[Notion.FINITE].answer is False
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Thm 11" not in applying(architecture)


def test_unique_blocks_do_not_make_a_deep_network_unique():
    """Three 2 x 2 matrices, squares: two inequivalent networks with the same function exist, so
    'one orbit for every network' must not be claimed."""
    first = ([[1, 0], [0, 1]], [[1, 1], [1, -1]], [[1, 0], [0, 1]])
    second = ([[1, 1], [1, -1]], [[0.5, 0.5], [0.5, -0.5]], [[1, 0], [1, -1]])
    x = np.random.default_rng(0).standard_normal((5, 2))

    def value(weights):
        stream = x
        for layer, weight in enumerate(weights):
            stream = stream @ np.array(weight, dtype=float).T
            stream = stream**2 if layer < 2 else stream
        return stream

    assert np.allclose(value(first), value(second))
    finite, orbit, every = conclusions((2, 2, 2, 2))
    assert finite is True
    assert orbit is None
    assert every is None


def test_pattern_of_the_quadratic_last_layer():
    for widths, defect in {
        (3, 2, 1): 1,
        (5, 3, 1): 3,
        (3, 3, 3, 1): 3,
        (4, 4, 4, 1): 6,
        (4, 3, 2, 1): 1,
        (5, 5, 3, 1): 3,
        (4, 5, 5, 3, 1): 3,
    }.items():
        assert dimension(Architecture.build(widths, 2)).defect == defect
        assert conclusions(widths) == (False, False, False)


def test_pyramids_and_linear_degrees():
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Cor. 16" in applying(
        Architecture.build((4, 3, 3, 2), 2)
    )
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Cor. 16" not in applying(
        Architecture.build((4, 3, 3, 1), 2)
    )
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Cor. 17" in applying(
        Architecture.build((2, 3, 2), 5)
    )
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Cor. 19" in applying(
        Architecture.build((4, 3, 3, 6, 6), (2, 2, 3))
    )
    assert "Usevich, Borsoi, Dérand, Clausel 2025, Cor. 28" in applying(
        Architecture.build((3, 2, 2), 2, bias=True)
    )


def test_alexander_hirschowitz_list_against_ranks():
    """All single-output blocks of small size, the list being the classical one."""
    for n, r, d in [(3, 4, 5), (4, 4, 9), (5, 3, 7), (5, 3, 8), (3, 4, 4), (3, 4, 6), (4, 3, 5)]:
        architecture = Architecture.build((n, d, 1), r)
        assert dimension(architecture).dimension == waring_dimension(n, r, d)
    assert (5, 3, 8) not in ALEXANDER_HIRSCHOWITZ
    assert block_finite(5, 7, 1, 3).answer is False
    assert block_finite(3, 5, 2, 3).answer is False


def test_unique_and_not_unique_forms():
    """Classical cases: a general plane sextic of rank 9 has two decompositions, a general cubic
    surface and a general plane quintic one, a general quartic of rank 6 in three variables many."""
    assert block_one_orbit(3, 9, 1, 6).answer is False
    assert block_finite(3, 9, 1, 6).answer is True
    assert block_one_orbit(4, 5, 1, 3).answer is True
    assert block_one_orbit(3, 7, 1, 5).answer is True
    assert block_one_orbit(2, 3, 1, 5).answer is True
    assert block_one_orbit(3, 6, 1, 4).answer is False
    assert block_one_orbit(6, 9, 1, 3).answer is False


@pytest.mark.parametrize(("width", "power", "shifted"), [(1, 1, 3), (2, 9, 15), (3, 25, 35)])
def test_explicit_activations_at_their_threshold(width, power, shifted):
    count = 2 * width
    base = parse_polynomial("z^2+z")
    if power > 1:
        assert not explicit_activation(base.power(power - 1), count)
    assert explicit_activation(base.power(power), count)
    assert explicit_activation(parse_polynomial(f"(z+1)^{shifted}-1"), count)
    if width > 1:
        assert not explicit_activation(parse_polynomial(f"(z+1)^{shifted - 1}-1"), count)
        sigma = f"(z^2+z)^{power}"
        assert conclusions((2, width, 2), None, activation=sigma) == (True, True, True)
        assert conclusions((2, width + 1, 2), None, activation=sigma) == (None, None, None)


def test_growing_degrees():
    assert [growing_degree(d, 1) for d in (1, 2, 3, 4)] == [8, 32, 72, 128]
    assert growing_degree(2, 32) == 714
    assert conclusions((2, 2, 1), 32, activation="generic-through-origin") == (True, True, True)
    assert conclusions((2, 2, 1), 31, activation="generic-through-origin") == (None, None, None)


def test_powers_are_recognised():
    root = Polynomial.of([0, 1, 1])
    exponent, found = (root.power(6) * Polynomial.of([7])).as_power()
    assert (exponent, found) == (6, root)
    assert parse_polynomial("z^3+z+1").as_power()[0] == 1
    assert parse_polynomial("(2*z^2-z+3)^4").as_power()[0] == 4


def test_hidden_widths_one():
    assert conclusions((3, 1, 1, 2), 2) == (True, True, True)
    assert conclusions((3, 1, 1, 2), None, activation="z^3+z^2") == (True, True, True)
    assert conclusions((3, 1, 2, 2), 3) == (False, False, False)
