"""Two-token queries on a grid on which no token is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

ROOM = 10.0
"""Times a bound on absolute errors that counts as the size of errors of values."""


class NotFiniteError(Exception):
    """An answer was NaN or infinite: the probes are too large for the oracle."""


@dataclass
class PairProbe:
    """The odd part ``G(z, y)`` of an oracle (see :mod:`.steps`).

    Attributes
    ----------
    session
        Where to ask.
    total
        ``u``, shape ``(d,)``.
    noise
        Errors of the answers.
    purpose
        What the queries count as.
    """

    session: QuerySession
    total: Floats
    noise: NoiseLevel
    purpose: Purpose

    def grid(self, reach: float) -> float:
        """Spacing on which numbers up to ``reach``, and their sums, are exact for the oracle."""
        bits = -int(np.log2(self.session.arithmetic.unit))
        return float(2.0 ** (np.ceil(np.log2(max(reach, 1e-300))) + 2 - bits))

    def direction(self, z: Floats, largest_token: float) -> Floats:
        """The nearest direction on the grid for tokens up to ``largest_token``."""
        spacing = self.grid(np.abs(z).max() + largest_token)
        return np.round(z / spacing) * spacing

    def points(self, z: Floats, y: Floats) -> Floats:
        """Points ``(n, d)`` moved to the grid on which ``y + z`` is exact."""
        spacing = self.grid(float(np.abs(z).max() + np.abs(y).max(initial=0.0)))
        return np.round(y / spacing) * spacing

    def half(self, z: Floats) -> float:
        """``u^T z / 2``, asked as ``f([z])``."""
        value = self.session.ask(z[None, None, :], self.purpose)
        return 0.5 * float(value[0])

    def values(self, z: Floats, y: Floats, half: float, copies: int = 1) -> Floats:
        """``G(z, y)`` at points from :meth:`points`, shape ``(n,)``.

        Raises
        ------
        NotFiniteError
            If an answer is NaN or infinite.
        """
        tokens = np.repeat(y[:, None, :], copies + 1, axis=1)
        tokens[:, :-1] += z
        answers = self.session.ask(tokens, self.purpose)
        if not np.isfinite(answers).all():
            raise NotFiniteError
        return np.asarray(answers - y @ self.total - half)

    def floor(self, z: Floats, heights: Floats, score: float) -> float:
        """Size of the errors of values for steps of these heights and scores of this size."""
        size = float(np.abs(heights).sum() + np.linalg.norm(self.total) * np.linalg.norm(z))
        # Fits must stay within a fifth of this; absolute errors are bounds that residuals reach.
        return ROOM * self.noise.absolute + self.noise.unit * size * (3 + score)
