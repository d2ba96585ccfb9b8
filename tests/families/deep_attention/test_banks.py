from typing import Any

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.analysis.spectrum import enclosed_spectrum
from fiberscope.errors import InputError
from fiberscope.families.deep_attention import DeepAttention, deep_attention_architecture
from fiberscope.families.deep_attention import bank_design as design
from fiberscope.families.deep_attention.banks import (
    counting_bound,
    exact_orders,
    separates,
    smallest_bank,
    theorem_orders,
)
from fiberscope.families.deep_attention.exact_orders import random_residue_path, residue_path
from fiberscope.families.deep_attention.paths import (
    ContactPath,
    matrix_case,
    random_bank,
    random_path,
)

# Tokens, width, ranks -> smallest generic bank, measured by slopes of singular values in balls.
SIZES = [
    (4, 4, (2, 2, 2), 16), (3, 4, (2, 2, 2), 18), (2, 4, (2, 2, 2), 36), (4, 4, (1, 1, 1), 18),
    (4, 3, (2, 2, 2), 11), (3, 2, (1, 1, 1), 8), (3, 3, (1, 2, 3), 20),
]  # fmt: skip
# Banks that are too small, by the same slopes.
SPLIT = [
    (3, 2, 4, 8, {0: 9, 1: 8, 5: 7, 25: 9}), (3, 2, 4, 9, {0: 9, 1: 8, 5: 8, 17: 2, 25: 6}),
    (3, 2, 4, 10, {0: 9, 1: 8, 5: 8, 17: 5, 25: 3}), (3, 2, 4, 11, {0: 9, 1: 8, 5: 8, 17: 8}),
    (4, 2, 4, 12, {0: 16, 1: 12, 5: 12, 17: 4, 19: 4, 25: 4}),
    (4, 2, 4, 13, {0: 16, 1: 12, 5: 12, 17: 6, 19: 6}),
    (4, 2, 4, 15, {0: 16, 1: 12, 5: 12, 17: 10, 19: 2}),
    (4, 2, 4, 16, {0: 16, 1: 12, 5: 12, 17: 12}),
    (2, 1, 3, 7, {0: 4, 1: 3, 5: 3, 17: 2, 19: 1}),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "width", "ranks", "size"), SIZES)
def test_smallest_bank(tokens: int, width: int, ranks: tuple[int, ...], size: int) -> None:
    architecture = deep_attention_architecture(widths=[width] * 4, ranks=ranks, tokens=tokens)
    found = smallest_bank(architecture)
    assert found.size == counting_bound(architecture) == size
    assert found.orders == theorem_orders(architecture)


@pytest.mark.parametrize(("width", "rank", "tokens", "inputs", "orders"), SPLIT)
def test_exact_orders_of_small_banks(
    width: int, rank: int, tokens: int, inputs: int, orders: dict[int, int]
) -> None:
    architecture = deep_attention_architecture(widths=[width] * 4, ranks=rank, tokens=tokens)
    path = random_residue_path(architecture, inputs, np.random.default_rng(0))
    found = exact_orders(path, least=max(orders) + 1)
    assert found.resolved
    assert found.multiplicities == orders
    separating = orders == theorem_orders(architecture)
    assert separates(path, theorem_orders(architecture)) == separating


@pytest.mark.parametrize(
    ("normalizers", "orders"),
    [
        ("cosh", {0: 4, 3: 3, 11: 3}),
        ("softplus", {0: 4, 1: 3, 5: 3}),
        (["softmax", "cosh"], {0: 4, 1: 3, 7: 3}),
        (["exp-square", "sigmoid"], {0: 4, 3: 3, 9: 3}),
    ],
)
def test_exact_orders_agree_with_the_theorem(normalizers: Any, orders: dict[int, int]) -> None:
    architecture = deep_attention_architecture(
        widths=[2] * 3, ranks=1, tokens=3, normalizers=normalizers
    )
    assert theorem_orders(architecture) == orders
    path = random_residue_path(architecture, 14, np.random.default_rng(1))
    found = exact_orders(path)
    assert (found.multiplicities, found.resolved) == (orders, True)


