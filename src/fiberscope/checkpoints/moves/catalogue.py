"""From a step of a witness to the symmetry of the ledger that acts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.wiring import Wiring, wire
from fiberscope.checkpoints.moves import exceptional
from fiberscope.checkpoints.moves.exceptional import Exceptional
from fiberscope.errors import InputError
from fiberscope.symmetry import Element, Symmetry


class Key(NamedTuple):
    """Which item of the ledger: its mechanism, layer and place, and a number among equal ones."""

    mechanism: str
    layer: int | None
    where: str
    number: int = 0


@dataclass(frozen=True)
class Step:
    """One element of one symmetry.

    Attributes
    ----------
    key
        The item of the ledger, or a mechanism of `exceptional` with its place.
    element
        In the symmetry's own coordinates: an array, or a tuple of arrays.
    data
        For exceptional symmetries, the integers that rebuild them; empty otherwise.
    """

    key: Key
    element: Element
    data: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[NDArray[Any], ...]:
        """The element's arrays."""
        return self.element if isinstance(self.element, tuple) else (np.asarray(self.element),)


class Catalogue:
    """The items of one architecture's ledger by key, and the exceptional symmetries beside them."""

    def __init__(self, architecture: Architecture, observable: Observable) -> None:
        self.architecture, self.observable = architecture, observable
        self.wiring: Wiring = wire(architecture, observable)
        self.items: dict[Key, Item] = {}
        seen: Counter[tuple[str, int | None, str]] = Counter()
        for item in ledger(architecture, observable).items:
            if item.build is None:
                continue
            place = (item.mechanism, item.layer, item.where)
            self.items[Key(*place, seen[place])] = item
            seen[place] += 1
        self._built: dict[Key, Symmetry] = {}

    def mechanisms(self) -> tuple[str, ...]:
        """Names of the ledger's mechanisms that can act, in its order."""
        return tuple(dict.fromkeys(key.mechanism for key in self.items))

    def symmetry(self, key: Key) -> Symmetry:
        """The acting symmetry of an item."""
        if key not in self._built:
            build = self.items[key].build
            assert build is not None
            self._built[key] = build()
        return self._built[key]

    def acting(self, step: Step) -> Exceptional:
        """The acting symmetry of a step, with its premise.

        Raises
        ------
        InputError
            If the model has no such symmetry, or the element is not one of it; one sentence.
        """
        key = step.key
        if key.mechanism in exceptional.MECHANISMS:
            found = exceptional.build(key.mechanism, key.layer, key.where, step.data, self.wiring)
        elif key in self.items:
            found = Exceptional(self.symmetry(key), lambda parameters: 0.0)
        else:
            raise InputError(
                f"{self.architecture.name} has no {key.mechanism!r} at {key.where!r}, where the "
                "witness moves it; use the witness with the model it was made for"
            )
        identity = found.symmetry.identity()
        expected = identity if isinstance(identity, tuple) else (identity,)
        shapes = [np.shape(part) for part in step.parts]
        if shapes != [np.shape(part) for part in expected]:
            raise InputError(
                f"the witness's {key.mechanism!r} at {key.where!r} has shape {shapes[:3]}, which "
                f"{self.architecture.name} at these sizes has not; use the witness with the model "
                "it was made for"
            )
        return found
