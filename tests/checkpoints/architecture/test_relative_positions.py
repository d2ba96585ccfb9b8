"""Buckets of relative positions against T5's own function, and which of them nothing reaches."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.relative_positions import (
    relative_buckets,
    unreached_buckets,
)

SIZES = [(32, 128), (32, 256), (8, 9), (7, 20), (4, 8), (64, 128), (16, 9), (128, 65)]


def test_the_first_bucket_to_the_right_is_never_reached():
    assert unreached_buckets(bidirectional=True, buckets=32, furthest=128) == [16]
    assert unreached_buckets(bidirectional=False, buckets=32, furthest=128) == []
    # An odd number leaves one row over.
    assert unreached_buckets(bidirectional=True, buckets=7, furthest=20) == [3, 6]


@pytest.mark.torch
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), SIZES)
def test_buckets_are_those_of_the_class(bidirectional, buckets, furthest):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = np.arange(-3 * furthest, 3 * furthest + 1)
    expected = T5Attention._relative_position_bucket(
        torch.from_numpy(offsets), bidirectional, buckets, furthest
    ).numpy()
    found = relative_buckets(
        offsets, bidirectional=bidirectional, buckets=buckets, furthest=furthest
    )
    assert (found == expected).all()
    assert unreached_buckets(
        bidirectional=bidirectional, buckets=buckets, furthest=furthest
    ) == sorted(set(range(buckets)) - set(expected.tolist()))
