"""How small the probes of every layer must be, and how many bits that takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

GUARD = 24
"""Spare bits at every step."""


def signal_orders(degrees: Sequence[int], spread: int) -> list[int]:
    """Order in ``t`` of every layer's signal: means have order 1, contrasts order ``spread``.

    ``2 * 3^{i-1}`` contrasts and ``2 v_{i-1} + 2 k_i - 1`` means, with ``v_0 = 0`` and
    ``v_i = 3 v_{i-1} + 2 k_i - 2``; for ``spread`` 1 these are the Taylor orders.
    """
    orders, means, contrasts = [], 0, 1
    for k in degrees:
        orders.append(2 * contrasts * spread + 2 * means + 2 * k - 1)
        means, contrasts = 3 * means + 2 * k - 2, 3 * contrasts
    return orders


def probe_exponents(orders: Sequence[int]) -> list[int]:
    """Sizes ``2^-e_i`` of the probes of every layer.

    Layer ``i`` is read with relative error of about ``2^(-2 e_i)``, and its error must stay below
    the signal of every later layer ``j``: ``2 e_i >= e_j (N_j - N_i) + 2 e_j``.
    """
    exponents = [0] * len(orders)
    for i in reversed(range(len(orders))):
        need = GUARD
        for j in range(i + 1, len(orders)):
            step = exponents[j] * (orders[j] - orders[i] + 2)
            need = max(need, ceil((step + GUARD) / 2))
        exponents[i] = need
    return exponents


def working_bits(exponents: Sequence[int], orders: Sequence[int], digits: int) -> int:
    """Precision that separates every layer's signal, to the accuracy that later layers need.

    The last layer needs ``digits``; layer ``i`` must be known to ``2^(-e_j (N_j - N_i))`` times
    what layer ``j`` needs, and its signal is ``2^(-e_i (N_i - 1))`` of the outputs.
    """
    needs = [0] * len(orders)
    bits = 0
    for i in reversed(range(len(orders))):
        needs[i] = ceil(3.33 * digits) + 2 * GUARD
        for j in range(i + 1, len(orders)):
            needs[i] = max(needs[i], exponents[j] * (orders[j] - orders[i]) + needs[j] + GUARD)
        bits = max(bits, exponents[i] * (orders[i] - 1) + needs[i])
    return bits + 2 * GUARD
