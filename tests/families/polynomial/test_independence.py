"""Independence of compositions: hand-made relations, bounds on ranks, published thresholds."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.errors import InputError
from fiberscope.families.polynomial.activation import Polynomial, parse_polynomial
from fiberscope.families.polynomial.independence import (
    ConjectureStatus,
    Independence,
    conjecture,
    good_activations,
    independence,
)


def decide(activation, compositions, field="Q"):
    return independence(
        parse_polynomial(activation), [parse_polynomial(p) for p in compositions.split(",")], field
    )


@pytest.mark.parametrize(
    ("activation", "compositions", "answer", "relation"),
    [
        ("z^3+z+1", "z,2*z+1,z^2", "INDEPENDENT", None),
        ("z^3+z+1", "z,z+1,z+2,z+3,z+4", "IMPOSSIBLE", (1, -4, 6, -4, 1)),
        ("z^3+z+1", "z,-z,0", "DEPENDENT", (1, 1, -2)),
        ("z^3+1", "z,-z", "INDEPENDENT", None),
        ("z^3+z", "z,-z", "DEPENDENT", (1, 1)),
        ("z^2+z", "z,-z-1", "DEPENDENT", (1, -1)),
        ("z^2", "2*z,3*z", "DEPENDENT", (9, -4)),
        ("z^4+z^2", "z,z+1,-z", "DEPENDENT", (1, 0, -1)),
        ("z^2", "z,z", "DEPENDENT", (1, -1)),
        ("z^2", "1/2*z,z+1,z-1,1", "IMPOSSIBLE", (8, -1, -1, 2)),
    ],
)
def test_answers(activation, compositions, answer, relation):
    found = decide(activation, compositions)
    assert found.answer.name == answer
    assert found.relation == relation
    if relation is not None:
        sigma = parse_polynomial(activation)
        total = Polynomial(())
        for c, p in zip(relation, compositions.split(","), strict=True):
            total = total + Polynomial.of([c]) * sigma(parse_polynomial(p))
        assert total == Polynomial(())
    else:
        assert found.prime is not None
        assert found.rank == len(found.compositions)


def test_field_is_named():
    assert "rotation" in decide("z^3+1", "z,-z", "C").this_activation
    assert "fails" not in decide("z^3+1", "z,-z", "Q").this_activation
    assert "fails over Q" in decide("z^4+1", "z,z+1", "Q").this_activation
    assert decide("z^3+z+1", "z,z^2").this_activation.startswith("works for all choices")


def test_status_of_the_conjecture():
    z = parse_polynomial("z")
    shifts = [parse_polynomial(f"z+{i}") for i in range(8)]
    for count in range(3, 8):
        assert conjecture(count - 2, shifts[:count], False)[0] is ConjectureStatus.REFUTED
        assert conjecture(count - 1, shifts[:count], False)[0] is ConjectureStatus.OPEN
        # Equal degree one: k^2 (m + 2) - 1 with m = 1.
        assert conjecture(3 * count**2 - 1, shifts[:count], False)[0] is ConjectureStatus.PROVED
        assert conjecture(3 * count**2 - 2, shifts[:count], False)[0] is ConjectureStatus.OPEN
    assert conjecture(3, shifts[:2], False)[0] is ConjectureStatus.PROVED
    assert conjecture(2, [z, parse_polynomial("2z")], True)[0] is ConjectureStatus.PROVED
    mixed = [parse_polynomial(p) for p in ("z", "z^2", "z^3")]
    # Both printed forms of the origin-passing bound: (k/2)(3km + k - m + 1).
    needed = 3 * (3 * 4 + 2 * 2 // 2)
    assert needed == 3 * (3 * 3 * 3 + 3 - 3 + 1) // 2 == 42
    assert conjecture(needed, mixed, True)[0] is ConjectureStatus.PROVED
    assert conjecture(needed - 1, mixed, True)[0] is ConjectureStatus.OPEN


def test_good_activations_hold_on_random_compositions():
    rng = np.random.default_rng(0)
    for count in (2, 3):
        for origin in (True, False):
            for text in good_activations(count, origin):
                sigma = parse_polynomial(text.split(" for ")[0])
                for _ in range(5):
                    chosen = []
                    while len(chosen) < count:
                        low = [0 if origin else int(rng.integers(-2, 3)), int(rng.integers(1, 4))]
                        p = Polynomial.of([*low, int(rng.integers(-1, 2))])
                        if p not in chosen:
                            chosen.append(p)
                    assert independence(sigma, chosen).answer is Independence.INDEPENDENT


def test_rank_bounds_of_the_theorems():
    """T: s -> sum_i l_i s(p_i) has rank at least floor((r + 1) / k) for equal degrees."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        count, degree = int(rng.integers(2, 5)), int(rng.integers(4, 12))
        inner = [
            Polynomial.of([*(int(c) for c in rng.integers(-3, 4, 2)), int(rng.integers(1, 4))])
            for _ in range(count)
        ]
        if len(set(inner)) < count:
            continue
        rows = []
        for exponent in range(degree + 1):
            image = Polynomial(())
            for p, factor in zip(inner, rng.integers(1, 5, count), strict=True):
                image = image + Polynomial.of([Fraction(int(factor))]) * p.power(exponent)
            padded = [*image.coefficients, *([0] * (2 * degree + 1 - len(image.coefficients)))]
            rows.append([float(c) for c in padded])
        scaled = np.array(rows) / np.abs(rows).max(axis=1, keepdims=True)
        assert np.linalg.matrix_rank(scaled, tol=1e-9) >= (degree + 1) // count


@pytest.mark.parametrize(
    ("activation", "compositions", "message"),
    [("3", "z", "is constant"), ("z^9999", "z^99", "at most 200000")],
)
def test_bad_input_is_a_sentence(activation, compositions, message):
    with pytest.raises(InputError, match=message):
        decide(activation, compositions)


def test_sentences_say_which_compositions_are_meant():
    assert "pairwise distinct, non-constant" in decide("z^3+z+1", "z,z").this_activation
    assert decide("z^3+z+1", "z,z").conjecture is ConjectureStatus.REFUTED
    zero = decide("z^2+z", "0,z")
    assert "pairwise distinct, non-zero" in zero.this_activation
    assert zero.conjecture is ConjectureStatus.REFUTED
    alone = decide("z^2+z", "0")
    assert alone.conjecture is ConjectureStatus.REFUTED
    assert alone.relation == (1,)
    assert decide("z^2+z+1", "1,2").conjecture is ConjectureStatus.REFUTED
    assert decide("z^2+z", "z^2").conjecture is ConjectureStatus.PROVED
    shifts = decide("z^3+z+1", "z,z+1,z+2,z+3,z+4")
    assert "fails for these compositions already" in shifts.this_activation
