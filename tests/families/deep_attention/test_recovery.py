from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.errors import InputError
from fiberscope.families.deep_attention import CustomNormalizer
from fiberscope.families.deep_attention.effective import EffectiveParameters, exact
from fiberscope.families.deep_attention.normalizers import Normalizer, normalizer
from fiberscope.families.deep_attention.orders import taylor_orders
from fiberscope.families.deep_attention.probes import probe_exponents, signal_orders
from fiberscope.families.deep_attention.recovery import network_oracle, recover
from fiberscope.numbers.balls import Balls, load_flint

flint = load_flint()


def random_network(width: int, out: int, depth: int, seed: int) -> EffectiveParameters:
    rng = np.random.default_rng(seed)
    scores = tuple(exact(rng.standard_normal((width, width))) for _ in range(depth))
    return EffectiveParameters(exact(rng.standard_normal((out, width))), scores)


def enclosed(balls: np.ndarray, true: np.ndarray, bits: int, sign: int = 1) -> bool:
    system = Balls(2 * bits)
    with system.precision():
        return all(
            b.overlaps(sign * system.number(t)) for b, t in zip(balls.flat, true.flat, strict=True)
        )


@pytest.mark.parametrize(
    ("width", "out", "tokens", "names"),
    [
        (1, 1, 2, ["softmax"]),
        (3, 2, 2, ["softplus"]),
        (2, 2, 3, ["cosh"]),
        (2, 1, 4, ["softmax", "sigmoid"]),
        (2, 2, 2, ["cosh", "exp-square"]),
        (2, 2, 3, ["softmax", "one-plus-square"]),
        (2, 1, 2, ["softmax", "softmax", "softmax"]),
    ],
)
def test_recovers_random_networks(width: int, out: int, tokens: int, names: list[str]) -> None:
    true = random_network(width, out, len(names), seed=len(names))
    phis = [normalizer(name) for name in names]
    found = recover(
        network_oracle(true, phis, tokens), width=width, normalizers=phis, tokens=tokens, digits=25
    )
    assert enclosed(found.readout, true.readout, found.bits)
    assert found.free_signs == tuple(i for i, phi in enumerate(phis, start=1) if phi.even)
    for i, (balls, score) in enumerate(zip(found.scores, true.scores, strict=True), start=1):
        signs = (1, -1) if i in found.free_signs else (1,)
        assert any(enclosed(balls, score, found.bits, sign) for sign in signs)
    assert float(found.error_bound) < 1e-25
    assert float(found.held_out_error) < 1e-25


def elementwise(function: Any) -> Any:
    return lambda s: np.frompyfunc(function, 1, 1)(s)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_normalizer_without_slope_that_is_not_even_has_a_sign(seed: int) -> None:
    # log phi = s^2 + s^3.
    taylor = [1, 0, 1, 1, "1/2", 1]
    phi: Normalizer = CustomNormalizer(
        "tilted",
        elementwise(lambda s: (s * s + s**3).exp()),
        elementwise(lambda s: (2 * s + 3 * s * s) * (s * s + s**3).exp()),
        [Fraction(c) for c in taylor],
    )
    true = random_network(2, 2, 1, seed)
    small = EffectiveParameters(true.readout, (true.scores[0] / 4,))
    found = recover(network_oracle(small, [phi], 2), width=2, normalizers=[phi], digits=20)
    assert found.free_signs == ()
    assert enclosed(found.scores[0], small.scores[0], found.bits)


def test_skew_final_scores_are_recovered() -> None:
    true = random_network(2, 2, 2, 5)
    skew = exact(np.array([[0.0, 1.5], [-1.5, 0.0]]))
    network = EffectiveParameters(true.readout, (true.scores[0], skew))
    phis = [normalizer("softmax")] * 2
    found = recover(network_oracle(network, phis, 2), width=2, normalizers=phis)
    assert enclosed(found.scores[1], skew, found.bits)


def test_probe_sizes() -> None:
    assert signal_orders([1, 1, 1], 1) == taylor_orders([1, 1, 1]) == [3, 7, 19]
    exponents, orders = probe_exponents([3, 7, 19]), [3, 7, 19]
    for i in range(3):
        for j in range(i + 1, 3):
            assert 2 * exponents[i] >= exponents[j] * (orders[j] - orders[i] + 2)


