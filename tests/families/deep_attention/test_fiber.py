"""The classification, against the function itself: equal where it says so, different elsewhere."""

from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.errors import InputError
from fiberscope.families.deep_attention import (
    CustomNormalizer,
    DeepAttention,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    effective_parameters,
    exact,
    load_network,
    native_freedom,
)
from fiberscope.families.deep_attention.fiber import FiberResult, classify_fiber
from fiberscope.families.deep_attention.normalizers import normalizer
from fiberscope.families.deep_attention.recovery import network_oracle
from fiberscope.numbers.balls import Balls
from fiberscope.verdict import Status

ONE = np.eye(2)
SKEW = np.array([[0.0, 1.0], [-1.0, 0.0]])
LINE = np.array([[1.0, 2.0], [2.0, 4.0]])
PLAIN = np.array([[1.0, 0.5], [0.25, 2.0]])
ZERO = np.zeros((2, 2))
OTHER = np.array([[0.5, -1.0], [2.0, 0.25]])


def network(scores: list[np.ndarray], readout: np.ndarray = ONE) -> EffectiveParameters:
    return EffectiveParameters(exact(readout), tuple(exact(score) for score in scores))


def classified(
    scores: list[np.ndarray], tokens: int, names: Any, readout: np.ndarray = ONE, **options: Any
) -> FiberResult:
    phis = [
        normalizer(name) for name in ([names] * len(scores) if isinstance(names, str) else names)
    ]
    return classify_fiber(network(scores, readout), phis, tokens, **options)


def same_function(a: EffectiveParameters, b: EffectiveParameters, names: Any, tokens: int) -> bool:
    """Whether outputs agree to 100 digits on random inputs."""
    phis = [normalizer(n) for n in ([names] * a.depth if isinstance(names, str) else names)]
    rng = np.random.default_rng(7)
    balls = Balls(1000)
    for _ in range(3):
        x = exact(rng.integers(-8, 9, (tokens, 2))) / Fraction(8)
        with balls.precision():
            inputs = balls.array(x)
            left = network_oracle(a, phis, tokens)(inputs, 1000)
            right = network_oracle(b, phis, tokens)(inputs, 1000)
            if any(
                abs(u - v) > balls.number("1e-100")
                for u, v in zip(left.flat, right.flat, strict=True)
            ):
                return False
    return True


CASES: list[tuple[list[np.ndarray], int, Any, np.ndarray]] = [
    ([PLAIN, LINE, PLAIN], 3, "softmax", ONE),
    ([PLAIN, LINE, SKEW], 3, "softmax", ONE),
    ([PLAIN, SKEW, PLAIN], 2, "softmax", ONE),
    ([SKEW, SKEW, PLAIN], 3, "softmax", ONE),
    ([LINE, ZERO, PLAIN], 3, "softmax", ONE),
    ([SKEW, PLAIN], 4, "softmax", LINE),
    ([ZERO, PLAIN], 3, "softmax", ONE),
    ([PLAIN, PLAIN], 3, "softmax", ZERO),
    ([PLAIN, LINE], 3, "cosh", ONE),
    ([PLAIN, SKEW], 2, ["exp-square", "sigmoid"], ONE),
    ([SKEW, PLAIN, SKEW], 2, "sigmoid", ONE),
    ([SKEW, LINE, PLAIN], 3, "softplus", ONE),
    # Clouds at two points: skew scores beside zero slopes.
    ([SKEW, PLAIN], 3, ["cosh", "softmax"], ONE),
    ([SKEW, SKEW], 3, "exp-square", ONE),
    ([PLAIN, SKEW], 2, "cosh", LINE),
    ([SKEW, PLAIN], 2, "cosh", ONE),
    ([SKEW, SKEW, PLAIN], 3, ["softplus", "cosh", "softmax"], ONE),
    ([PLAIN, ZERO, PLAIN], 4, ["cosh", "one-plus-square", "softmax"], ONE),
    ([PLAIN, ZERO], 2, "cosh", ONE),
]


