r"""The queries of the published algorithm for many heads, and of a shorter one.

For independent directions ``z_1 .. z_d``, tokens ``y_1 .. y_d`` and a bound ``H`` on the number
of heads, ``2 H`` sequences each (``k = 1 .. 2 H`` copies of ``y + z``, then ``y``; length at most
``2 H + 1``) for

    every (y_j, z_i)                      d^2 probes
    every (y_j, z_1 + z_i), i > 1         d (d - 1) probes    (shorter: j = 1 only)
    every (y_1 + y_j, z_1), j > 1         d - 1 probes        (shorter: none)

and the one-token sequence ``y_1``: ``4 H d^2 - 2 H + 1`` queries, or ``2 H (d^2 + d - 1) + 1``.

Source: Kim et al., "Provably Learning Multi-Head Attention with Queries", arXiv 2608.03294.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Key = tuple[str, int, int]
"""``("base", j, i)``, ``("direction", j, i)``, ``("token", j, 0)``: which probe."""

GRID = 2.0**-12
"""Coordinates are multiples of this, so that sums of tokens are exact in float64."""


def published_count(heads: int, width: int) -> int:
    """Queries of the published algorithm: ``4 H d^2 - 2 H + 1``."""
    return 4 * heads * width**2 - 2 * heads + 1


def shorter_count(heads: int, width: int) -> int:
    """Queries of the shorter algorithm: ``2 H (d^2 + d - 1) + 1``."""
    return 2 * heads * (width**2 + width - 1) + 1


@dataclass(frozen=True)
class BallDesign:
    """Directions and tokens of one draw.

    Attributes
    ----------
    directions, tokens
        ``z_i`` and ``y_j`` as rows, float64 of shape ``(d, d)``, on a dyadic grid.
    """

    directions: NDArray[np.float64]
    tokens: NDArray[np.float64]

    @staticmethod
    def draw(width: int, rng: np.random.Generator) -> BallDesign:
        """Independent Gaussian rows of a size that makes scores of order one for random weights."""
        while True:
            rows = rng.normal(size=(2, width, width)) * width**-0.25
            rows = np.round(rows / GRID) * GRID
            if np.linalg.cond(rows[0]) < 1e4 * width and np.linalg.cond(rows[1]) < 1e4 * width:
                return BallDesign(rows[0], rows[1])

    def base_keys(self) -> list[Key]:
        """Every pair of a token and a direction."""
        width = len(self.tokens)
        return [("base", j, i) for j in range(width) for i in range(width)]

    def shorter_keys(self) -> list[Key]:
        """The probes of the shorter algorithm."""
        return [*self.base_keys(), *(("direction", 0, i) for i in range(1, len(self.tokens)))]

    def published_keys(self) -> list[Key]:
        """The probes of the published algorithm."""
        width = len(self.tokens)
        return [
            *self.base_keys(),
            *(("direction", j, i) for j in range(width) for i in range(1, width)),
            *(("token", j, 0) for j in range(1, width)),
        ]

    def token(self, key: Key) -> NDArray[np.float64]:
        """The last token ``y`` of a probe, shape ``(d,)``."""
        kind, j, _ = key
        return self.tokens[0] + self.tokens[j] if kind == "token" else self.tokens[j]

    def direction(self, key: Key) -> NDArray[np.float64]:
        """The direction ``z`` of a probe, shape ``(d,)``."""
        kind, _, i = key
        return (
            self.directions[0] + self.directions[i] if kind == "direction" else self.directions[i]
        )

    def sequences(self, key: Key, bound: int) -> list[NDArray[np.float64]]:
        """The ``2 bound`` sequences of one probe, of shapes ``(2, d) .. (2 bound + 1, d)``."""
        y = self.token(key)
        copy = y + self.direction(key)
        return [np.stack([copy] * k + [y]) for k in range(1, 2 * bound + 1)]
