"""Which neighbours in an order count as ties."""

from types import SimpleNamespace

import numpy as np

from fiberscope.checkpoints.canonical.attention import DEVIATIONS, head_uncertainty
from fiberscope.checkpoints.canonical.places import descending


def test_keys_that_rounding_can_exchange_are_ties():
    keys = np.array([4.0, 1.0, 3.0, 2.9])
    order, ties, settled = descending(keys, 1e-6, 1e-7)
    assert (order.tolist(), ties, settled) == ([0, 2, 3, 1], [], False)
    uncertain = np.array([0.0, 0.0, 0.08, 0.08])
    _, ties, _ = descending(keys, 1e-6, 1e-7, uncertain=uncertain)
    assert ties == [1]


def test_uncertainty_of_a_head_is_that_of_its_rounded_factors():
    """Against factors rounded to float16 many times, with products in which much cancels."""
    rng = np.random.default_rng(0)
    groups, heads, width, d = 2, 3, 4, 40
    basis = rng.standard_normal((groups, width, width)) * np.array([1.0, 1.0, 1.0, 30.0])
    value = basis @ rng.standard_normal((groups, width, d))
    dual = np.linalg.inv(basis).swapaxes(1, 2)
    output = dual[:, None] @ rng.standard_normal((groups, heads, width, d))
    squares = np.zeros((groups, heads))
    repeats = 60
    spacing = 2.0**-10
    for _ in range(repeats):
        scaled = value * rng.uniform(1, 2, (groups, 1, d)), output * rng.uniform(1, 2, d)
        # Other columns, other roundings; then back, so that only these differ.
        v = scaled[0].astype(np.float16).astype(np.float64) * (value / scaled[0])
        o = scaled[1].astype(np.float16).astype(np.float64) * (output / scaled[1])
        exact = np.einsum("gmsd,gse->gmde", output, value)
        change = np.einsum("gmsd,gse->gmde", o, v) - exact
        squares += np.square(change).sum(axis=(2, 3)) / repeats
    part = SimpleNamespace(value=SimpleNamespace(rows=value), output=output, spacing=spacing)
    expected = head_uncertainty(part) / DEVIATIONS
    # Numbers lie anywhere between two powers of two: the mean of (spacing / number)^2 is half.
    np.testing.assert_allclose(np.sqrt(squares), expected * np.sqrt(0.5), rtol=0.15)
