from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.spectrum import (
    EnclosedSpectrum,
    enclosed_spectrum,
    fisher_eigenvalues,
    fitted_slopes,
    float64_rank,
    spectrum_along,
)
from fiberscope.errors import InputError
from fiberscope.family import Design
from fiberscope.numbers.balls import Balls, load_flint

arb = load_flint().arb


class Linear:
    """``theta -> A theta``: its Jacobian is ``A``, with a given kernel."""

    def __init__(self, matrix: np.ndarray, kernel: np.ndarray) -> None:
        self.matrix, self.kernel = matrix, kernel

    def jacobian(self, parameters: Any, design: Design, system: Any = None) -> Any:
        return self.matrix.astype(np.float64) if system is None else system.array(self.matrix)

    def exact_kernel(self, parameters: Any) -> np.ndarray:
        return self.kernel


def example(decay: int) -> Linear:
    """12 x 7 integers of rank 5, with columns of very different size and a rational kernel."""
    rng = np.random.default_rng(1)
    free = rng.integers(-9, 10, (12, 5)).astype(object)
    free = free * np.array([Fraction(1, 10 ** (decay * k)) for k in range(5)], dtype=object)
    # Two more columns are combinations of the first two.
    mix = np.array([[2, 1], [1, -1]], dtype=object)
    matrix = np.concatenate([free, free[:, :2] @ mix], axis=1)
    kernel = np.zeros((3, 7), dtype=object)
    kernel[:2, :2], kernel[:2, 5:] = mix.T, -np.eye(2, dtype=int)
    kernel[2] = kernel[0] - 3 * kernel[1]
    return Linear(matrix, np.vectorize(Fraction, otypes=[object])(kernel))


@pytest.mark.parametrize("decay", [0, 3, 11])
def test_values_against_mpmath(decay: int) -> None:
    family = example(decay)
    found = enclosed_spectrum(family, {}, Design(1), digits=25, start_bits=64)
    with mpmath.workdps(150):
        rows = [
            [mpmath.mpf(Fraction(x).numerator) / Fraction(x).denominator for x in row]
            for row in family.matrix
        ]
        expected = sorted(mpmath.svd_r(mpmath.matrix(rows), compute_uv=False), reverse=True)
        assert found.kernel_dimension == 2
        assert found.relative_error < 1e-25
        for ball, value in zip(found.values, expected, strict=False):
            # 110 digits of the peer's value, taken as a point.
            with Balls(400).precision():
                point = arb(mpmath.nstr(value, 110))
                assert abs(point - ball.mid()) <= ball.rad() + abs(point) * 1e-60
    assert found.decimals(30)[-1][:12] == mpmath.nstr(expected[4], 30)[:12]


def test_a_missing_kernel_direction_is_noticed() -> None:
    family = example(0)
    hidden = Linear(family.matrix, family.kernel[:1])
    with pytest.raises(InputError, match="more zeros than the known symmetries explain"):
        enclosed_spectrum(hidden, {}, Design(1), start_bits=6400)


def test_slopes_and_fisher_information() -> None:
    with Balls(200).precision():
        first, second = [arb(8)], [arb(1)]
        slope = fitted_slopes(first, second, Fraction(2), Fraction(1), 200)[0]
        assert slope.overlaps(arb(3))
        spectrum = EnclosedSpectrum((arb(3),), 0, 1e-50, 200, None)
    assert fisher_eigenvalues(spectrum, Fraction(1, 2), 20) == ["36.000000000000000000"]


def test_float64_rank_is_the_usual_cutoff() -> None:
    assert float64_rank(np.diag([1.0, 1e-9, 1e-11])) == 2
    assert float64_rank(np.zeros((2, 2))) == 0


def test_zero_is_refused() -> None:
    with pytest.raises(InputError, match="t = 0"):
        spectrum_along(example(0), {Fraction(0): {}}, Design(1))
