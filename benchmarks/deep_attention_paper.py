"""Recompute the published numbers of the scalar case, the matrix case and the noise experiment.

Every singular value is enclosed in a ball; the page ``docs/deep-attention-paper.md`` compares this
script's output with the publication. Usage:

    python benchmarks/deep_attention_paper.py
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from fiberscope.analysis.principal_angles import largest_principal_angle_sine, remove_component
from fiberscope.analysis.spectrum import EnclosedSpectrum, enclosed_spectrum, spectrum_along
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.banks import theorem_orders
from fiberscope.families.deep_attention.last_layer import divided_columns, joined
from fiberscope.families.deep_attention.one_observation import noisy_recovery, scalar_prefix
from fiberscope.families.deep_attention.paths import matrix_case, scalar_case
from fiberscope.numbers.balls import Balls

POINTS = ("0.6", "0.4", "0.25", "0.16", "0.1", "0.06")


def scalar() -> None:
    path, bank = scalar_case()
    points = {Fraction(t): path.at(Fraction(t)) for t in ("0.08", "0.04", "0.02")}
    orders = {1: 1, 5: 1, 17: 1, 53: 1}
    found = spectrum_along(DeepAttention(path.architecture), points, bank, orders=orders)
    print("scalar depth four")
    for t, spectrum in found.spectra.items():
        print(f"  t = {float(t)}: {', '.join(spectrum.decimals(9))}")
    slopes = ", ".join(f"{band.slopes[0]:.6f}" for band in found.bands)
    print(f"  final-pair slopes {slopes}; exact zeros {found.kernel_dimension}")


def weak_space_angle(spectrum: EnclosedSpectrum, t: Fraction, system: Balls) -> float:
    """Sine between the last layer's image off the others and the twelve weakest directions."""
    path, bank = matrix_case()
    family = DeepAttention(path.architecture)
    blocks = divided_columns(path, bank, t, system)
    with system.precision():
        last = remove_component(blocks[-1], joined(blocks[:-1], system), system)
        jacobian = system.matrix(family.jacobian(path.at(t), bank, system))
        weakest = spectrum.right_vectors.transpose().tolist()[-12:]
        image = jacobian * system.flint.arb_mat(weakest).transpose()
        sizes = [value.mid() for value in spectrum.values[-12:]]
        scaled = [[x / s for x, s in zip(row, sizes, strict=True)] for row in image.mid().tolist()]
        return largest_principal_angle_sine(last, system.flint.arb_mat(scaled), system)


def matrix() -> None:
    path, bank = matrix_case()
    family = DeepAttention(path.architecture)
    points = {Fraction(t): path.at(Fraction(t)) for t in POINTS}
    orders = theorem_orders(path.architecture)
    found = spectrum_along(family, points, bank, orders=orders, digits=30)
    print(f"matrix case, {bank.size * 16} x {family.space.size}")
    print(f"  exact zeros {found.kernel_dimension}, positive {sum(orders.values())}")
    for t, spectrum in found.spectra.items():
        wide = enclosed_spectrum(family, path.at(t), bank, start_bits=400)
        angle = weak_space_angle(wide, t, Balls(400))
        print(f"  t = {float(t)}: smallest {spectrum.decimals(16)[-1]}, relative error "
              f"{spectrum.relative_error:.1e}, float64 rank {found.float64_ranks[t]}, "
              f"weak-space angle sine {angle:.6e}")  # fmt: skip
    for band in found.bands:
        low, high = min(band.slopes), max(band.slopes)
        print(f"  order {band.order}: {band.multiplicity} values, slopes {low:.6f} to {high:.6f}")
    print(f"  90 against 120 digits: {precision_change():.2e} largest relative change of midpoints")
    print(f"  closed form against dual numbers in float64: {float64_agreement():.2e} (Frobenius)")


def precision_change() -> float:
    """Largest relative difference of midpoints between 90 and 120 digits, over all points."""
    path, bank = matrix_case()
    family = DeepAttention(path.architecture)
    worst = 0.0
    for t in POINTS:
        point = path.at(Fraction(t))
        runs = [
            enclosed_spectrum(family, point, bank, digits=1, start_bits=bits).values
            for bits in (299, 399)
        ]
        with Balls(399).precision():
            for a, b in zip(*runs, strict=True):
                assert a.overlaps(b)
                worst = max(worst, abs(float(a.mid() / b.mid() - 1)))
    return worst


def float64_agreement() -> float:
    """Relative Frobenius distance of the float64 dual-number Jacobian from the enclosed one."""
    path, bank = matrix_case()
    family, system = DeepAttention(path.architecture), Balls(200)
    worst = 0.0
    for t in POINTS:
        rounded = path.at_float64(Fraction(t))
        duals: Any = family.jacobian(rounded, bank)
        with system.precision():
            closed = system.to_float64(family.jacobian(rounded, bank, system))
        worst = max(worst, float(np.linalg.norm(duals - closed) / np.linalg.norm(closed)))
    return worst


def noise() -> None:
    prefix = scalar_prefix((1.5, 0.5), 0.01)
    print("one noisy observation")
    print(f"  prefix mean {prefix.mean:.10f}, contrast {prefix.contrast:.10f}, "
          f"b {prefix.sensitivity:.10e}")  # fmt: skip
    for result in noisy_recovery([0.01, 0.1, 1.0, 10.0]):
        print(f"  noise ratio {result.ratio}: MSE {result.mean_square_error:.5g}, "
              f"bias {result.bias:.5g}")  # fmt: skip


if __name__ == "__main__":
    scalar()
    matrix()
    noise()
