"""Rows of queries and keys in an order that does not depend on the rotary layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Rotary


def score_scale(attention: Attention) -> float:
    """What scores are multiplied by."""
    given = attention.score_scale
    return attention.key_width**-0.5 if given is None else given


def plane_order(attention: Attention) -> NDArray[np.int64]:
    """Rows of queries and keys, plane after plane by frequency, then the rows without position.

    In this order half-split and interleaved layouts of one attention look alike.
    """
    if attention.rotary is None:
        return np.arange(attention.key_width)
    planes = attention.rotary.planes
    frequencies = np.array(attention.rotary.frequencies)
    rows: list[int] = []
    for number in np.argsort(-np.abs(frequencies), kind="stable"):
        first, second = planes[number]
        rows += [first, second] if frequencies[number] > 0 else [second, first]
    rest = [row for row in range(attention.key_width) if row not in set(rows)]
    return np.array(rows + rest, dtype=np.int64)


def other_layout(rotary: Rotary) -> Rotary:
    """The same frequencies on the pairs of the other layout: half-split or interleaved."""
    count = len(rotary.planes)
    first = min(min(plane) for plane in rotary.planes)
    if rotary.interleaved:
        planes = tuple((first + j, first + j + count) for j in range(count))
    else:
        planes = tuple((first + 2 * j, first + 2 * j + 1) for j in range(count))
    return replace(rotary, planes=planes, interleaved=not rotary.interleaved)


def ordered_rotary(attention: Attention) -> Rotary | None:
    """The rotary encoding after :func:`plane_order`."""
    rotary = attention.rotary
    if rotary is None:
        return None
    frequencies = tuple(sorted((abs(f) for f in rotary.frequencies), reverse=True))
    planes = tuple((2 * number, 2 * number + 1) for number in range(len(frequencies)))
    return replace(rotary, planes=planes, frequencies=frequencies, interleaved=True)
