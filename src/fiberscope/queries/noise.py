"""How far an oracle's answers can be trusted: rounding, repetitions, and rounded digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class NoiseLevel:
    """Errors of answers: at most about ``absolute + unit * size`` each.

    ``size`` is what rounding errors scale with (`AttentionHeads.size`, or before heads are known
    the largest answer times token length).

    Attributes
    ----------
    unit
        Relative error: the unit roundoff of the arithmetic that the answers show.
    absolute
        Spread of repeated answers, or half a unit of the last decimal digit that is kept, or what
        the user declares.
    repeatable
        Whether the same query had the same answer every time.
    sources
        Where these come from, in words.
    """

    unit: float
    absolute: float = 0.0
    repeatable: bool = True
    sources: tuple[str, ...] = ()

    def bound(self, size: NDArray[np.float64] | float) -> Any:
        """``absolute + unit * size``."""
        return self.absolute + self.unit * size
