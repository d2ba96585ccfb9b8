"""How far two arrays or two points are apart, relative to their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Point = Mapping[str, NDArray[Any]]


def relative_deviation(found: Any, expected: Any, scale: float = 0.0) -> float:
    """Largest difference relative to the largest entry; infinite for NaN or unequal shapes."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return float("inf")
    if not found.size:
        return 0.0
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return float("inf")
    scale = max(scale, float(np.abs(expected).max()))
    difference = float(np.abs(found - expected).max())
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))


def distance(found: Point, expected: Point) -> float:
    """Deviation of two points, relative to the largest parameter."""
    if found.keys() != expected.keys():
        return float("inf")
    scale = max((float(np.abs(v).max(initial=0.0)) for v in expected.values()), default=0.0)
    return max(
        (relative_deviation(found[name], expected[name], scale) for name in expected), default=0.0
    )


@dataclass
class Worst:
    """The largest deviation met, and where."""

    value: float = 0.0
    where: str = ""

    def see(self, value: float, where: str) -> None:
        """Keep the deviation if it is the largest so far."""
        if value > self.value or not self.where:
            self.value, self.where = value, where
