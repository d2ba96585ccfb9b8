"""Facts that the recovery and the orders rest on, each from the network itself in balls."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.families.deep_attention.effective import EffectiveParameters, exact
from fiberscope.families.deep_attention.normalizers import Normalizer, normalizer
from fiberscope.families.deep_attention.recovery import network_oracle
from fiberscope.numbers.balls import Balls

BITS = 900
BALLS = Balls(BITS)
RNG = np.random.default_rng(3)
SCORE = RNG.integers(-4, 5, (3, 3))
MEAN, DIRECTION = RNG.integers(-3, 4, 3), RNG.integers(-3, 4, 3)


def outputs(score: np.ndarray, phi: Normalizer, tokens: np.ndarray, depth: int = 1) -> np.ndarray:
    network = EffectiveParameters(exact(np.eye(3, dtype=int)), (exact(score),) * depth)
    with BALLS.precision():
        return network_oracle(network, [phi] * depth, len(tokens))(BALLS.array(tokens), BITS)


def line(epsilon: Fraction, c: list[int]) -> np.ndarray:
    return np.stack([exact(MEAN) / 8 + epsilon * k * exact(DIRECTION) for k in c])


@pytest.mark.parametrize("name", ["softmax", "cosh", "exp-square", "softplus", "sigmoid"])
def test_mean_shift_and_contrast_of_one_layer(name: str) -> None:
    # Mean shift eps^2 z H, contrast eps^3 c z K, with c of mean zero and mean square one.
    phi = normalizer(name)
    epsilon = Fraction(1, 10**9)
    found = outputs(SCORE, phi, line(epsilon, [1, -1]))
    with BALLS.precision():
        m, z = BALLS.array(exact(MEAN) / 8), BALLS.array(exact(DIRECTION))
        M = BALLS.array(SCORE)
        q, u, v, w = m @ M @ m, z @ M @ m, m @ M @ z, z @ M @ z
        # g = h' and g' by differences of the exact derivative of log phi at 600 bits.
        step = BALLS.number(Fraction(1, 10**40))

        def g(s: object) -> object:
            array = np.array([s], dtype=object)
            return (phi.derivative(array, BALLS) / phi.value(array, BALLS))[0]

        slope = (g(q + step) - g(q - step)) / (2 * step)
        H, K = g(q) * v, g(q) * w + slope * u * v
        eps = BALLS.number(epsilon)
        mean = (found[0] + found[1]) / 2
        half = (found[0] - found[1]) / 2
        for i in range(3):
            assert abs((mean[i] - m[i]) / eps**2 - z[i] * H) < 1e-12
            assert abs(half[i] / eps**3 - z[i] * K) < 1e-12


def test_two_tokens_collapse_under_skew_softmax() -> None:
    skew = np.array([[0, 2, 1], [-2, 0, -3], [-1, 3, 0]])
    found = outputs(skew, normalizer("softmax"), line(Fraction(1, 2), [1, -1]))
    with BALLS.precision():
        m, z = BALLS.array(exact(MEAN) / 8), BALLS.array(exact(DIRECTION) / 2)
        expected = m + z * (m @ BALLS.array(skew) @ z).tanh()
        assert all(
            a.overlaps(e) and b.overlaps(e) for a, b, e in zip(*found, expected, strict=True)
        )


def test_scaling_scores_is_scaling_inputs() -> None:
    t = Fraction(3, 7)
    tokens = exact(RNG.integers(-4, 5, (4, 3))) / 4
    small = outputs(exact(SCORE) * t**2, normalizer("softmax"), tokens, depth=2)
    scaled = outputs(SCORE, normalizer("softmax"), tokens * t, depth=2)
    with BALLS.precision():
        shrink = BALLS.number(t)
        assert all((a * shrink).overlaps(b) for a, b in zip(small.flat, scaled.flat, strict=True))


def test_clouds_follow_the_covariance() -> None:
    # x = m + eps y: mean m + eps^2 C M^T m, centred eps^3 C M^T y, to leading order.
    epsilon = Fraction(1, 10**8)
    y = exact(np.array([[1, 2, 0], [-3, 1, 1], [0, -4, 2], [2, 1, -3]]))
    found = outputs(SCORE, normalizer("softmax"), exact(MEAN) / 8 + epsilon * y)
    C = y.T @ y / Fraction(4)
    shift, centred = C @ SCORE.T @ (exact(MEAN) / 8), y @ SCORE @ C
    with BALLS.precision():
        eps = BALLS.number(epsilon)
        mean = found.sum(axis=0) / 4
        for i in range(3):
            start = BALLS.number(exact(MEAN)[i] / 8)
            assert abs((mean[i] - start) / eps**2 - BALLS.number(shift[i])) < 1e-4
            for a in range(4):
                scaled = (found[a, i] - mean[i]) / eps**3
                assert abs(scaled - BALLS.number(centred[a, i])) < 1e-4


@pytest.mark.parametrize("name", ["softmax", "cosh", "exp-square", "softplus", "sigmoid"])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 4)])
def test_skew_scores_on_clouds_at_two_points(name: str, share: Fraction) -> None:
    # p of four tokens at one point: exact mean and difference of the outputs.
    phi, first = normalizer(name), int(4 * share)
    skew = np.array([[0, 2, 1], [-2, 0, -3], [-1, 3, 0]])
    positions = [1 - share] * first + [-share] * (4 - first)
    tokens = np.stack([exact(MEAN) / 8 + c * exact(DIRECTION) / 2 for c in positions])
    found = outputs(skew, phi, tokens)
    with BALLS.precision():
        m, z = BALLS.array(exact(MEAN) / 8), BALLS.array(exact(DIRECTION) / 2)
        p, u = BALLS.number(share), m @ BALLS.array(skew) @ z
        at = phi.value(BALLS.array([u * 0, u, -u]), BALLS)
        plus, minus = at[1] / at[0], at[2] / at[0]
        a, b = p + (1 - p) * minus, p * plus + 1 - p
        shift = p * (1 - p) * (p * (1 - minus) / a + (1 - p) * (plus - 1) / b)
        gap = p * (1 - p) * (1 - plus * minus) / (a * b)
        mean, difference = found.sum(axis=0) / 4 - m, found[0] - found[3]
        assert all(x.overlaps(shift * y) for x, y in zip(mean, z, strict=True))
        assert all(x.overlaps(gap * y) for x, y in zip(difference, z, strict=True))
        if name in ("cosh", "exp-square") and share == Fraction(1, 2):
            assert shift.overlaps(BALLS.number(0))


def test_rational_inversion_of_the_second_layer() -> None:
    # M_2 z = c / (a_1(0, z)^2 g (l z)), c the part of the output mean that is linear in m at
    # order eps^6, a_1(0, z) = g z^T M_1 z; softmax has g = 1.
    phi, width = normalizer("softmax"), 3
    rng = np.random.default_rng(9)
    scores = [exact(rng.integers(-4, 5, (width, width))) for _ in range(2)]
    readout = exact(rng.integers(1, 5, (1, width)))
    z = exact(np.array([1, -2, 3]))
    epsilon = small = Fraction(1, 10**20)
    along = z @ scores[0] @ z
    assert along != 0 and (readout @ z)[0] != 0
    with BALLS.precision():
        for i in range(width):
            mean = small * exact(np.eye(width, dtype=int)[i])
            tokens = BALLS.array(np.stack([mean + epsilon * z, mean - epsilon * z]))
            whole, prefix = (
                network_oracle(EffectiveParameters(part, tuple(kept)), [phi] * len(kept), 2)(
                    tokens, BITS
                )
                for part, kept in ((readout, scores), (readout, scores[:1]))
            )
            difference = (whole - prefix).sum(axis=0)[0] / 2
            scale = BALLS.number(epsilon**6 * small * along**2 * (readout @ z)[0])
            entry = BALLS.number((scores[1] @ z)[i])
            assert abs(difference / scale - entry) < 1e-25


def test_covariances_follow_the_recursion() -> None:
    # C_1 = eps^6 C M^T C M C to leading order, for tokens of covariance eps^2 C.
    epsilon = Fraction(1, 10**30)
    y = exact(np.array([[1, 2, 0], [-3, 1, 1], [0, -4, 2], [2, 1, -3]]))
    C, M = y.T @ y / Fraction(4), exact(SCORE)
    found = outputs(SCORE, normalizer("softmax"), exact(MEAN) / 8 + epsilon * y)
    with BALLS.precision():
        centred = (found - found.sum(axis=0) / 4) / BALLS.number(epsilon**3)
        covariance, expected = centred.T @ centred / 4, C @ M.T @ C @ M @ C
        for a, e in zip(covariance.flat, expected.flat, strict=True):
            assert abs(a - BALLS.number(e)) < 1e-20
