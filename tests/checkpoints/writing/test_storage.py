"""Rounding and refusals against the list of all numbers of a format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fiberscope.checkpoints.writing import FORMATS, round_into, rounded, to_storage
from fiberscope.errors import InputError


def nearest(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Nearest finite number of a 16-bit format, ties to the even pattern, by search in all."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaN among the patterns
        numbers = patterns.view(dtype).astype(np.float64)
    finite = np.isfinite(numbers) & (patterns != 0x8000)
    patterns, numbers = patterns[finite], numbers[finite]
    order = np.argsort(numbers)
    patterns, numbers = patterns[order], numbers[order]
    above = np.searchsorted(numbers, values).clip(1, len(numbers) - 1)
    # Differences of a float64 and a 16-bit number that is within one unit of it are exact.
    down, up = values - numbers[above - 1], numbers[above] - values
    even = patterns[above - 1] % 2 == 0
    lower = (down < up) | ((down == up) & even)
    return np.where(lower, numbers[above - 1], numbers[above])


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_one_rounding_to_the_nearest(name: str) -> None:
    dtype = FORMATS[name]
    rng = np.random.default_rng(0)
    grid = rng.standard_normal(20_000).astype(dtype).astype(np.float64)
    gap = np.spacing(np.abs(grid).astype(dtype)).astype(np.float64)
    ties = grid + gap / 2
    values = np.concatenate(
        [
            grid,
            ties,
            ties * (1 + 2.0**-50),
            ties * (1 - 2.0**-50),
            rng.standard_normal(20_000) * 10.0 ** rng.uniform(-9, 4, 20_000),
        ]
    )
    found = rounded(values, dtype).astype(np.float64)
    assert np.array_equal(found, nearest(values, dtype))


def test_ml_dtypes_itself_rounds_twice() -> None:
    # The reason for rounding to odd; if this fails, the detour can go.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert value.astype(ml_dtypes.bfloat16)[0] == 1
    assert rounded(value, FORMATS["bfloat16"])[0] == 1 + 2.0**-7


def test_extremes_of_bfloat16() -> None:
    values = np.array([0.0, -0.0, 1e-60, 1e-40, 3e38, 3.39e38, 3.4e38, 1e300, -1e300])
    found = rounded(values, FORMATS["bfloat16"]).astype(np.float64)
    with np.errstate(over="ignore"):
        direct = values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    # No tie is near these, so rounding twice is as good as once.
    assert np.array_equal(found, direct)
    assert np.signbit(found[1])


def test_the_same_format_is_untouched() -> None:
    values = np.array([1.0, np.pi], dtype=ml_dtypes.bfloat16)
    assert np.array_equal(rounded(values, FORMATS["bfloat16"]), values)


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        (np.array([[1.0, 7e4]]), "float16", "beyond the range of float16"),
        (np.array([1.0, 1e39]), "bfloat16", "beyond the range of bfloat16"),
        (np.array([[1.0, 1.0], [1e-9, 0.0]]), "float16", "a row"),
        (np.array([[1.0, 1e-9], [1.0, 0.0]]), "float16", "a column"),
        (np.array([1e-9, 1e-10]), "float16", "a vector"),
        (np.array([1e-60, 0.0]), "float32", "a vector"),
        (np.array([1.0, np.nan]), "float64", "NaN or infinite"),
    ],
)
def test_refusals(values: np.ndarray, dtype: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        to_storage(values, FORMATS[dtype], "some.weight")
    assert "'some.weight'" in str(caught.value)
    # Every command that writes says this, and not all have that option.
    assert "--condition" not in str(caught.value)


def test_a_norm_gain_must_not_vanish_and_a_bias_entry_may() -> None:
    values = np.array([1.0, 1e-9])
    assert to_storage(values, FORMATS["float16"], "bias")[1] == 0
    with pytest.raises(InputError, match="a norm gain"):
        to_storage(values, FORMATS["float16"], "gain", {1})
    assert to_storage(np.array([1.0, 0.0]), FORMATS["float16"], "gain", {1})[1] == 0


def test_small_entries_beside_large_ones_are_ordinary_rounding() -> None:
    values = np.array([[1.0, 1e-9], [1e-9, 1.0]])
    assert np.array_equal(to_storage(values, FORMATS["float16"], "w"), np.eye(2))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rounding_into_windows_of_any_layout(dtype, offset):
    rng = np.random.default_rng(3)
    values = rng.standard_normal((7, 300, 40)) * 10.0 ** rng.integers(-3, 4, (7, 300, 40))
    for axes in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        shuffled = np.ascontiguousarray(values.transpose(axes)).transpose(np.argsort(axes))
        for order in ("C", "F"):
            target = np.zeros((7, 300, 80), FORMATS[dtype], order=order)[..., ::2]
            round_into(target, shuffled, offset)
            np.testing.assert_array_equal(
                target.astype(np.float64),
                rounded(values - offset, FORMATS[dtype]).astype(np.float64),
            )