@pytest.mark.parametrize(("scores", "tokens", "names", "readout"), CASES)
def test_complete_fibers_against_the_function(
    scores: list[np.ndarray], tokens: int, names: Any, readout: np.ndarray
) -> None:
    found = classified(scores, tokens, names, readout)
    assert found.outcome == "complete"
    depth = len(scores)
    layers = {*found.determined_scores, *found.free_scores}
    assert layers == set(range(1, depth + 1)) and not found.undecided_scores
    base = network(scores, readout)
    for layer in range(1, depth + 1):
        for replacement in (OTHER, -scores[layer - 1]):
            moved = network(
                [replacement if i == layer else s for i, s in enumerate(scores, start=1)], readout
            )
            unchanged = np.array_equal(replacement, scores[layer - 1])
            sign = layer in found.free_signs and np.array_equal(replacement, -scores[layer - 1])
            expected = unchanged or sign or layer in found.free_scores
            assert same_function(base, moved, names, tokens) == expected


@pytest.mark.parametrize(
    ("scores", "tokens", "names", "local", "whole", "sign", "contact"),
    [
        ([PLAIN], 2, "softmax", 3, 3, 3, (1,)),
        ([PLAIN] * 2, 2, "softmax", 7, 7, 7, (1, 5)),
        ([PLAIN] * 3, 3, "softmax", 19, 19, 19, (1, 5, 17)),
        ([PLAIN] * 4, 3, "softmax", 55, 55, 55, (1, 5, 17, 53)),
        ([PLAIN] * 2, 3, "cosh", 13, 13, 13, (3, 11)),
        # alpha_1 = 3 + 2 k_1 - 2, N_2 = 2 alpha_1 + 2 k_2 - 1.
        ([PLAIN] * 2, 3, ["cosh", "softmax"], 11, 11, 11, (3, 9)),
        ([PLAIN] * 2, 3, ["softmax", "cosh"], 9, 9, 9, (1, 7)),
        # Corollary 4.1: degree seven for a nonzero first score, three for a zero one.
        ([SKEW, PLAIN], 3, "softmax", 7, 7, None, (1, 5)),
        ([ZERO, PLAIN], 3, "softmax", None, 3, None, None),
        # Two tokens: alpha = 3 alpha + 2 through a skew score with curvature.
        ([SKEW, PLAIN], 2, "sigmoid", 11, 11, None, None),
        ([SKEW, PLAIN, PLAIN], 2, "sigmoid", 31, 31, None, None),
        # Nonzero curvature, any number of tokens: at most 4 * 3^(D-1) - 1.
        ([SKEW, SKEW, PLAIN], 3, "sigmoid", None, 35, None, None),
    ],
)  # fmt: skip
def test_orders(
    scores: list[np.ndarray],
    tokens: int,
    names: Any,
    local: Any,
    whole: Any,
    sign: Any,
    contact: Any,
) -> None:
    found = classified(scores, tokens, names)
    assert found.outcome == "complete"
    if sign is not None and all(not np.array_equal(s, ZERO) for s in scores):
        assert found.sign_order == sign
    assert (found.taylor_order, found.fiber_order) == (local, whole)
    assert found.contact_orders == contact


def test_a_sign_can_need_a_higher_order_than_the_local_one() -> None:
    phi = CustomNormalizer("tilted", lambda s: s, lambda s: s, [1, 0, 1, 0, 0, 1], even=False)
    found = classify_fiber(network([PLAIN]), [phi], 2)
    # k = 2 gives N = 5; the first odd degree of log(1 + s^2 + s^5) is 5: 2 + 2 * 5 - 1 = 11.
    assert (found.taylor_order, found.sign_order, found.fiber_order) == (5, 11, 11)
    assert found.free_signs == ()


def test_open_cases_come_with_certified_bounds() -> None:
    mixed = classified([LINE, SKEW, PLAIN], 3, "softmax")
    assert mixed.outcome == "open"
    assert (mixed.determined_scores, mixed.undecided_scores) == ((1, 2), (3,))
    assert mixed.evidence is not None and mixed.evidence.certified
    assert mixed.evidence.rank_lower_bound == mixed.evidence.parameters == 16
    slopeless = classified([SKEW, ZERO], 2, "exp-square")
    assert slopeless.outcome == "open" and slopeless.determined_scores == ()
    # The published counterexample: the first score is invisible.
    a, b = (network([s, ZERO]) for s in (SKEW, 2 * SKEW))
    assert same_function(a, b, "exp-square", 2)
    evidence = slopeless.evidence
    assert evidence is not None and evidence.dimension_upper_bound >= 5


