"""The network, written once for every number system."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.normalizers import Normalizer, Softmax
from fiberscope.numbers import Array, Dual, NumberSystem


def forward(
    architecture: Architecture,
    parameters: Mapping[str, Array],
    inputs: Array,
    system: NumberSystem,
) -> Array:
    """Output tokens, shape ``(inputs, tokens, d_D)``.

    Parameters
    ----------
    architecture
        The network.
    parameters
        Arrays of ``system`` (or duals over it), named and shaped as ``architecture.space``.
    inputs
        Token rows in ``system``, shape ``(inputs, tokens, d_0)``.
    system
        Float64, balls, power series, or dual numbers over one of them.

    Raises
    ------
    InputError
        Where a normalizer is not positive on a score that is met (float64 and balls).
    """
    x = inputs
    for layer in range(1, architecture.depth + 1):
        moved = None
        heads = architecture.heads[layer - 1]
        for head in range(heads):
            query, key = parameters[f"Q{layer}"][head], parameters[f"K{layer}"][head]
            scores = (x @ query) @ (x @ key).swapaxes(-1, -2)
            mixed = attention_weights(architecture, layer, scores, system) @ x
            if architecture.trainable_values:
                mixed = mixed @ parameters[f"V{layer}"][head].swapaxes(-1, -2)
            elif heads > 1:
                mixed = mixed / heads
            moved = mixed if moved is None else moved + mixed
        x = x + moved if architecture.residual else moved
        if architecture.layer_norm and layer < architecture.depth:
            x = layer_norm(x, system)
    if architecture.mean_only:
        x = x.sum(axis=-2, keepdims=True) / architecture.tokens
    return x


def causal_mask(tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return ones where token ``a`` (row) may attend to token ``b`` (column)."""
    return np.tril(np.ones((tokens, tokens), dtype=np.int64))


def attention_weights(
    architecture: Architecture, layer: int, scores: Array, system: NumberSystem
) -> Array:
    """Weights of one layer (numbered from 1) from its scores, ``(..., tokens, tokens)``."""
    if architecture.normalizers is None:
        return scores * causal_mask(architecture.tokens) if architecture.causal else scores
    phi = architecture.normalizers[layer - 1]
    if isinstance(phi, Softmax) and _is_floating(scores):
        weights = phi.apply(scores - _row_maximum(architecture, scores), system)
    else:
        weights = phi.apply(scores, system)
        require_positive(phi, layer, weights)
    if architecture.causal:
        weights = weights * causal_mask(architecture.tokens)
    return weights / weights.sum(axis=-1, keepdims=True)


def _is_floating(scores: Array) -> bool:
    values = scores.value if isinstance(scores, Dual) else scores
    return isinstance(values, np.ndarray) and values.dtype.kind in "fc"


def _row_maximum(architecture: Architecture, scores: Array) -> Array:
    """Largest score of every row, as a constant: a shift that softmax does not see."""
    values = np.real(scores.value if isinstance(scores, Dual) else scores)
    if architecture.causal:
        values = np.where(causal_mask(architecture.tokens) > 0, values, -np.inf)
    return values.max(axis=-1, keepdims=True)


def require_positive(phi: Normalizer, layer: int, values: Array) -> None:
    """Raise :class:`InputError` where ``phi`` is not positive (float64 and balls only)."""
    if isinstance(values, Dual):
        values = values.value
    if not isinstance(values, np.ndarray):
        return
    flat = values.reshape(-1)
    if values.dtype == object:
        bad = any(not value > 0 for value in flat)
    else:
        bad = not bool(np.all(np.real(flat) > 0))
    if bad:
        raise InputError(
            f"normalizer {phi.name} is not positive on a score met in layer {layer}: weights "
            "would not be defined; use smaller inputs or scores, or a positive normalizer"
        )


def layer_norm(x: Array, system: NumberSystem) -> Array:
    """``(x - mean) / standard deviation`` over the last axis, without epsilon."""
    width = x.shape[-1]
    centred = x - x.sum(axis=-1, keepdims=True) / width
    variance = (centred * centred).sum(axis=-1, keepdims=True) / width
    return centred / system.sqrt(variance)
