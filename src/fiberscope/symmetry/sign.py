"""Sign flips: the discrete part that is left of a scaling when its size is fixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Kind
from fiberscope.symmetry.scaling import ScaledSlot, Scaling


class SignFlip(Scaling):
    """``size`` independent signs; no continuous directions.

    Odd activations (tanh) and even normalizers give symmetries of this kind that are not part of
    any continuous scaling.
    """

    def __init__(self, name: str, size: int, slots: Sequence[ScaledSlot]) -> None:
        super().__init__(name, size, slots, kind=Kind.DISCRETE)

    @property
    def generators(self) -> int:
        """Zero: the group is finite."""
        return 0

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Random signs, shape ``(size,)``."""
        return rng.choice([-1.0, 1.0], self.size)
