"""Permutations of interchangeable units: neurons, heads, key/value groups, coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, touched


class Permutation(Symmetry):
    """The symmetric group on ``size`` positions of one axis of every slot.

    With ``copies`` > 1 an independent permutation acts for every entry of the views' axis 0
    (query heads inside each key/value group). An element is an integer array ``p`` of shape
    ``(copies, size)``; position ``i`` of the result holds the former position ``p[i]``.
    """

    kind = Kind.DISCRETE

    def __init__(self, name: str, size: int, slots: Sequence[Slot], *, copies: int = 1) -> None:
        self.name, self.size, self.copies, self.slots = name, size, copies, tuple(slots)
        for slot in slots:
            if slot.view.shape[slot.axis] != size:
                raise ValueError(f"{name}: {slot.view.tensor} has not {size} units on its axis")

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*(slot.view for slot in self.slots))

    @property
    def generators(self) -> int:
        """Zero: the group is finite."""
        return 0

    def identity(self) -> NDArray[np.int64]:
        """Every unit in its place, shape ``(copies, size)``."""
        return np.broadcast_to(np.arange(self.size), (self.copies, self.size)).copy()

    def random(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Uniformly random permutations."""
        return np.stack([rng.permutation(self.size) for _ in range(self.copies)])

    def compose(self, first: Element, second: Element) -> Element:
        """Permute by ``first``, then by ``second``."""
        return np.take_along_axis(first, second, axis=1)

    def inverse(self, element: Element) -> Element:
        """Inverse permutations."""
        return np.argsort(element, axis=1)

    def along(self, generator: int, step: complex) -> Element:
        """Raise: a finite group has no direction."""
        raise ValueError(f"{self.name} is a finite group and has no tangent directions")

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Permute in place."""
        for slot in self.slots:
            value = slot.view.read(parameters)
            if self.copies == 1:
                moved = np.take(value, element[0], axis=slot.axis)
            else:
                axis = slot.axis % value.ndim
                shape = [1] * value.ndim
                shape[0], shape[axis] = self.copies, self.size
                moved = np.take_along_axis(value, element.reshape(shape), axis=axis)
            slot.view.write(parameters, moved.copy())
