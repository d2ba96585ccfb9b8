"""Taylor orders and contact orders from the normalizers' first degrees."""

from __future__ import annotations

from collections.abc import Sequence


def contrast_orders(degrees: Sequence[int]) -> list[int]:
    """``alpha_0 = 1, alpha_i = 3 alpha_{i-1} + 2 k_i - 2``: input order of the contrast.

    ``degrees`` are the first nonconstant degrees ``k_1, ..., k_D`` of the log normalizers.
    """
    orders = [1]
    for k in degrees:
        orders.append(3 * orders[-1] + 2 * k - 2)
    return orders


def taylor_orders(degrees: Sequence[int]) -> list[int]:
    """``N_i = 2 alpha_{i-1} + 2 k_i - 1``: first input degree at which layer ``i`` shows.

    For a common degree ``k`` this is ``2 k 3^{i-1} + 1`` (Konda, Theorem 3 and Proposition C.1).
    """
    alphas = contrast_orders(degrees)
    return [2 * alphas[i] + 2 * k - 1 for i, k in enumerate(degrees)]


def contact_orders(degrees: Sequence[int]) -> list[int]:
    """``beta_i = N_i - 2``: power of ``t`` of layer ``i`` along ``Q = t U, K = t W``.

    For a common degree ``k`` this is ``2 k 3^{i-1} - 1`` (Konda, Theorem 4, Proposition D.1).
    """
    return [order - 2 for order in taylor_orders(degrees)]
