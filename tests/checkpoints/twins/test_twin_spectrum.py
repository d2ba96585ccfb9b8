"""Rank by the largest gap, on matrices of known rank."""

import numpy as np
import pytest

from fiberscope.checkpoints.twins import rank_by_gap


def values_with(rank, nullity, *, smallest=1e-4, noise=1e-17, seed=0):
    rng = np.random.default_rng(seed)
    above = np.sort(10 ** rng.uniform(np.log10(smallest), 1, rank))[::-1]
    below = np.sort(noise * rng.uniform(0.1, 1, nullity))[::-1]
    return np.concatenate([above, below])


@pytest.mark.parametrize("smallest", [1.0, 1e-4, 1e-8])
@pytest.mark.parametrize(("rank", "nullity"), [(1, 30), (20, 1), (20, 20), (300, 100)])
def test_rank_of_a_known_spectrum(rank, nullity, smallest):
    values = values_with(rank, nullity, smallest=smallest)
    found, gap, tolerance = rank_by_gap(values)
    assert found == rank
    assert gap == values[rank - 1] / values[rank]
    assert values[rank] < tolerance < values[rank - 1]


def test_exact_zeros_and_ratios_inside_the_noise_do_not_count():
    values = np.array([3.0, 1.0, 0.2, 4e-16, 1e-16, 1e-25, 0.0, 0.0])
    assert rank_by_gap(values)[0] == 3


def test_a_wide_step_between_visible_values_is_not_the_cut():
    # A direction broken by epsilon at 1e-8 is seen, however far below the others it lies.
    values = np.array([3.0, 1.0, 1e-8, 1e-16, 1e-16])
    assert rank_by_gap(values)[0] == 3


def test_full_rank_and_zero():
    rank, gap, tolerance = rank_by_gap(np.array([2.0, 1.0, 0.5]))
    assert (rank, gap) == (3, float("inf"))
    assert 0 < tolerance < 0.5
    assert rank_by_gap(np.zeros(4))[0] == 0
    assert rank_by_gap(np.empty(0))[0] == 0


def test_products_of_known_rank():
    rng = np.random.default_rng(1)
    for rank in (1, 7, 40):
        product = rng.standard_normal((80, rank)) @ rng.standard_normal((rank, 50))
        assert rank_by_gap(np.linalg.svd(product, compute_uv=False))[0] == rank
