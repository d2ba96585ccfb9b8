"""Ranks at exceptional points against closed forms for products of matrices."""

import numpy as np

from fiberscope.analysis import dimension
from fiberscope.families import MultiHeadAttention

D, H, R, S = 4, 2, 2, 2
FAMILY = MultiHeadAttention(input_width=D, heads=H, query_width=R, value_width=S)
POINTS = FAMILY.exceptional(np.random.default_rng(0))
HEAD = R * (2 * D - R) + S * (2 * D - S)


def value(label):
    return dimension(FAMILY, POINTS[label]).value


def test_points_are_named_and_finite():
    assert len(POINTS) == 6
    for point in POINTS.values():
        FAMILY.space.check(point)
        assert all(np.isfinite(v).all() for v in point.values())


def test_silent_head():
    # Only d(output) @ value is seen: D x S numbers, as value has full rank.
    assert value("the first head writes nothing") == HEAD + D * S


def test_zero_values():
    # Only output @ d(value): S x D numbers.
    assert value("the first value group is zero") == HEAD + S * D


def test_queries_of_lower_rank():
    # d(Q^T K) = dQ^T K + Q^T dK is everything that vanishes between the kernels of K and Q.
    k_kernel, q_kernel = D - R, D - (R - 1)
    products = D * D - k_kernel * q_kernel
    label = "the first head's queries have one dimension less"
    assert value(label) == HEAD + products + S * (2 * D - S)


def test_zero_queries():
    # dQ^T K only: R x D numbers.
    expected = HEAD + R * D + S * (2 * D - S)
    assert value("the first head's queries are zero") == expected


def test_all_zero():
    # The output is of second order in all parameters: output @ value.
    assert value("all parameters are zero") == 0


def test_equal_scores_merge_in_the_sum_of_the_maps():
    # Same change of both scores moves the sum R_1 + R_2 only; both maps change one sum, of
    # dimension D^2 minus what both tangent spaces of rank-S matrices miss, here nothing.
    point = POINTS["the first two heads score equally"]
    maps = [point["output"][h] @ point["value"][h] for h in range(H)]
    normal = [
        (np.linalg.svd(m)[0][:, S:], np.linalg.svd(m)[2][S:].T) for m in maps
    ]  # left and right kernels
    conditions = np.concatenate(
        [np.einsum("ai,bj->ijab", left, right).reshape(-1, D * D) for left, right in normal]
    )
    # Independent normal directions: no matrix is normal to both tangent spaces.
    assert np.linalg.matrix_rank(conditions) == 2 * (D - S) ** 2
    score_dimension = 2 * R * (2 * D - R)
    assert value("the first two heads score equally") == score_dimension + D * D
