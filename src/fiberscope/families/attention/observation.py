"""What a stack of attention layers computes, in any number system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.attention.configuration import AttentionConfiguration, QueryKeyNorm
from fiberscope.family import Design
from fiberscope.numbers import Array, NumberSystem


@dataclass(frozen=True)
class TokenBank(Design):
    """Sequences of real token vectors: ``inputs`` has shape ``(size, tokens, input_width)``."""

    inputs: NDArray[np.float64]


def observe(
    configuration: AttentionConfiguration,
    parameters: Mapping[str, Array],
    inputs: NDArray[np.float64],
    system: NumberSystem,
) -> Array:
    """Outputs for all sequences and tokens, flattened: shape ``(size * tokens * p,)``."""
    stream = system.array(inputs)
    for layer in range(configuration.depth):
        named = {role: parameters[configuration.name(layer, role)] for role in configuration.roles}
        written = _attention(configuration, named, stream, system)
        stream = stream + written if configuration.residual else written
    return stream.reshape(-1)


def _attention(
    configuration: AttentionConfiguration,
    named: Mapping[str, Array],
    stream: Array,
    system: NumberSystem,
) -> Array:
    """One layer: ``(size, n, d)`` to ``(size, n, p)``.

    Output ``i`` is the sum over heads of ``O_h sum_j a_ij V_g x_j`` with
    ``a_ij = exp(q_i . k_j) / sum_j exp(q_i . k_j)``; the scores are not divided by the square
    root of the width, which would only rescale the queries.
    """
    c = configuration
    size, n, _ = stream.shape
    tokens = stream.reshape(size, 1, n, c.d)
    grouped = (size, c.G, c.heads_per_group, n, c.query_width)
    query = _projected(c, named, "query", tokens, system).reshape(grouped)
    key = _projected(c, named, "key", tokens, system).reshape(size, c.G, 1, n, c.query_width)
    value = tokens @ named["value"].swapaxes(-1, -2)
    if "value_bias" in named:
        value = value + named["value_bias"].reshape(c.G, 1, c.value_width)
    value = value.reshape(size, c.G, 1, n, c.value_width)

    weights = system.exp(query @ key.swapaxes(-1, -2))
    if c.causal:
        weights = weights * system.array(np.tril(np.ones((n, n), dtype=np.int64)))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ value).reshape(size, c.heads, n, c.value_width)
    written = (mixed @ named["output"].swapaxes(-1, -2)).sum(axis=1)
    return written + named["output_bias"] if "output_bias" in named else written


def _projected(
    c: AttentionConfiguration,
    named: Mapping[str, Array],
    role: str,
    tokens: Array,
    system: NumberSystem,
) -> Array:
    """Queries or keys with bias, normalisation, gain and rotation: ``(size, units, n, r)``."""
    units = c.shape(role)[0]
    rows = tokens @ named[role].swapaxes(-1, -2)
    if f"{role}_bias" in named:
        rows = rows + named[f"{role}_bias"].reshape(units, 1, c.query_width)
    if c.norm is not QueryKeyNorm.NONE:
        rows = rows / system.sqrt((rows * rows).sum(axis=-1, keepdims=True) / c.query_width)
    if c.norm.has_gains:
        gain = named[f"{role}_gain"]
        rows = rows * (gain if gain.ndim == 1 else gain.reshape(units, 1, c.query_width))
    if not c.rotated:
        return rows
    cosines, sines, quarter = _rotation(c)
    return rows * system.array(cosines) + (rows @ system.array(quarter)) * system.array(sines)


def _rotation(
    c: AttentionConfiguration,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Cosines and sines, shape ``(n, r)``, and the quarter turn of all planes, ``(r, r)``.

    Rows that do not rotate have cosine 1 and sine 0. A row vector ``x`` at position ``t`` becomes
    ``x * cos + (x @ quarter) * sin``.
    """
    angles = np.zeros((c.tokens, c.query_width))
    quarter = np.zeros((c.query_width, c.query_width), dtype=np.int64)
    for (first, second), angle in zip(c.planes, c.angles, strict=True):
        angles[:, first] = angles[:, second] = angle * np.arange(c.tokens)
        quarter[first, second], quarter[second, first] = 1, -1
    return np.cos(angles), np.sin(angles), quarter
