"""Steps of a witness while it is built: each acts at once, and the next looks at the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.witness import PREMISE_TOLERANCE, Witness, act
from fiberscope.errors import InputError

Arrays = dict[str, NDArray[Any]]


class Steps:
    """Steps taken so far from one set of parameters towards another.

    Attributes
    ----------
    moved
        The first model's parameters after the steps.
    target
        The second model's.
    notes
        What no step could do, in words.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        first: Mapping[str, NDArray[Any]],
        second: Mapping[str, NDArray[Any]],
    ) -> None:
        self.catalogue, self.target = catalogue, second
        self.moved: Arrays = {k: np.array(v, dtype=np.float64) for k, v in first.items()}
        self.taken: list[Step] = []
        self.notes: list[str] = []

    def has(self, key: Key) -> bool:
        """Whether the ledger has such an item."""
        return key in self.catalogue.items

    def take(
        self, key: Key, element: Any, data: Mapping[str, NDArray[np.int64]] | None = None
    ) -> bool:
        """Take a step; False, and nothing changes, where its premise does not hold."""
        step = Step(key, element, data or {})
        found = self.catalogue.acting(step)
        # With a margin: the check of a witness may start from other roundings of the numbers.
        if not found.premise(self.moved) <= PREMISE_TOLERANCE / 2:
            return False
        act(found.symmetry, element, self.moved)
        self.taken.append(step)
        return True

    def take_if_finite(self, key: Key, element: Any) -> None:
        """Take a step unless it would leave numbers that are not finite, or is refused.

        A norm's bias cannot be shifted to zero where readers without a bias would have to take the
        shift back along it: that is left undone and noted.
        """
        symmetry = self.catalogue.symmetry(key)
        tried = self.moved | {name: self.moved[name].copy() for name in symmetry.touches}
        try:
            act(symmetry, element, tried)
        except InputError:
            self.notes.append(
                f"the {key.mechanism} of {key.where} is left as it is: bias/gain would add up to "
                "zero, which no finite step does"
            )
            return
        if all(np.isfinite(tried[name]).all() for name in symmetry.touches):
            self.moved = tried
            self.taken.append(Step(key, element))

    def witness(self, architecture: Architecture, observable: Observable) -> Witness:
        """All steps together."""
        return Witness(architecture, observable, tuple(self.taken))
