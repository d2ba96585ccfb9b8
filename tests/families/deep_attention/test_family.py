from typing import Any

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.contract import check_family
from fiberscope.analysis.report import CheckOutcome
from fiberscope.errors import InputError
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.plain import PlainDeepAttention
from fiberscope.families.deep_attention.tangents import kernel_tangents
from fiberscope.numbers.balls import Balls
from fiberscope.numbers.fields import RealField
from fiberscope.verdict import Outcome

WIRINGS: dict[str, dict[str, Any]] = {
    "bottleneck": {"widths": (3, 2, 3), "ranks": (2, 1), "tokens": 3},
    "unreached": {"widths": (2, 3, 2), "ranks": (1, 2), "tokens": 3},
    "unseen": {"widths": (4, 4, 1), "ranks": (1, 1), "tokens": 2},
    "even": {"widths": (2, 2, 2), "ranks": 1, "tokens": 3, "normalizers": ["cosh", "softplus"]},
    "heads": {"widths": (2, 2, 2), "ranks": 1, "tokens": 3, "heads": 2, "residual": True,
              "causal": True, "normalizers": "sigmoid"},
    "lightning": {"widths": (3, 4, 2), "ranks": 1, "tokens": 2, "heads": (1, 2),
                  "normalizers": None},
    "lightning causal": {"widths": (2, 2, 2), "ranks": 1, "tokens": 3, "causal": True,
                         "normalizers": None},
    "norm": {"widths": (3, 3, 3), "ranks": 2, "tokens": 3, "layer_norm": True},
    "norm residual": {"widths": (3, 3, 3), "ranks": 1, "tokens": 3, "layer_norm": True,
                      "residual": True, "normalizers": "exp-square"},
    "mean": {"widths": (2, 2), "ranks": 1, "tokens": 2, "heads": 2, "trainable_values": False,
             "mean_only": True},
}  # fmt: skip


@pytest.mark.parametrize("wiring", WIRINGS)
def test_contract(wiring: str) -> None:
    family = DeepAttention.build(**WIRINGS[wiring])
    report = check_family(family, 0, systems=[Balls(200)])
    # Not claimed everywhere, but true in each of these wirings: nothing is left unexplained.
    assert report.unexplained == 0


@pytest.mark.parametrize("wiring", WIRINGS)
def test_ball_jacobian_agrees_with_duals(wiring: str) -> None:
    family = DeepAttention.build(**WIRINGS[wiring])
    parameters = family.generic(np.random.default_rng(3))
    bank = family.design(3, np.random.default_rng(4))
    balls = Balls(150)
    with balls.precision():
        enclosure = family.jacobian(parameters, bank, balls)
        expected = family.jacobian(parameters, bank)
        assert np.abs(balls.to_float64(enclosure) - expected).max() < 1e-12 * np.abs(expected).max()
        assert max(float(x.rad()) for x in enclosure.reshape(-1)) < 1e-35


@pytest.mark.parametrize("wiring", WIRINGS)
def test_explicit_tangents_span_the_symmetries(wiring: str) -> None:
    family = DeepAttention.build(**WIRINGS[wiring])
    parameters = family.generic(np.random.default_rng(5))
    field = RealField()
    explicit = kernel_tangents(family.architecture, parameters, field)
    assert explicit.generic
    bank = family.design(1, np.random.default_rng(0))
    derived = np.concatenate(
        [s.tangents(parameters, family.space) for s in family.symmetries(bank)]
    )
    rank = field.rank(explicit.union)
    assert field.rank(derived) == rank
    assert field.rank(np.concatenate([explicit.union, derived])) == rank


@pytest.mark.parametrize(
    "wiring",
    [
        {"widths": [3] * 3, "ranks": 2, "tokens": 3},
        {"widths": [2] * 3, "ranks": [1, 2], "tokens": 2, "normalizers": "sigmoid"},
        {"widths": [2] * 3, "ranks": [1, 2], "tokens": 3, "normalizers": ["cosh", "softmax"]},
    ],
)
def test_canonical_forms_and_comparison(wiring: dict[str, Any]) -> None:
    report = check_family(PlainDeepAttention.build(**wiring), 1)
    outcomes = {check.name: check.outcome for check in report.checks}
    for name in ("canonical form: constant", "comparison: witness", "comparison: different"):
        assert outcomes[name] is CheckOutcome.PASSED


def test_exceptional_points_are_not_canonical() -> None:
    family = PlainDeepAttention.build(widths=[2] * 3, ranks=1, tokens=2)
    rng = np.random.default_rng(0)
    point, bank = family.generic(rng), family.design(1, rng)
    with pytest.raises(InputError, match="rank below 1"):
        family.canonical({**point, "Q1": 0 * point["Q1"]}, bank)
    with pytest.raises(InputError, match="value matrix 1 is singular"):
        family.canonical({**point, "V1": 0 * point["V1"]}, bank)
    wide = PlainDeepAttention.build(widths=[2] * 3, ranks=2, tokens=2)
    skew = wide.generic(rng)
    skew["Q1"], skew["K1"] = np.array([[[0.0, 1.0], [-1.0, 0.0]]]), np.eye(2)[None]
    # The skew first score is seen, what comes after it need not be.
    assert wide.compare(skew, {**skew, "Q1": 2 * skew["Q1"]}, bank).outcome is Outcome.DIFFERENT
    assert wide.compare(skew, {**skew, "Q2": 2 * skew["Q2"]}, bank).outcome is Outcome.UNDECIDED
    with pytest.raises(InputError, match="one width"):
        PlainDeepAttention.build(widths=[2, 3], ranks=1, tokens=2)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ranks": 4}, "rank 4 above its input width 3"),
        ({"tokens": 1}, "at least two tokens"),
        ({"ranks": (1, 2, 3)}, "3 ranks are given for 2 layers"),
        ({"widths": (3, 2, 3), "residual": True}, "need equal widths"),
        ({"widths": (3,)}, "at least two widths"),
        ({"normalizers": ["exp"] * 3}, "3 normalizers"),
    ],
)
def test_wrong_use_gets_a_sentence(wrong: dict[str, Any], sentence: str) -> None:
    arguments = {"widths": (3, 3, 3), "ranks": 2, "tokens": 3, **wrong}
    with pytest.raises(InputError, match=sentence):
        DeepAttention.build(**arguments)


def test_nonpositive_normalizer_gets_a_sentence() -> None:
    from fiberscope.families.deep_attention import CustomNormalizer

    phi = CustomNormalizer("line", lambda s: 1 + s, lambda s: 1 + 0 * s, [1, 1])
    family = DeepAttention.build(widths=(2, 2), ranks=2, tokens=3, normalizers=phi)
    big = {name: 9 * value for name, value in family.generic(np.random.default_rng(0)).items()}
    with pytest.raises(InputError, match="line is not positive on a score met in layer 1"):
        family.observe(big, family.design(4, np.random.default_rng(1)))
