"""Buckets of relative positions, as T5 forms them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def relative_buckets(
    offsets: NDArray[np.int64], *, bidirectional: bool, buckets: int, furthest: int
) -> NDArray[np.int64]:
    """Bucket of each offset (key position minus query position).

    Half of the buckets of a direction hold one distance each, the others grow geometrically up to
    `furthest`; all larger distances share the last one. A bidirectional table uses its second half
    for keys to the right. Source: Raffel et al., 2020, section 2.1.

    Parameters
    ----------
    offsets
        Integers; positive ones count as zero unless bidirectional.
    bidirectional, buckets, furthest
        The table's kind, its rows, and the distance at which the last bucket begins at the latest.
        The exact buckets of a direction must be at least one and fewer than `furthest`.

    Returns
    -------
    ndarray of int64
        Of the shape of `offsets`.
    """
    first = np.zeros_like(offsets)
    distance = np.maximum(-offsets, 0)
    if bidirectional:
        buckets //= 2
        first = buckets * (offsets > 0)
        distance = np.abs(offsets)
    exact = buckets // 2
    # In float32, as the class computes it: a distance at a bucket's edge can fall on either side.
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    scaled = np.log(ratio) / np.float32(np.log(furthest / exact)) * np.float32(buckets - exact)
    coarse = np.minimum(exact + scaled.astype(np.int64), buckets - 1)
    return np.asarray(first + np.where(distance < exact, distance, coarse))


def unreached_buckets(*, bidirectional: bool, buckets: int, furthest: int) -> list[int]:
    """Buckets that no offset falls into, however long the input.

    In a bidirectional table this is at least the first bucket of the second half: it would hold
    distance zero to the right, which the first half already holds.
    """
    offsets = np.arange(-furthest - 1, furthest + 2)
    reached = relative_buckets(
        offsets, bidirectional=bidirectional, buckets=buckets, furthest=furthest
    )
    return sorted(set(range(buckets)) - {int(bucket) for bucket in reached})
