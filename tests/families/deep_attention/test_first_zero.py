"""The all-zero point, the flat boundary and rank-one layers: facts stated without a program."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad

from fiberscope.errors import InputError
from fiberscope.families.deep_attention import CustomNormalizer, DeepAttention

WIDTH, TOKENS = 3, 3


def network(depth: int) -> DeepAttention:
    """Softmax, identity values, factors of one column."""
    return DeepAttention.build(
        widths=[WIDTH] * (depth + 1), ranks=1, tokens=TOKENS, trainable_values=False
    )


def residual(family: DeepAttention, point: dict[str, np.ndarray], bank: object) -> float:
    """Squared distance from uniform averaging on the bank."""
    averaging = {name: 0 * value for name, value in point.items()}
    return float(((family.observe(point, bank) - family.observe(averaging, bank)) ** 2).sum())


def test_the_residual_at_the_first_zero_is_that_of_the_first_score() -> None:
    # Serial: R is comparable to |q_1|^2 |k_1|^2, whatever the later factors are.
    family, rng = network(2), np.random.default_rng(0)
    bank = family.design(12, rng)
    ratios = []
    for _ in range(200):
        point = {n: 0.3 * rng.standard_normal(s) for n, s in family.space.shapes.items()}
        point["Q1"] *= 10.0 ** rng.uniform(-2, 0)
        point["K1"] *= 10.0 ** rng.uniform(-2, 0)
        size = (point["Q1"] ** 2).sum() * (point["K1"] ** 2).sum()
        ratios.append(residual(family, point, bank) / size)
    # Sizes span eight decades, the ratio less than three.
    assert max(ratios) < 1e3 * min(ratios)


def test_serial_collapse_has_two_components() -> None:
    # Independent layers: one zero factor a layer, 2^D components. Serial: the first layer decides.
    family, rng = network(2), np.random.default_rng(1)
    bank = family.design(4, rng)
    for zeros in product(("Q", "K", ""), repeat=2):
        point = {n: rng.standard_normal(s) for n, s in family.space.shapes.items()}
        for layer, kind in enumerate(zeros, start=1):
            if kind:
                point[f"{kind}{layer}"] *= 0
        gone = residual(family, point, bank) < 1e-25
        assert gone == (zeros[0] != "")


def loss_integral(temperature: float, d: int) -> float:
    """``int exp(-T a^2 b^2) a^(d-1) b^(d-1)`` over the unit square, by nested quadrature."""

    def inner(a: float) -> float:
        # With v = sqrt(T) a b the inner integral is one of exp(-v^2) v^(d-1).
        top = np.sqrt(temperature) * a
        value, _ = quad(lambda v: np.exp(-v * v) * v ** (d - 1), 0, min(top, 12), epsabs=0)
        return value / top**d

    value, _ = quad(
        lambda s: np.exp(s * d) * inner(np.exp(s)), -np.log(temperature) / 2 - 8, 0,
        epsabs=0, epsrel=1e-9, limit=200,
    )  # fmt: skip
    return value


@pytest.mark.parametrize("d", [1, 2, 3])
def test_learning_coefficients_at_the_all_zero_point(d: int) -> None:
    # (d/2, 2) for the serial network: T^(d/2) Z is linear in log T; its D-th power, of independent
    # layers, is then a polynomial of degree D: (D d/2, D + 1).
    logs = np.array([20.0, 25.0, 30.0])
    scaled = [np.exp(s * d / 2) * loss_integral(float(np.exp(s)), d) for s in logs]
    first, second = np.diff(scaled)
    assert first > 0 and abs(second / first - 1) < 1e-5


def flat(s: np.ndarray) -> np.ndarray:
    """``exp(s b(s))``, ``b = exp(-1/s^2)``: smooth, increasing, with constant Taylor series."""
    with np.errstate(divide="ignore"):
        return np.exp(s * np.exp(-1 / (s * s)))


def test_a_smooth_flat_normalizer_is_seen_by_the_function_and_by_no_jet() -> None:
    pytest.importorskip("flint")
    from fiberscope.numbers.balls import Balls

    balls = Balls(8000)
    with balls.precision():
        for r in (Fraction(1, 4), Fraction(1, 6), Fraction(1, 8)):
            outputs = []
            for c in (1, 2):
                s = balls.number(c * r * r)
                phi = (s * (-1 / (s * s)).exp()).exp()
                outputs.append(balls.number(r) * phi / (phi + 1))
            gap = outputs[1] - outputs[0]
            # The scores differ, at an order beyond r^30.
            assert gap > 0 and gap < balls.number(r) ** 30
    values = flat(np.array([-0.9, -0.5, 0.0, 0.5, 0.9])[[0, 1, 3, 4]])
    assert np.all(np.diff(values) > 0)
    with pytest.raises(InputError, match="Taylor data show a constant"):
        CustomNormalizer("flat", flat, flat, [1, 0, 0, 0, 0])


@pytest.mark.parametrize("normalizers", [None, "softmax"])
def test_rank_one_layers_exchange_two_linear_forms(normalizers: str | None) -> None:
    # Henry, Marchetti, Kohn, Theorem 3.2: with rank-one score and value an unnormalized layer is a
    # product of linear forms (q.x_a)(k.x_b)(v.x_b), so k and v can be exchanged.
    family = DeepAttention.build(widths=[3, 2], ranks=1, tokens=3, normalizers=normalizers)
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 3))
    w = rng.standard_normal(2)
    bank = family.design(3, rng)
    points = [
        {"Q1": q[None, :, None], "K1": a[None, :, None], "V1": np.outer(w, b)[None]}
        for a, b in ((k, v), (v, k))
    ]
    same = np.allclose(*(family.observe(point, bank) for point in points))
    assert same == (normalizers is None)