def softmax_pair(inputs: Any, bits: int) -> Any:
    """An independent implementation: two tokens, one layer, score 3 x y, readout 2."""
    x, y = inputs[0][0], inputs[1][0]
    results = []
    for query in (x, y):
        a, b = (3 * query * x).exp(), (3 * query * y).exp()
        results.append([2 * (a * x + b * y) / (a + b)])
    return results


def test_an_independent_oracle() -> None:
    found = recover(softmax_pair, width=1, normalizers=[normalizer("softmax")])
    assert found.readout[0, 0].contains(2)
    assert found.scores[0][0, 0].contains(3)
    assert found.evaluations < 20


def rounded(digits: int) -> Any:
    def oracle(inputs: Any, bits: int) -> Any:
        answer = network_oracle(random_network(2, 2, 1, 0), [normalizer("softmax")], 2)(
            inputs, bits
        )
        spread = flint.arb(0, flint.arb(10) ** -digits)
        return answer + spread

    return oracle


@pytest.mark.parametrize(
    ("oracle", "options", "sentence"),
    [
        (rounded(12), {}, r"good to about \d+ digits, but \d+ digits are needed"),
        (lambda x, bits: np.zeros((2, 2)), {}, r"float64 values \(16 digits\), but \d+ digits"),
        (lambda x, bits: [[0, 0]] * 2, {}, "L = 0 hides every score"),
        (lambda x, bits: [[0, 0]] * 3, {}, "expected"),
        (lambda x, bits: [["one", "two"]] * 2, {}, "must return integers"),
        (lambda x, bits: x * flint.arb("nan"), {}, "not finite"),
        (rounded(12), {"tokens": 1}, "at least two tokens"),
        (rounded(12), {"normalizers": [normalizer("softmax")] * 4}, "depth 1 to 3"),
        (rounded(12), {"normalizers": [normalizer("cosh")] * 3}, "depth 1 and 2"),
    ],
)
def test_wrong_oracles_get_a_sentence(oracle: Any, options: dict[str, Any], sentence: str) -> None:
    arguments = {"width": 2, "normalizers": [normalizer("softmax")], **options}
    with pytest.raises(InputError, match=sentence):
        recover(oracle, **arguments)


def test_hidden_layers_are_refused() -> None:
    true = random_network(2, 2, 2, 5)
    skew = exact(np.array([[0.0, 1.0], [-1.0, 0.0]]))
    network = EffectiveParameters(true.readout, (skew, true.scores[0]))
    phis = [normalizer("softmax")] * 2
    with pytest.raises(InputError, match="no contrast reaches layer 2"):
        recover(network_oracle(network, phis, 2), width=2, normalizers=phis)


def test_another_function_is_not_confirmed() -> None:
    true = random_network(2, 2, 2, 5)
    deeper = network_oracle(true, [normalizer("softmax")] * 2, 2)
    with pytest.raises(InputError, match="not a network of this depth"):
        recover(deeper, width=2, normalizers=[normalizer("softmax")], digits=15)


SECRET = random_network(2, 2, 1, 0)
SOFTMAX = [normalizer("softmax")]
PLAIN_ORACLE = network_oracle(SECRET, SOFTMAX, 2)


def residual(inputs: Any, bits: int) -> Any:
    return PLAIN_ORACLE(inputs, bits) + inputs


def causal(inputs: Any, bits: int) -> Any:
    answer = PLAIN_ORACLE(inputs, bits).copy()
    answer[0] = Balls(bits).array(SECRET.readout) @ inputs[0]
    return answer


def decimal_strings(digits: int) -> Any:
    return lambda x, bits: [
        [v.str(digits, radius=False) for v in row] for row in PLAIN_ORACLE(x, bits + 64)
    ]


def noisy(digits: int) -> Any:
    rng = np.random.default_rng(3)

    def oracle(inputs: Any, bits: int) -> Any:
        answer = PLAIN_ORACLE(inputs, bits)
        noise = rng.integers(1, 10, answer.shape).astype(object)
        return answer + noise * flint.arb(10) ** -digits

    return oracle


