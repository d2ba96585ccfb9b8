import json

import numpy as np
import pytest

from fiberscope.analysis import dimension
from fiberscope.errors import InputError
from fiberscope.verdict import Status
from tests.analysis.toy_families import Products


def test_products_at_a_generic_point():
    result = dimension(Products())
    assert (result.value, result.nullity, result.parameters) == (3, 3, 6)
    assert result.status is Status.NUMERICAL
    assert result.decided
    assert result.saturated
    assert result.saturation == ((1, 1), (3, 3), (6, 3))
    assert len(result.evidence) == 2
    json.dumps(result.to_dict(), allow_nan=False)


def test_products_at_exceptional_points():
    left, right = np.array([0.0, 0.0, 1.0]), np.array([0.0, 2.0, 3.0])
    # d(left * right) = right dleft + left dright: zero in the first coordinate only.
    assert dimension(Products(), {"left": left, "right": right}).value == 2
    zero = {"left": np.zeros(3), "right": np.zeros(3)}
    assert dimension(Products(), zero).value == 0


def test_a_design_too_small_grows_until_nothing_is_added():
    family = Products()
    family.sufficient_size = 1
    result = dimension(family)
    assert result.saturation == ((1, 1), (2, 2), (4, 3), (8, 3))
    assert result.saturated


def test_a_rank_that_keeps_growing_is_a_lower_bound():
    class Many(Products):
        sufficient_size = 1
        space = type(Products.space)({"left": (64,), "right": (64,)})

        def generic(self, rng):
            return {"left": rng.standard_normal(64), "right": rng.standard_normal(64)}

        def design(self, size, rng):
            design = super().design(size, rng)
            return type(design)(size, rng.standard_normal((size, 64)))

    result = dimension(Many())
    assert result.value == 16
    assert not result.saturated
    assert "lower bound" in result.evidence[1].claim


def test_same_seed_same_answer():
    one, two = dimension(Products(), seed=5), dimension(Products(), seed=5)
    np.testing.assert_array_equal(one.spectrum, two.spectrum)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"left": np.ones(3)}, "missing parameters"),
        ({"left": np.ones(3), "right": np.ones(2)}, "right has shape"),
        ({"left": np.ones(3), "right": np.full(3, np.nan)}, "NaN"),
    ],
)
def test_bad_parameters(point, message):
    with pytest.raises(InputError, match=message):
        dimension(Products(), point)
