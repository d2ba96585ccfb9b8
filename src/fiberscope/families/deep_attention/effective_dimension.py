"""Rank of the map to effective parameters, and the closed form that bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.numbers import DualNumbers
from fiberscope.numbers.fields import ResidueField
from fiberscope.numbers.power_series import JET_PRIME, PowerSeries


def effective_map_rank(architecture: Architecture, seed: int = 0) -> int:
    """Generic rank of ``(Q, K, V) -> (L, M_1, ..., M_D)``, computed modulo a prime.

    It bounds the functional dimension of a normalized network from above, and equals it wherever
    effective parameters are identifiable at a generic point (Konda, Theorem 1 and Corollary A.1).
    """
    rng = np.random.default_rng(seed)
    system = PowerSeries(1)
    duals = DualNumbers(system)
    space = architecture.space
    flat = duals.variables(system.array(rng.integers(1, JET_PRIME, space.size)))
    named = {name: flat[window].reshape(space.shapes[name]) for name, window in space.slices()}
    product: Any = None
    pieces = []
    for layer in range(1, architecture.depth + 1):
        q, k = named[f"Q{layer}"][0], named[f"K{layer}"][0]
        if product is not None:
            q, k = product.swapaxes(0, 1) @ q, product.swapaxes(0, 1) @ k
        pieces.append((q @ k.swapaxes(0, 1)).tangent.coefficients[0].reshape(space.size, -1))
        value = named[f"V{layer}"][0]
        product = value if product is None else value @ product
    pieces.append(product.tangent.coefficients[0].reshape(space.size, -1))
    return ResidueField().rank(np.concatenate(pieces, axis=1))


def closed_form(widths: Sequence[int], ranks: Sequence[int]) -> int:
    """Closed form for the dimension of a serial, single-head normalized network.

    ``delta_D d_D + sum_i delta_i (delta_{i-1} - delta_i) + alpha_i (2 delta_{i-1} - alpha_i)`` with
    ``delta_i = min(d_0, ..., d_i)`` and ``alpha_i = min(r_i, delta_{i-1})``. Exact for equal
    widths; for unequal ones an upper bound, too large where a layer's output has directions that
    no later layer reads.
    """
    deltas = [min(widths[: i + 1]) for i in range(len(widths))]
    total = deltas[-1] * widths[-1]
    for i, rank in enumerate(ranks, start=1):
        alpha = min(rank, deltas[i - 1])
        total += deltas[i] * (deltas[i - 1] - deltas[i]) + alpha * (2 * deltas[i - 1] - alpha)
    return total
