"""Certified bounds of a fiber's local dimension, where no theorem covers the point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    effective_architecture,
    effective_columns,
)
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.orders import taylor_orders
from fiberscope.numbers import Dual, DualNumbers
from fiberscope.numbers.fields import ResidueField
from fiberscope.numbers.power_series import JET_PRIME, PowerSeries

LARGEST_EVIDENCE_ORDER = 60
"""Jets for certified local evidence stop at this order."""


@dataclass(frozen=True)
class LocalEvidence:
    """Certified bounds of the fiber's dimension near the point, in effective parameters.

    Attributes
    ----------
    parameters
        Number of effective parameters.
    rank_lower_bound
        Proved lower bound of the rank of the Taylor coefficients' Jacobian at this point.
    dimension_lower_bound, dimension_upper_bound
        The fiber's local dimension: at least the known free scores, at most parameters minus rank.
    order
        Smallest input degree whose Taylor coefficients reach that rank (modulo the prime).
    """

    parameters: int
    rank_lower_bound: int
    dimension_lower_bound: int
    dimension_upper_bound: int
    order: int

    @property
    def certified(self) -> bool:
        """Whether both bounds of the dimension meet."""
        return self.dimension_lower_bound == self.dimension_upper_bound


def _first_degree(rank_through: Callable[[int], int], rank: int, order: int) -> int:
    """Smallest degree whose Taylor coefficients already have the rank."""
    low, high = 1, order
    while low < high:
        middle = (low + high) // 2
        if rank_through(middle) == rank:
            high = middle
        else:
            low = middle + 1
    return high


def local_evidence(
    effective: EffectiveParameters,
    normalizers: Sequence[Normalizer],
    tokens: int,
    free: int,
    seed: int = 0,
) -> LocalEvidence:
    """Certified bounds of the local dimension of the fiber at a point.

    The rank modulo a prime of the Jacobian of Taylor coefficients in ``(L, M_1, ..., M_D)`` at
    this very point is at most the true one, so the fiber's dimension near it is at most
    parameters minus rank; it is at least the number of entries that are known to be ``free``.
    """
    architecture, parameters = effective_architecture(effective, normalizers, tokens)
    columns = effective_columns(architecture)
    orders = taylor_orders([phi.contact_degree for phi in normalizers])
    # Degenerate points show later than regular ones.
    tried = sorted({min(n, LARGEST_EVIDENCE_ORDER) for n in (orders[-1], 2 * orders[-1] + 3)})
    rng = np.random.default_rng(seed)
    inputs = 2 + -(-len(columns) // architecture.widths[-1])
    y = rng.integers(0, JET_PRIME, (inputs, tokens, effective.width))
    best, used = -1, 0
    for order in tried:
        system = PowerSeries(order + 1)
        space = architecture.space
        rows = np.zeros((len(columns), space.size), dtype=np.int64)
        rows[np.arange(len(columns)), columns] = 1
        windows = dict(space.slices())
        named = {
            name: Dual(
                system.array(value),
                system.array(rows[:, windows[name]].reshape(len(columns), *space.shapes[name])),
            )
            for name, value in parameters.items()
        }
        bank = system.from_coefficients([np.zeros_like(y), y])
        tangent = forward(architecture, named, bank, DualNumbers(system)).tangent.coefficients

        def rank_through(degree: int, tangent: NDArray[np.int64] = tangent) -> int:
            kept = np.moveaxis(tangent[: degree + 1], 1, 0).reshape(len(columns), -1)
            return ResidueField().rank(kept)

        rank = rank_through(order)
        if rank > best:
            best, used = rank, _first_degree(rank_through, rank, order)
        if best == len(columns) - free:
            break
    return LocalEvidence(len(columns), best, free, len(columns) - best, used)
