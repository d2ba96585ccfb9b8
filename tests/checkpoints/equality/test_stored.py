"""Stored tensors: checked to be finite, and bounded, in one pass."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.equality.stored import SUMMED, StoredModel
from fiberscope.errors import InputError
from fiberscope.parameters import View
from tests.checkpoints.architecture.toy_configurations import TOYS

FORMATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def model_with(array) -> StoredModel:
    """A model that reads the same array whatever it is asked for."""
    model = StoredModel.of(architecture(TOYS[0]), {"weight": np.asarray(array)}, label="here")
    return replace(model, load=lambda name: np.asarray(array))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, SUMMED - 1, SUMMED, 2 * SUMMED])
def test_one_number_that_is_not_finite_is_refused(dtype, wrong, place):
    array = np.ones(2 * SUMMED + 1, dtype=dtype)
    array[place] = wrong
    with pytest.raises(InputError, match="here: tensor 'weight' has NaN or infinite values; "):
        model_with(array).tensor("weight")


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_largest_numbers_of_a_format_are_accepted(dtype):
    array = np.full((3, 5), ml_dtypes.finfo(dtype).max, dtype=dtype)
    model = model_with(array)
    assert model.tensor("weight") is array
    assert model.squares(View.whole("weight", array.shape)) in (np.inf, None)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e-30, 1e15])
@pytest.mark.parametrize("count", [0, 1, 1000, SUMMED, 9 * SUMMED + 17])
def test_the_bound_is_one_and_a_close_one(scale, count):
    rng = np.random.default_rng(count)
    array = (scale * rng.standard_normal((1, count))).astype(np.float32)
    bound = model_with(array).squares(View.whole("weight", array.shape))
    exact = float(np.square(array.astype(np.float64)).sum())
    assert exact <= bound
    assert bound <= 1.002 * exact + count * 1.2e-38


def test_equal_numbers_do_not_stop_adding_up():
    array = np.full(40 * SUMMED, 0.1, dtype=np.float32)
    exact = float(np.square(array.astype(np.float64)).sum())
    bound = model_with(array).squares(View.whole("weight", array.shape))
    assert exact <= bound <= 1.002 * exact


def test_a_copy_that_loads_otherwise_keeps_its_own():
    one = model_with(np.zeros(3, dtype=np.float32))
    one.tensor("weight")
    other = replace(one, load=lambda name: np.ones(3, dtype=np.float32))
    np.testing.assert_array_equal(other.tensor("weight"), 1.0)
    np.testing.assert_array_equal(one.tensor("weight"), 0.0)