def test_orders_of_the_given_data() -> None:
    path, bank = matrix_case()
    orders = theorem_orders(path.architecture)
    residues = residue_path(path, bank.inputs)
    assert separates(residues, orders)
    assert separates(residues.restricted(16), orders)
    assert not separates(residues.restricted(15), orders)
    found = exact_orders(residues.restricted(16), least=18)
    assert (found.multiplicities, found.kernel_dimension, found.resolved) == (orders, 44, True)


def test_orders_over_the_rational_numbers() -> None:
    # No prime at all, on the same small integers.
    architecture = deep_attention_architecture(widths=[2] * 3, ranks=1, tokens=3)
    rng = np.random.default_rng(3)
    drawn = random_path(architecture, rng).directions
    directions = {
        name: value if name[0] == "V" else rng.integers(-4, 5, value.shape)
        for name, value in drawn.items()
    }
    path = ContactPath(architecture, directions)
    inputs = rng.integers(-4, 5, (6, 3, 2))
    rational = exact_orders(residue_path(path, inputs, None), least=8)
    assert (rational.multiplicities, rational.resolved) == ({0: 4, 1: 3, 5: 3}, True)
    modular = exact_orders(residue_path(path, inputs), least=8)
    assert modular.multiplicities == rational.multiplicities
    assert separates(residue_path(path, inputs, None), {0: 4, 1: 3, 5: 3})


@pytest.mark.parametrize(
    "wiring", [{"residual": True}, {"trainable_values": False, "mean_only": True}]
)
def test_smallest_bank_of_other_wirings(wiring: dict[str, Any]) -> None:
    architecture = deep_attention_architecture(widths=[2] * 3, ranks=1, tokens=3, **wiring)
    found = smallest_bank(architecture)
    path = random_residue_path(architecture, found.size, np.random.default_rng(5))
    assert separates(path, found.orders)
    assert not separates(path.restricted(found.size - 1), found.orders)


def test_gradient_of_the_last_band() -> None:
    path, bank = matrix_case()
    band = design._LastBand(path.architecture, design.float64_directions(path))
    constant, gradient = band.evaluate(bank.inputs)
    direction = np.random.default_rng(0).standard_normal(bank.inputs.shape)
    h = 1e-6
    ahead, behind = (band.evaluate(bank.inputs + s * h * direction)[0] for s in (1, -1))
    assert np.isclose(
        (ahead - behind) / (2 * h * constant), (gradient * direction).sum(), rtol=1e-6
    )


def test_constant_of_the_last_band_predicts_the_smallest_value() -> None:
    path, bank = matrix_case()
    predicted = design.last_band_constant(path, bank) * 0.06**17
    assert np.isclose(predicted, 7.58144002825610821882e-28, rtol=5e-3)


def test_designed_bank_reaches_the_bar() -> None:
    from fractions import Fraction

    path, _ = matrix_case()
    found = design.designed_bank(
        [path], 16, np.random.default_rng(0), steps=300, starts=1, random_banks=20
    )
    norms = np.sqrt((found.bank.inputs**2).sum(axis=(1, 2)))
    assert found.bank.size == 16 and np.allclose(norms, 2.4)
    assert found.gain > 1e5
    family = DeepAttention(path.architecture)
    point = path.at(Fraction("0.06"))
    spectrum = enclosed_spectrum(family, point, found.bank, start_bits=348)
    assert spectrum.values[-1] >= 1e-26


def test_outside_the_closed_form() -> None:
    architecture = deep_attention_architecture(widths=[2] * 3, ranks=1, tokens=3, residual=True)
    with pytest.raises(InputError, match="exact orders instead"):
        theorem_orders(architecture)
    path = random_path(architecture, np.random.default_rng(0))
    bank = random_bank(architecture, 4, np.random.default_rng(0))
    with pytest.raises(InputError, match="banks are designed for"):
        design.last_band_constant(path, bank)
    unequal = deep_attention_architecture(widths=[2, 3], ranks=1, tokens=3)
    with pytest.raises(InputError, match="need equal widths"):
        random_path(unequal, np.random.default_rng(0))
