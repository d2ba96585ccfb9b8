"""Published numbers that are not singular values: subspaces, precision, noise, Jacobians."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.principal_angles import (
    largest_principal_angle_sine,
    orthonormal_columns,
    remove_component,
)
from fiberscope.analysis.spectrum import enclosed_spectrum
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.last_layer import divided_columns, joined
from fiberscope.families.deep_attention.one_observation import noisy_recovery, scalar_prefix
from fiberscope.families.deep_attention.paths import matrix_case
from fiberscope.numbers.balls import Balls


def test_principal_angles_of_known_planes() -> None:
    system = Balls(200)
    with system.precision():
        tiny = system.flint.arb(10) ** -30
        first = system.flint.arb_mat([[1, 0], [0, 1], [0, 0]])
        second = system.flint.arb_mat([[3, 1], [1, 2], [0, tiny]])
        basis = orthonormal_columns(second, system)
        gram = system.to_float64(system.from_matrix(basis.transpose() * basis))
        assert np.allclose(gram, np.eye(2), atol=1e-15)
        # (3, 1, 0) lies in the first plane; (1, 2, e) minus its share of it has length sqrt(5/2).
        sine = largest_principal_angle_sine(first, second, system)
        assert np.isclose(sine, 1e-30 / np.sqrt(2.5), rtol=1e-12)
        off = remove_component(second, first, system)
        assert float(abs(off[0, 1])) < 1e-55 and off[2, 1].overlaps(tiny)


@pytest.mark.parametrize(("t", "published"), [("0.6", "3.01e-6"), ("0.06", "5.21e-20")])
def test_weak_space_of_the_matrix_case(t: str, published: str) -> None:
    path, bank = matrix_case()
    family, system = DeepAttention(path.architecture), Balls(330)
    point = path.at(Fraction(t))
    spectrum = enclosed_spectrum(family, point, bank, start_bits=330)
    blocks = divided_columns(path, bank, Fraction(t), system)
    assert [block.ncols() for block in blocks] == [16, 12, 12, 12]
    with system.precision():
        last = remove_component(blocks[-1], joined(blocks[:-1], system), system)
        weakest = spectrum.right_vectors.transpose().tolist()[-12:]
        image = system.matrix(family.jacobian(point, bank, system)).mid()
        image = (image * system.flint.arb_mat(weakest).transpose()).mid()
        sizes = [value.mid() for value in spectrum.values[-12:]]
        scaled = [[x / s for x, s in zip(row, sizes, strict=True)] for row in image.tolist()]
        sine = largest_principal_angle_sine(last, system.flint.arb_mat(scaled), system)
    assert f"{sine:.2e}".replace("e-06", "e-6") == published


def test_ninety_digits_agree_with_a_hundred_and_twenty() -> None:
    path, bank = matrix_case()
    family, point = DeepAttention(path.architecture), path.at(Fraction("0.06"))
    low, high = (
        enclosed_spectrum(family, point, bank, digits=1, start_bits=bits) for bits in (299, 399)
    )
    assert low.relative_error < 1e-30 and high.relative_error < 1e-60
    with Balls(399).precision():
        for a, b in zip(low.values, high.values, strict=True):
            # Published as the largest relative change; ours is smaller.
            assert a.overlaps(b) and abs(a.mid() / b.mid() - 1) < 1.31e-35


def test_closed_form_against_automatic_differentiation() -> None:
    path, bank = matrix_case()
    family, system = DeepAttention(path.architecture), Balls(120)
    for t in ("0.6", "0.06"):
        rounded = path.at_float64(Fraction(t))
        duals = np.asarray(family.jacobian(rounded, bank))
        with system.precision():
            closed = system.to_float64(family.jacobian(rounded, bank, system))
        assert duals.shape == (768, 96)
        # The published bound is for another float64 program; rounding differs a little.
        assert np.linalg.norm(duals - closed) < 2 * 1.47e-16 * np.linalg.norm(closed)


def test_one_noisy_observation() -> None:
    prefix = scalar_prefix((1.5, 0.5), 0.01)
    assert f"{prefix.mean:.12f}" == "1.002499963542"
    assert f"{prefix.contrast:.14f}" == "0.00124996614662"
    assert f"{prefix.sensitivity:.11e}" == "1.56632134916e-06"
    published = {
        0.01: ("2.5319e-07", "-4.6635e-06"),
        0.1: ("2.5448e-05", "-1.6122e-04"),
        1.0: ("2.9054e-03", "-1.0894e-02"),
        10.0: ("1.7279e-02", "2.5337e-02"),
    }
    for result in noisy_recovery(list(published)):
        mean_square, bias = published[result.ratio]
        assert f"{result.mean_square_error:.4e}" == mean_square
        assert f"{result.bias:.4e}" == bias
