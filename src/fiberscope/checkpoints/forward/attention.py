"""Attention in float64: grouped heads, rotary or relative positions, masks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import (
    Attention,
    Norm,
    NormKind,
    RelativePositions,
    Rotary,
)
from fiberscope.checkpoints.architecture.relative_positions import relative_buckets
from fiberscope.checkpoints.forward.reading import Roles
from fiberscope.parameters import View

Array = NDArray[np.float64]


def normalised(norm: Norm | None, roles: Roles, x: Array) -> Array:
    """``gain * normalised(x) + bias`` over the last axis; x itself without a norm."""
    if norm is None:
        return x
    if norm.kind is NormKind.LAYER:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + norm.epsilon)
    if norm.gain is not None:
        x = x * roles.vector(norm.gain)
    return x if norm.bias is None else x + roles.vector(norm.bias)


def attend(
    attention: Attention, roles: Roles, x: Array, memory: Array, position_table: View | None
) -> Array:
    """What an attention layer adds to the stream.

    Parameters
    ----------
    x
        What queries read, of shape (sequences, positions, d).
    memory
        What keys and values read, of shape (sequences, memory positions, d).
    position_table
        The table whose entries are added to the scores, where the layer has relative positions.

    Returns
    -------
    ndarray of float64, shape (sequences, positions, d)
    """
    sequences, positions, _ = x.shape
    places = memory.shape[1]
    G, m, r = attention.groups, attention.heads_per_group, attention.key_width
    s = attention.value_width
    query = roles.product(x, attention.query) + roles.bias(attention.query_bias)
    key = roles.product(memory, attention.key) + roles.bias(attention.key_bias)
    value = roles.product(memory, attention.value) + roles.bias(attention.value_bias)
    query = query.reshape(sequences, positions, G, m, r)
    key = key.reshape(sequences, places, G, r)
    value = value.reshape(sequences, places, G, s)
    query = normalised(attention.query_norm, roles, query)
    key = normalised(attention.key_norm, roles, key)
    if attention.rotary is not None:
        query, key = turned(query, attention.rotary), turned(key, attention.rotary)
    scale = r**-0.5 if attention.score_scale is None else attention.score_scale
    rows = query.transpose(0, 2, 3, 1, 4).reshape(sequences, G, m * positions, r)
    scores = (scale * rows) @ key.transpose(0, 2, 3, 1)
    scores = scores.reshape(sequences, G, m, positions, places)
    if attention.relative_positions is not None and position_table is not None:
        buckets = _buckets(attention.relative_positions, positions, places)
        scores = scores + roles.vector(position_table)[buckets].transpose(2, 3, 0, 1)
    if attention.causal:
        scores = np.where(_visible(positions, places, attention.window), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    mixed = scores.reshape(sequences, G, m * positions, places) @ value.transpose(0, 2, 1, 3)
    mixed = mixed.reshape(sequences, G, m, positions, s).transpose(0, 3, 1, 2, 4)
    mixed = mixed.reshape(sequences, positions, G * m * s)
    written = roles.product(mixed, attention.output, inputs_first=True)
    return written + roles.bias(attention.output_bias)


def turned(x: Array, rotary: Rotary) -> Array:
    """Turn the row pairs of ``x`` by their positions, the second axis; rows are the last."""
    planes = np.array(rotary.planes)
    angles = np.arange(x.shape[1])[:, None] * np.array(
        rotary.frequencies if rotary.short_frequencies is None else rotary.short_frequencies
    )
    angles = angles.reshape(x.shape[1], *[1] * (x.ndim - 3), len(planes))
    cosine, sine = rotary.factor * np.cos(angles), rotary.factor * np.sin(angles)
    first, second = x[..., planes[:, 0]], x[..., planes[:, 1]]
    result = x.copy()
    result[..., planes[:, 0]] = first * cosine - second * sine
    result[..., planes[:, 1]] = second * cosine + first * sine
    return result


def _visible(positions: int, places: int, window: int | None) -> NDArray[np.bool_]:
    """Whether a position (rows) sees another one (columns)."""
    back = np.arange(positions)[:, None] - np.arange(places)[None, :]
    return np.asarray((back >= 0) & (back < (places if window is None else window)))


@lru_cache(maxsize=8)
def _buckets(relative: RelativePositions, positions: int, places: int) -> NDArray[np.int64]:
    offsets = np.arange(places)[None, :] - np.arange(positions)[:, None]
    return relative_buckets(
        offsets,
        bidirectional=relative.bidirectional,
        buckets=relative.buckets,
        furthest=relative.furthest,
    )
