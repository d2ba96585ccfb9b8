"""Balanced factors against singular value decompositions of the products themselves."""

import numpy as np
import pytest

from fiberscope.checkpoints.canonical.balancing import balance, sketch

SPACING = 2.0**-44


def pairs(seed, count=3, width=5, first=11, second=17):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, width, first)), rng.standard_normal((count, width, second))


def products(first, second):
    return first.swapaxes(1, 2) @ second


@pytest.mark.parametrize("seed", range(3))
def test_balanced_factors_have_the_product_and_its_singular_values(seed):
    first, second = pairs(seed)
    found = balance(first, second, SPACING)
    np.testing.assert_allclose(
        products(found.first, found.second), products(first, second), atol=1e-12
    )
    for one, other, product in zip(found.first, found.second, products(first, second), strict=True):
        # numpy decomposes the large product, which the code under test never forms.
        expected = np.linalg.svd(product, compute_uv=False)[:5]
        for gram in (one @ one.T, other @ other.T):
            np.testing.assert_allclose(np.linalg.eigvalsh(gram)[::-1], expected, rtol=1e-10)
        np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-11)


@pytest.mark.parametrize("log10_condition", [0, 3, 6])
def test_a_change_of_basis_changes_nothing(log10_condition):
    first, second = pairs(4)
    rng = np.random.default_rng(5)
    left = np.linalg.qr(rng.standard_normal((3, 5, 5)))[0]
    right = np.linalg.qr(rng.standard_normal((3, 5, 5)))[0]
    basis = (left * np.geomspace(1, 10.0**-log10_condition, 5)) @ right
    dual = np.linalg.inv(basis).swapaxes(1, 2)
    found = balance(first, second, SPACING)
    other = balance(basis @ first, dual @ second, SPACING)
    tolerance = 1e-13 * 10.0**log10_condition * 10
    np.testing.assert_allclose(other.first, found.first, atol=tolerance)
    np.testing.assert_allclose(other.second, found.second, atol=tolerance)


def test_balanced_factors_are_settled():
    found = balance(*pairs(6), SPACING)
    assert not found.settled
    again = balance(found.first, found.second, SPACING)
    assert again.settled
    assert again.first is found.first


@pytest.mark.parametrize("rank", [0, 2, 4])
def test_directions_outside_the_product_are_cut(rank):
    first, second = pairs(7)
    second[:, rank:] = 0.0
    found = balance(first, second, SPACING)
    np.testing.assert_array_equal(found.deficient, 5 - rank)
    np.testing.assert_allclose(
        products(found.first, found.second), products(first, second), atol=1e-12
    )
    assert np.linalg.matrix_rank(found.first[0], tol=1e-9) == rank
    assert balance(found.first, found.second, SPACING).settled


def test_heads_wider_than_what_they_read():
    first, second = pairs(8, width=6, first=4, second=9)
    found = balance(first, second, SPACING)
    np.testing.assert_allclose(
        products(found.first, found.second), products(first, second), atol=1e-12
    )
    assert (found.deficient == 2).all()


def test_the_sketch_is_a_fixed_linear_map():
    rng = np.random.default_rng(9)
    first, second = rng.standard_normal((2, 4, 3, 10))
    basis = rng.standard_normal((4, 3, 3))
    np.testing.assert_allclose(sketch(basis @ first, 0), basis @ sketch(first, 0), atol=1e-12)
    np.testing.assert_allclose(sketch(first + second, 1), sketch(first, 1) + sketch(second, 1))
    assert sketch(first, 0).shape == (4, 3, 3)