NOT_THIS_FORM = "the oracle is not a network of this depth, width and normalizers"


@pytest.mark.parametrize(
    ("oracle", "depth", "sentence"),
    [
        (residual, 1, NOT_THIS_FORM),
        (residual, 2, NOT_THIS_FORM),
        (causal, 1, "reordered tokens"),
        (causal, 2, "reordered tokens"),
        (lambda x, bits: [[1, 2]] * 2, 1, NOT_THIS_FORM),
        (lambda x, bits: [[1, 2]] * 2, 2, NOT_THIS_FORM),
        (lambda x, bits: [[Fraction(1, 3), Fraction(2, 7)]] * 2, 1, NOT_THIS_FORM),
        (lambda x, bits: elementwise(lambda v: v.tanh())(PLAIN_ORACLE(x, bits)), 1, NOT_THIS_FORM),
        (network_oracle(random_network(2, 2, 2, 0), SOFTMAX * 2, 2), 3, NOT_THIS_FORM),
        (decimal_strings(40), 1, r"good to about (39|40|41) digits, but \d+ digits are needed"),
        (decimal_strings(40), 2, r"good to about (39|40|41) digits, but \d+ digits are needed"),
        (lambda x, bits: PLAIN_ORACLE(x, bits) + flint.arb(10) ** -40, 1,
         r"good to about (39|40|41) digits, but \d+ digits are needed"),
        (noisy(60), 1, r"good to about (58|59|60|61) digits, but \d+ digits are needed"),
    ],
)  # fmt: skip
def test_what_is_no_such_network_gets_a_sentence(oracle: Any, depth: int, sentence: str) -> None:
    for seed in (0, 1):
        with pytest.raises(InputError, match=sentence) as raised:
            recover(oracle, width=2, normalizers=SOFTMAX * depth, seed=seed)
        assert "not positive" not in str(raised.value)


def refusing(inputs: Any, bits: int) -> Any:
    raise ValueError("no\nsuch input")


def test_a_failing_oracle_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"failed on inputs of shape \(2, 2\).*no such input"):
        recover(refusing, width=2, normalizers=SOFTMAX)
    with pytest.raises(InputError, match=r"failed on inputs of shape \(2, 3\)"):
        recover(PLAIN_ORACLE, width=3, normalizers=SOFTMAX)
    answers = iter([[[1, 2]] * 2, [[1]] * 2])
    with pytest.raises(InputError, match="1 outputs a token after 2"):
        recover(lambda x, bits: next(answers), width=2, normalizers=SOFTMAX)


def test_enough_decimal_strings_recover() -> None:
    found = recover(decimal_strings(200), width=2, normalizers=SOFTMAX)
    assert enclosed(found.scores[0], SECRET.scores[0], 60)


@pytest.mark.parametrize("names", [["softmax"], ["cosh"], ["softmax", "softplus"]])
def test_readouts_with_a_kernel(names: list[str]) -> None:
    # Probing directions in the kernel of L show nothing; every seed must avoid them.
    phis = [normalizer(name) for name in names]
    scores = tuple(exact(np.array([[1.0, 2.0], [0.5, -1.0]])) for _ in names)
    true = EffectiveParameters(exact(np.array([[1.0, 0.0], [-2.0, 0.0]])), scores)
    oracle = network_oracle(true, phis, 2)
    for seed in range(6):
        found = recover(oracle, width=2, normalizers=phis, digits=10, seed=seed)
        for i, (balls, score) in enumerate(zip(found.scores, true.scores, strict=True), start=1):
            signs = (1, -1) if i in found.free_signs else (1,)
            assert any(enclosed(balls, score, found.bits, sign) for sign in signs)


def test_scores_that_hide_are_among_the_reasons() -> None:
    true = EffectiveParameters(exact(np.eye(1)), (exact(np.eye(1)), exact(np.zeros((1, 1)))))
    phis = [normalizer("exp-square"), normalizer("cosh")]
    with pytest.raises(InputError, match=r"zero, skew|no symmetric part"):
        recover(network_oracle(true, phis, 2), width=1, normalizers=phis)
