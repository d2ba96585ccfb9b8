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