def test_evidence_agrees_with_the_theorem() -> None:
    found = classified([PLAIN, SKEW, PLAIN], 2, "softmax", evidence=True)
    assert found.evidence is not None
    assert found.evidence.dimension_upper_bound == found.evidence.dimension_lower_bound == 4


def test_nearly_skew_scores_and_the_tolerance() -> None:
    nearly = SKEW + 1e-13 * ONE
    assert classified([nearly, PLAIN], 2, "softmax").free_scores == ()
    tolerant = classified([nearly, PLAIN], 2, "softmax", tolerance=1e-9)
    assert tolerant.free_scores == (2,) and tolerant.rounded_scores == (1,)
    assert tolerant.status is Status.NUMERICAL and tolerant.fiber.startswith("With M_1 taken as")
    exactly = classified([SKEW, PLAIN], 2, "softmax", tolerance=1e-9)
    assert exactly.status is Status.THEOREM and exactly.rounded_scores == ()
    share = next(h for h in tolerant.hypotheses if h.condition == "sym M_1 != 0")
    assert not share.holds and "1e-13" in share.value


def test_a_tolerance_claims_nothing_about_the_exact_point() -> None:
    nearly = SKEW + 1e-13 * ONE
    found = classified([nearly, PLAIN], 2, "softmax", tolerance=1e-9, evidence=True)
    evidence = found.evidence
    assert evidence is not None
    # At the exact point every score is determined.
    assert (evidence.dimension_lower_bound, evidence.dimension_upper_bound) == (0, 0)
    both = classified([LINE, nearly, PLAIN], 3, "softmax", tolerance=1e-9)
    assert (both.outcome, both.status, both.rounded_scores) == ("open", Status.NUMERICAL, (2,))


def test_a_tiny_symmetric_part_is_not_zero() -> None:
    # The square of its share, 1e-400, is no float.
    tiny = np.array([[1e-200, 1.0], [-1.0, 0.0]])
    found = classified([tiny, PLAIN], 2, "softmax")
    assert (found.determined_scores, found.free_scores) == ((1, 2), ())
    share = next(h for h in found.hypotheses if h.condition == "sym M_1 != 0")
    assert share.holds and "below 1e-161" in share.value


def test_effective_parameters_carry_the_function() -> None:
    family = DeepAttention.build(widths=(3, 2, 4), ranks=(2, 1), tokens=3)
    rng = np.random.default_rng(0)
    parameters = family.generic(rng)
    effective = effective_parameters(family.architecture, parameters)
    p1 = parameters["V1"][0]
    m2 = p1.T @ parameters["Q2"][0] @ parameters["K2"][0].T @ p1
    assert np.allclose(effective.scores[1].astype(float), m2)
    bank = family.design(2, rng)
    balls = Balls(300)
    for x, y in zip(bank.inputs, family.observe(parameters, bank).reshape(2, 3, 4), strict=True):
        with balls.precision():
            outputs = network_oracle(effective, [normalizer("softmax")] * 2, 3)(balls.array(x), 300)
            assert np.allclose(balls.to_float64(outputs), y)
    with pytest.raises(InputError, match="single-head"):
        effective_parameters(
            deep_attention_architecture(widths=[2, 2], ranks=1, tokens=2, heads=2), {}
        )


