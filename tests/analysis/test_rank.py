import json

import numpy as np
import pytest

from fiberscope.analysis import rank_of
from fiberscope.errors import InputError


def with_spectrum(values, shape, seed=0):
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((shape[0], len(values))))[0]
    right = np.linalg.qr(rng.standard_normal((shape[1], len(values))))[0]
    return (left * values) @ right.T


@pytest.mark.parametrize("shape", [(8, 8), (40, 8), (8, 40), (12, 9)])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_rank_of_a_product_of_thin_factors(shape, rank):
    rng = np.random.default_rng(rank)
    matrix = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    verdict = rank_of(matrix)
    assert verdict.value == rank
    assert verdict.nullity == shape[1] - rank
    assert verdict.decided
    assert verdict.singular_values.shape == (min(shape),)


def test_spectrum_is_the_one_built_in():
    values = np.array([3.0, 1.0, 1e-2, 1e-5])
    verdict = rank_of(with_spectrum(values, (50, 6)))
    np.testing.assert_allclose(verdict.singular_values[:4], values, rtol=1e-9)
    assert verdict.value == 4
    assert verdict.gap > 1e8


def test_wide_spread_above_the_limit_is_not_a_cut():
    # The largest ratio, 1e8, is between values far above rounding: all four count.
    verdict = rank_of(with_spectrum(np.array([1.0, 1.0, 1e-8, 1e-8]), (9, 4)))
    assert verdict.value == 4
    assert verdict.decided


def test_a_slow_decay_through_rounding_is_undecided():
    values = 10.0 ** -np.arange(0.0, 17.0, 0.5)
    assert not rank_of(with_spectrum(values, (60, 40))).decided


def test_columns_of_rounding_noise_do_not_count():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((30, 5))
    matrix[:, 2] = 1e-17 * rng.standard_normal(30)
    matrix[:, 4] = 0.0
    verdict = rank_of(matrix)
    assert (verdict.value, verdict.nullity, verdict.decided) == (3, 2, True)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (3, 4)])
def test_nothing_has_rank_zero(shape):
    verdict = rank_of(np.zeros(shape))
    assert (verdict.value, verdict.nullity, verdict.decided) == (0, shape[1], True)


def test_scale_does_not_matter():
    matrix = with_spectrum(np.array([1.0, 0.5, 1e-15]), (7, 5))
    assert [rank_of(scale * matrix).value for scale in (1e-150, 1.0, 1e150)] == [2, 2, 2]


def test_bad_input_is_one_sentence():
    with pytest.raises(InputError, match="needs a matrix"):
        rank_of(np.zeros(3))
    with pytest.raises(InputError, match="NaN or infinite"):
        rank_of(np.array([[1.0, np.nan]]))


def test_plain_data_is_json():
    plain = rank_of(np.eye(2)).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False))["gap"] == "inf"
