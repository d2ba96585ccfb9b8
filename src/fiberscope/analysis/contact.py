"""Bands of singular values that share an order along a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Band:
    """Singular values that share an order.

    Attributes
    ----------
    order
        The power of ``t``; None where neither theory nor fits give one.
    multiplicity
        Number of singular values.
    slopes
        Fitted slope of each, from the two smallest ``t``; empty with a single ``t``.
    """

    order: int | None
    multiplicity: int
    slopes: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"order": self.order, "multiplicity": self.multiplicity, "slopes": list(self.slopes)}


def bands_from_orders(orders: Mapping[int, int], slopes: list[float]) -> list[Band]:
    """Bands of known orders and multiplicities, strongest first; slopes in decreasing value order.

    Raises
    ------
    ValueError
        If there are slopes, but not one for each singular value.
    """
    if slopes and len(slopes) != sum(orders.values()):
        raise ValueError(f"{len(slopes)} slopes for {sum(orders.values())} singular values")
    bands, start = [], 0
    for order in sorted(orders):
        size = orders[order]
        bands.append(Band(order, size, tuple(slopes[start : start + size])))
        start += size
    return bands


def bands_from_slopes(slopes: list[float], tolerance: float = 0.25) -> list[Band]:
    """Bands of equal rounded slopes; order None where a slope is not near an integer."""
    groups: dict[int | None, list[float]] = {}
    for slope in slopes:
        nearest = round(slope)
        groups.setdefault(nearest if abs(slope - nearest) <= tolerance else None, []).append(slope)
    known = sorted(order for order in groups if order is not None)
    keys: list[int | None] = [*known, *([None] if None in groups else [])]
    return [Band(key, len(groups[key]), tuple(groups[key])) for key in keys]