def test_weights_files(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = {"Q1": (3, 2), "K1": (3, 2), "V1": (3, 3), "Q2": (3, 1), "K2": (3, 1), "V2": (2, 3)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    np.savez(tmp_path / "native.npz", **arrays)
    stored = load_network(str(tmp_path / "native.npz"), 3, ["softmax"])
    assert stored.effective.readout.shape == (2, 3)
    # Two factor groups and one interface, independent of one another.
    assert native_freedom(stored) == {"factor": 5, "interface": 9, "union": 14}
    for wrong, sentence in [
        ({"Q1": arrays["Q1"]}, "give Q1, K1, V1"),
        ({"L": ONE, "M2": ONE}, "give L, M1"),
        ({"L": ONE, "M1": np.eye(3)}, r"M1 has shape \(3, 3\), expected \(2, 2\)"),
        ({**arrays, "K1": arrays["K2"]}, r"K1 has shape \(3, 1\)"),
        ({**arrays, "Q1": np.stack([arrays["Q1"]] * 2)}, "2 heads"),
        ({"L": np.array([[np.nan]]), "M1": ONE}, "finite real numbers"),
    ]:
        np.savez(tmp_path / "wrong.npz", **wrong)
        with pytest.raises(InputError, match=sentence):
            load_network(str(tmp_path / "wrong.npz"), 3, ["softmax"])
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(InputError, match="not an npz file"):
        load_network(str(tmp_path / "text.npz"), 3, ["softmax"])


def test_a_mixed_prefix_shows_at_a_higher_degree() -> None:
    # Beyond the theorems: local identification needs degree 23 here, not 19.
    evidence = classified([LINE, SKEW, PLAIN], 3, "softmax").evidence
    assert evidence is not None and (evidence.rank_lower_bound, evidence.order) == (16, 23)
    regular = classified([PLAIN, PLAIN, PLAIN], 3, "softmax", evidence=True).evidence
    assert regular is not None and regular.order == 19


TURN = np.array([[0.0, -6.0], [6.0, 0.0]])
BENT = np.array([[-1.0, 3.0], [3.0, -4.0]])
LAST = np.array([[1.0, 2.0], [3.0, 1.0]])
FIRST = np.array([[1.0, 2.0], [2.0, 4.0]])


@pytest.mark.parametrize(
    ("scores", "readout", "tokens", "names", "least"),
    [
        ([TURN, BENT], np.array([[1.0, 0.0]]), 2, ["softplus", "cosh"], 13),
        ([BENT, TURN, LAST], ONE, 2, ["exp-square", "softplus", "sigmoid"], 35),
        ([FIRST, TURN, BENT], ONE, 3, ["cosh", "softplus", "softmax"], 35),
        ([FIRST, TURN, BENT], ONE, 3, ["softmax", "softplus", "cosh"], 25),
    ],
)
def test_no_order_is_named_where_a_layer_has_no_slope(
    scores: list[np.ndarray], readout: np.ndarray, tokens: int, names: list[str], least: int
) -> None:
    # Zero slopes beside a skew score: Theorem 2 does not apply, and its orders are too low.
    found = classified(scores, tokens, names, readout, evidence=True)
    assert found.outcome == "complete" and found.theorem.startswith("clouds at two points")
    assert (found.taylor_order, found.fiber_order, found.sign_order) == (None, None, None)
    assert found.contact_orders is None and not found.undecided_scores
    evidence = found.evidence
    assert evidence is not None and evidence.certified
    # The rank of the Jacobian of the jets modulo a prime is full from this degree on.
    assert evidence.order == least


@pytest.mark.parametrize(
    ("scores", "tokens", "names"),
    [
        ([PLAIN, SKEW, PLAIN], 3, "softplus"),
        ([PLAIN, SKEW, PLAIN], 3, ["softmax", "softplus", "softmax"]),
        ([SKEW, PLAIN, PLAIN], 2, ["softplus", "softmax", "sigmoid"]),
        ([SKEW, SKEW, PLAIN], 2, "softplus"),
        ([PLAIN, PLAIN], 2, ["cosh", "softmax"]),
        ([PLAIN, SKEW], 2, ["exp-square", "softmax"]),
    ],
)
def test_printed_orders_suffice_for_the_jets(
    scores: list[np.ndarray], tokens: int, names: Any
) -> None:
    found = classified(scores, tokens, names, evidence=True)
    evidence = found.evidence
    assert found.outcome == "complete" and evidence is not None and evidence.certified
    order = found.taylor_order if found.taylor_order is not None else found.fiber_order
    assert order is not None and evidence.order <= order
    if found.taylor_order is not None:
        assert evidence.order == order


def test_a_theorem_with_curvatures_is_cited_only_with_curvatures() -> None:
    every = classified([PLAIN, SKEW, PLAIN], 3, "softplus")
    assert "Theorem 2 (i)" in every.theorem
    some = classified([PLAIN, SKEW, PLAIN], 3, ["softmax", "softplus", "softmax"])
    assert "Theorem" not in some.theorem and "B.1" in some.theorem


def made(name: str, *taylor: int, **parities: bool) -> CustomNormalizer:
    """A polynomial normalizer; its Taylor data go on with zeros."""

    def value(s: Any) -> Any:
        return sum((c * s**k for k, c in enumerate(taylor[1:], start=1)), taylor[0])

    def slope(s: Any) -> Any:
        return sum((k * c * s ** (k - 1) for k, c in enumerate(taylor[2:], start=2)), taylor[1])

    return CustomNormalizer(name, value, slope, [*taylor, *[0] * 80], **parities)


# First degree, first even one, first odd one.
TWO_THREE = made("k2 o3", 1, 0, 1, 1)
TWO_FIVE = made("k2 o5", 1, 0, 1, 0, 0, 1)
THREE = made("k3 e6", 1, 0, 0, 1)
SLOPE_FOUR = made("k1 e4", *(Fraction(1, factorial(k)) for k in range(4)), 2, *[0] * 4)


@pytest.mark.parametrize(
    ("scores", "names", "tokens", "determined", "free"),
    [
        ([SKEW, PLAIN], [TWO_THREE, "softmax"], 2, (1, 2), ()),
        ([SKEW, PLAIN], [TWO_THREE, "softmax"], 3, (1, 2), ()),
        # The sign of the first score and the second score's effect share a degree.
        ([SKEW, PLAIN], [TWO_FIVE, "softmax"], 3, (), ()),
        ([SKEW, ZERO], [TWO_FIVE, "softmax"], 2, (), ()),
        ([PLAIN, SKEW], [TWO_FIVE, TWO_FIVE], 2, (1, 2), ()),
        ([SKEW, SKEW, PLAIN], [THREE, THREE, "softmax"], 2, (1, 2, 3), ()),
        ([SKEW, PLAIN], [SLOPE_FOUR, "softmax"], 3, (1, 2), ()),
        # A monomial log phi behind a score that two tokens hide.
        ([SKEW, PLAIN], ["cosh", "exp-square"], 2, (), ()),
        ([SKEW, PLAIN], ["cosh", "softmax"], 2, (), ()),
        ([SKEW, PLAIN, ZERO, PLAIN], ["exp-square", "cosh", "cosh", "softmax"], 3, (1, 2, 3), (4,)),
        ([ZERO, PLAIN], ["cosh", "softmax"], 3, (1,), (2,)),
        ([ZERO, PLAIN], ["cosh", "softmax"], 2, (), (2,)),
        ([SKEW, ZERO], ["exp-square", "softmax"], 2, (), ()),
    ],
)
def test_two_points(
    scores: list[np.ndarray], names: Any, tokens: int, determined: Any, free: Any
) -> None:
    found = classified(scores, tokens, names, evidence=True)
    assert (found.determined_scores, found.free_scores) == (determined, free)
    depth = len(scores)
    assert (found.outcome == "complete") == (len(determined) + len(free) == depth)
    evidence = found.evidence
    assert evidence is not None
    assert evidence.dimension_lower_bound <= evidence.dimension_upper_bound
    flat = any(np.array_equal(s, ZERO) for s in scores)
    if found.outcome == "complete" and depth == 2 and not flat:
        # Where no derivative vanishes, the point is isolated at a degree that is in reach.
        assert evidence.certified


def test_undeclared_parities_are_not_taken_as_absent() -> None:
    truncated = [Fraction(1, factorial(k)) for k in range(30)]
    odd = CustomNormalizer("odd", lambda s: s, lambda s: s, truncated)
    found = classify_fiber(network([SKEW]), [odd], 2)
    assert found.outcome == "complete"
    assert classify_fiber(network([SKEW, PLAIN]), [odd] * 2, 2).outcome == "open"
    even = CustomNormalizer("even", lambda s: s, lambda s: s, [1, 0, 1] + [0] * 27)
    found = classify_fiber(network([PLAIN]), [even], 2)
    assert found.outcome == "open" and found.undecided_scores == (1,)
