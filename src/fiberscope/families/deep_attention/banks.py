"""Input banks: does a bank separate, and the smallest generic size, decided modulo a prime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.exact_orders import (
    ResiduePath,
    growing_lengths,
    path_kernel_rank,
    random_residue_path,
    series_jacobian,
)
from fiberscope.families.deep_attention.orders import contact_orders
from fiberscope.numbers import Array
from fiberscope.numbers.fields import RationalField, ResidueField
from fiberscope.numbers.power_series import PowerSeries
from fiberscope.numbers.smith import rational_smith_orders, smith_orders

LARGEST_BANK = 4096
"""Search for a separating size stops here."""

LARGEST_REFERENCE = 256
"""Largest bank whose orders are compared with those of half its size."""


def has_leading_frame(architecture: Architecture) -> bool:
    """Whether the closed form of the divided frame applies.

    That is the plain network with equal widths, trainable values and nonzero slopes.
    """
    return (
        architecture.plain
        and architecture.trainable_values
        and not architecture.mean_only
        and len(set(architecture.widths)) == 1
        and all(phi.has_slope for phi in architecture.normalizers or ())
    )


def theorem_orders(architecture: Architecture) -> dict[int, int]:
    """Contact orders and multiplicities of the theorem: order -> multiplicity.

    ``d^2`` of order zero and ``r_i (2 d - r_i)`` of order ``beta_i``, on a separating bank, for
    factors of full column rank whose scores have a nonzero symmetric part (Konda, Theorem 4 and
    Proposition D.1; with fixed values there is no band of order zero).

    Raises
    ------
    InputError
        Outside the theorem: a mask, residual, norm, several heads, or unequal widths.
    """
    if not architecture.plain or len(set(architecture.widths)) > 1:
        raise InputError(
            "the contact theorem covers serial single-head normalized attention of one width; "
            "compute the exact orders instead (--exact-orders)"
        )
    assert architecture.normalizers is not None
    width = architecture.widths[0]
    orders: dict[int, int] = {0: width**2} if architecture.trainable_values else {}
    betas = contact_orders([phi.contact_degree for phi in architecture.normalizers])
    for beta, rank in zip(betas, architecture.ranks, strict=True):
        orders[beta] = rank * (2 * width - rank)
    return orders


def leading_frame(
    architecture: Architecture, directions: Mapping[str, Array], inputs: Array
) -> list[Array]:
    """Divided frame at ``t = 0``, one block of columns for the values and one a layer.

    With ``m`` an input's mean, ``C_0`` its covariance and
    ``C_i = C_{i-1} B_i^T C_{i-1} B_i C_{i-1}``, the columns are ``dL m`` and
    ``C_{i-1} T_i^T m`` with ``T_i = dQ_i W_i^T + U_i dK_i^T`` (Konda, C.9-C.10 and D.3; factors
    ``g_i(0)`` and powers of two, which are constant along a column, are left out).

    Parameters
    ----------
    architecture
        Must satisfy :func:`has_leading_frame`.
    directions
        ``U_i``, ``W_i`` under ``Qi``, ``Ki``; arrays of any number system.
    inputs
        Shape ``(inputs, tokens, d)`` in the same system.

    Returns
    -------
    list of arrays
        Blocks of shape ``(inputs, d, columns)``: the output mean of every input.
    """
    size, tokens, width = inputs.shape
    mean = inputs.sum(axis=1) / tokens
    centred = inputs - mean.reshape(size, 1, width)
    covariance = centred.swapaxes(-1, -2) @ centred / tokens
    eye = np.eye(width, dtype=np.int64).reshape(1, width, width, 1)
    blocks = [(mean.reshape(size, 1, 1, width) * eye).reshape(size, width, width * width)]
    for layer in range(1, architecture.depth + 1):
        u, w = directions[f"Q{layer}"][0], directions[f"K{layer}"][0]
        rank = architecture.ranks[layer - 1]
        by_query = (covariance @ w).reshape(size, width, 1, rank) * mean.reshape(size, 1, width, 1)
        along = (mean @ u).reshape(size, 1, 1, rank)
        by_key = covariance.reshape(size, width, width, 1) * along
        blocks.append(by_query.reshape(size, width, width * rank))
        blocks.append(by_key.reshape(size, width, width * rank))
        score = u @ w.swapaxes(-1, -2)
        covariance = covariance @ score.swapaxes(-1, -2) @ covariance @ score @ covariance
    return blocks


def _frame_rank(path: ResiduePath) -> int:
    system = PowerSeries(1, path.modulus)
    named = {name: system.array(value) for name, value in path.directions.items()}
    blocks = leading_frame(path.architecture, named, system.array(path.inputs))
    frame = np.concatenate([block.coefficients[0] for block in blocks], axis=-1)
    field = RationalField() if path.modulus is None else ResidueField(path.modulus)
    return field.rank(frame.reshape(-1, frame.shape[-1]))


@dataclass(frozen=True)
class ExactOrders:
    """Orders and multiplicities along a path on a bank, exact modulo a prime.

    Attributes
    ----------
    multiplicities
        Order -> number of singular values of that order.
    kernel_dimension
        Exact zeros: what is left equals the rank of the exact kernel directions.
    resolved
        Whether it does; otherwise orders at or above ``precision`` may hide among them.
    precision
        Truncation of the power series.
    inputs
        Bank size.
    modulus
        The prime; None for the rational numbers.
    """

    multiplicities: Mapping[int, int]
    kernel_dimension: int
    resolved: bool
    precision: int
    inputs: int
    modulus: int | None


def exact_orders(path: ResiduePath, *, least: int = 0) -> ExactOrders:
    """Contact orders of the native Jacobian: Smith factors of its power series in ``t``.

    The truncation grows until the columns left over are the exact kernel.

    Parameters
    ----------
    path
        Residues of a given path and bank, or random ones (then the orders are those of generic
        data, with a probability of error of about ``degree / prime``); rational data (modulus
        None) give orders without any prime, for small networks.
    least
        Smallest truncation to try, where the largest order is known beforehand.
    """
    kernel = path_kernel_rank(path, np.random.default_rng(0))
    found = None
    for length in growing_lengths(least):
        jacobian = series_jacobian(path, length)
        if path.modulus is None:
            found = rational_smith_orders(jacobian)
        else:
            found = smith_orders(jacobian, ResidueField(path.modulus))
        if found.unresolved == kernel:
            break
    assert found is not None
    return ExactOrders(
        found.multiplicities,
        found.unresolved,
        found.unresolved == kernel,
        found.precision,
        len(path.inputs),
        path.modulus,
    )


def counting_bound(architecture: Architecture) -> int:
    """Bank size below which no bank separates, by counting (plain networks with nonzero slopes).

    With ``dim_0 = d^2``, ``dim_i = r_i (2 d - r_i)``, ``rho_0 = min(n - 1, d)`` and
    ``rho_i = min(rho_{i-1}, r_i)`` (the rank of the contrast that reaches layer ``i``), the
    largest of

    - ``(dim_0 + ... + dim_D) / d``: an input gives ``d`` numbers;
    - ``(dim_i + ... + dim_D) / rho_{i-1}``: only ``rho_{i-1}`` of them see layers from ``i`` on;
    - ``(d r_i + dim_{i+1} + ... + dim_D) / rho_i``: the query part of layer ``i`` lies in the same
      image as the later layers.
    """
    width, depth = architecture.widths[0], architecture.depth
    dims = [width**2] + [r * (2 * width - r) for r in architecture.ranks]
    rho = [min(architecture.tokens - 1, width)]
    for rank in architecture.ranks:
        rho.append(min(rho[-1], rank))
    sizes = [-(-sum(dims) // width)]
    for i in range(1, depth + 1):
        later = sum(dims[i + 1 :])
        sizes.append(-(-(dims[i] + later) // rho[i - 1]))
        sizes.append(-(-(width * architecture.ranks[i - 1] + later) // rho[i]))
    return max(sizes)


@dataclass(frozen=True)
class SmallestBank:
    """Smallest number of generic inputs that separates.

    Attributes
    ----------
    size
        Separates at random data modulo a prime (so almost every bank of this size does), while
        one input fewer does not.
    orders
        Orders and multiplicities on a separating bank.
    source
        ``leading frame`` or ``exact orders``: what was decided modulo the prime.
    """

    size: int
    orders: Mapping[int, int]
    source: str


def separates(path: ResiduePath, orders: Mapping[int, int]) -> bool:
    """Whether a bank shows all of ``orders`` along a path, exactly modulo the prime."""
    if has_leading_frame(path.architecture):
        return _frame_rank(path) == sum(orders.values())
    found = exact_orders(path, least=max(orders) + 1)
    return found.resolved and dict(found.multiplicities) == dict(orders)


@cache
def smallest_bank(
    architecture: Architecture, *, seed: int = 0, values: str = "identity"
) -> SmallestBank:
    """Find the smallest generic separating bank.

    For the plain network the divided frame must have full column rank. Otherwise the orders on a
    bank must equal those on a bank so large that doubling it changes nothing.

    Parameters
    ----------
    architecture
        The network.
    seed
        Seeds the random data modulo the prime.
    values
        ``identity`` or ``generic``.

    Raises
    ------
    InputError
        If the orders cannot be resolved.
    """
    if has_leading_frame(architecture) and values == "identity":
        orders = theorem_orders(architecture)
        low = counting_bound(architecture)
        path = random_residue_path(architecture, 2 * low + 8, np.random.default_rng(seed), values)
        source = "leading frame"
    else:
        outputs = architecture.widths[-1] * (1 if architecture.mean_only else architecture.tokens)
        low = max(1, architecture.space.size // (2 * outputs))
        size = 2 + -(-architecture.space.size // architecture.widths[-1])
        while True:
            # The draws come in order, so a larger bank extends a smaller one.
            path = random_residue_path(architecture, 2 * size, np.random.default_rng(seed), values)
            found, larger = exact_orders(path.restricted(size)), exact_orders(path)
            if larger.resolved and found.multiplicities == larger.multiplicities:
                break
            size *= 2
            if size > LARGEST_REFERENCE:
                raise InputError(
                    f"the orders still change, or directions without order remain, at {size} "
                    "inputs: the smallest bank is not decided"
                )
        orders, source = dict(larger.multiplicities), "exact orders"
    high = low
    while not separates(path.restricted(high), orders):
        low, high = high + 1, 2 * high
        if high > min(LARGEST_BANK, len(path.inputs)):
            high = len(path.inputs)
            if not separates(path, orders):
                raise InputError(
                    f"not even {high} random inputs separate: the factors must have full column "
                    "rank and scores with a nonzero symmetric part"
                )
            break
    if high == low and high > 1 and separates(path.restricted(high - 1), orders):
        low, high = 1, high - 1
    while low < high:
        middle = (low + high) // 2
        if separates(path.restricted(middle), orders):
            high = middle
        else:
            low = middle + 1
    return SmallestBank(high, orders, source)
