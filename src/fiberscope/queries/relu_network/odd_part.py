"""The odd part of an oracle as an oracle: it removes ReLUs, because scores are even."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import BALL_BITS

if TYPE_CHECKING:
    from fiberscope.queries.session import Purpose, QuerySession


class OddPart:
    """Answers ``f(X) - f(-X)``: two queries each.

    Has the parts of a `QuerySession` that the recovery of heads uses.

    Parameters
    ----------
    session
        The session of the whole oracle; it counts.
    """

    def __init__(self, session: QuerySession) -> None:
        self.session, self.width, self.arithmetic = session, session.width, session.arithmetic

    def representable(self, tokens: Any) -> NDArray[Any]:
        """Nearest tokens on the oracle's grid."""
        return self.session.representable(tokens)

    def ask(
        self,
        sequences: Sequence[NDArray[Any]] | NDArray[Any],
        purpose: Purpose,
        *,
        bits: int = BALL_BITS,
        repetition: int = 0,
    ) -> NDArray[Any]:
        """Values ``f(X) - f(-X)``, shape ``(n,)``."""
        mirrored: Any
        if isinstance(sequences, np.ndarray):
            mirrored = np.concatenate([sequences, -sequences])
        else:
            mirrored = [*sequences, *(-each for each in sequences)]
        answers = self.session.ask(mirrored, purpose, bits=bits, repetition=repetition)
        half = len(answers) // 2
        return np.asarray(answers[:half] - answers[half:])
