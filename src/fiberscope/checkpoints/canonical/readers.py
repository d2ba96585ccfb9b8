"""What a linear reader sees of a normalised stream: rows and constants no shift can change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.ledger.wiring import Point, Reader
from fiberscope.parameters import Parameters

Array = NDArray[np.float64]

REFERENCE_SEED = 20_240_901
"""Seed of every fixed reference that a canonical form is aligned with."""


def reference(*shape: int, stream: int = 0) -> Array:
    """The fixed reference array of a shape: standard normal, the same on every machine."""
    seed = [REFERENCE_SEED, stream, *shape]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).standard_normal(shape)


def signed_norm(rows: Array) -> Array:
    """Lengths of the rows, with the sign of their product with a fixed reference vector.

    Homogeneous: a row times ``c`` has the signed length times ``c``, for every real ``c``.
    """
    sign = np.where(rows @ reference(rows.shape[-1]) < 0, -1.0, 1.0)
    return sign * np.linalg.norm(rows, axis=-1)


def visible_rows(reader: Reader, point: Point, parameters: Parameters) -> Array:
    """A reader's weight with the norm's gain folded in, centred behind a LayerNorm.

    Shape as the weight's, input axis last. ``weight @ (gain * n + bias) + reader bias`` is
    ``visible_rows @ n + constant_of`` for every normalised ``n``.
    """
    weight = reader.weight.read(parameters).astype(np.float64)
    if point.norm.gain is not None:
        weight = weight * point.norm.gain.read(parameters)
    if point.blind:
        weight = weight - weight.mean(axis=-1, keepdims=True)
    return weight


def constant_of(reader: Reader, point: Point, parameters: Parameters) -> Array:
    """The constant a reader adds: its bias and what it makes of the norm's bias."""
    constant = np.zeros(reader.weight.shape[:-1])
    if point.norm.bias is not None:
        bias = point.norm.bias.read(parameters).astype(np.float64)
        constant = constant + reader.weight.read(parameters).astype(np.float64) @ bias
    if reader.bias is not None:
        constant = constant + reader.bias.read(parameters)
    return constant
