"""The published scalar and matrix cases, in enclosures."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.spectrum import PathSpectrum, spectrum_along
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.banks import theorem_orders
from fiberscope.families.deep_attention.paths import matrix_case, scalar_case

# Computed by two independent programs in 110 and 130 digits.
SCALAR = {
    "0.08": ["0.15825991", "2.6365694e-6", "1.1184714e-19", "3.1370606e-60"],
    "0.04": ["0.079135462", "8.1896219e-8", "8.5087589e-25", "3.4796384e-76"],
    "0.02": ["0.039567905", "2.5553375e-9", "6.4866371e-30", "3.8616689e-92"],
}
SCALAR_SLOPES = [0.999993675, 5.00221112, 17.0011185, 53.0005624]
# Smallest positive value of the matrix case.
SMALLEST = {
    "0.6": "8.584628538703869e-11",
    "0.1": "4.496360025388323e-24",
    "0.06": "7.58144002825610821882194689335380648765e-28",
}
# Published ranges of final-pair slopes: order -> (smallest, largest), six decimals.
RANGES = {0: (0.000019, 0.001653), 1: (0.995986, 1.000806), 5: (5.001606, 5.009794),
          17: (16.994265, 17.014769)}  # fmt: skip


def agrees(found: str, printed: str) -> bool:
    """Equal to within two units of the last printed digit."""
    digits = len(printed.split("e")[0].replace(".", ""))
    return abs(Fraction(found) / Fraction(printed) - 1) < 2 * Fraction(1, 10 ** (digits - 1))


def test_scalar_case() -> None:
    path, bank = scalar_case()
    points = {Fraction(t): path.at(Fraction(t)) for t in SCALAR}
    found = spectrum_along(
        DeepAttention(path.architecture), points, bank, orders={1: 1, 5: 1, 17: 1, 53: 1}
    )
    assert found.kernel_dimension == 4
    for t, expected in SCALAR.items():
        for mine, reference in zip(found.spectra[Fraction(t)].decimals(20), expected, strict=True):
            assert abs(float(Fraction(mine) / Fraction(reference)) - 1) < 5e-8
    slopes = [band.slopes[0] for band in found.bands]
    assert np.allclose(slopes, SCALAR_SLOPES, rtol=0, atol=1e-7)
    assert found.spectra[Fraction("0.02")].decimals(6)[-1] == "3.86167e-92"


@pytest.fixture(scope="module")
def matrix_spectrum() -> PathSpectrum:
    path, bank = matrix_case()
    points = {Fraction(t): path.at(Fraction(t)) for t in SMALLEST}
    orders = theorem_orders(path.architecture)
    family = DeepAttention(path.architecture)
    return spectrum_along(family, points, bank, orders=orders, digits=40)


def test_matrix_case(matrix_spectrum: PathSpectrum) -> None:
    found = matrix_spectrum
    assert found.kernel_dimension == 44
    assert [(band.order, band.multiplicity) for band in found.bands] == [
        (0, 16), (1, 12), (5, 12), (17, 12),
    ]  # fmt: skip
    for t, smallest in SMALLEST.items():
        spectrum = found.spectra[Fraction(t)]
        assert spectrum.relative_error < 1e-20
        assert agrees(spectrum.decimals(40)[-1], smallest)
    for band in found.bands:
        assert band.order is not None
        low, high = RANGES[band.order]
        assert (round(min(band.slopes), 6), round(max(band.slopes), 6)) == (low, high)


def test_matrix_case_in_float64(matrix_spectrum: PathSpectrum) -> None:
    ranks = {str(float(t)): rank for t, rank in matrix_spectrum.float64_ranks.items()}
    assert ranks == {"0.6": 46, "0.1": 40, "0.06": 40}


def test_float64_rank_at_every_published_point() -> None:
    path, bank = matrix_case()
    family = DeepAttention(path.architecture)
    ranks = {}
    for t in ("0.6", "0.4", "0.25", "0.16", "0.1", "0.06"):
        sigma = np.linalg.svd(family.jacobian(path.at_float64(Fraction(t)), bank), compute_uv=False)
        ranks[t] = int((sigma > 1e-10 * sigma[0]).sum())
    assert ranks == {"0.6": 46, "0.4": 40, "0.25": 40, "0.16": 40, "0.1": 40, "0.06": 40}
