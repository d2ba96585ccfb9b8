"""Quarter turns of planes in front of two gains, which exchange them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, touched


class QuarterTurn(Symmetry):
    """The group Z4 of every plane: ``(x, y) -> (-y, x)`` on rows, an exchange of the two gains.

    Rows ``(x, y)`` with gains ``(a, b)`` are used as ``(a x, b y)``. Turned rows ``(-y, x)`` with
    exchanged gains ``(b, a)`` are used as ``(-b y, a x)``, the same turn of what was used. It
    commutes with the rotation by the position, so scores do not notice when queries and keys turn
    alike. An element holds the number of quarter turns of every plane.

    Parameters
    ----------
    planes
        Two rows of every plane; planes share no row.
    rows, gains
        Slots whose axis counts the rows: rows turn, gains are exchanged.
    """

    kind = Kind.DISCRETE

    def __init__(
        self,
        name: str,
        planes: Sequence[tuple[int, int]],
        rows: Sequence[Slot],
        gains: Sequence[Slot],
    ) -> None:
        self.name = name
        self.planes = np.array(planes, dtype=np.int64).reshape(-1, 2)
        self.rows, self.gains = tuple(rows), tuple(gains)

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*(slot.view for slot in (*self.rows, *self.gains)))

    @property
    def generators(self) -> int:
        """Zero: the group is finite."""
        return 0

    def identity(self) -> NDArray[np.int64]:
        """No turn, shape ``(planes,)``."""
        return np.zeros(len(self.planes), dtype=np.int64)

    def random(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Uniform numbers of quarter turns, 0 to 3."""
        return rng.integers(4, size=len(self.planes))

    def compose(self, first: Element, second: Element) -> Element:
        """Add the turns."""
        return (first + second) % 4

    def inverse(self, element: Element) -> Element:
        """Turn back."""
        return -element % 4

    def along(self, generator: int, step: complex) -> Element:
        """Raise: a finite group has no direction."""
        raise ValueError(f"{self.name} is a finite group and has no tangent directions")

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place."""
        turns = np.asarray(element) % 4
        for slots, signed in ((self.rows, True), (self.gains, False)):
            for slot in slots:
                value = np.array(slot.view.read(parameters))
                front = np.moveaxis(value, slot.axis, 0)
                for count in (1, 2, 3):
                    x, y = self.planes[turns == count].T
                    first, second = front[x].copy(), front[y].copy()
                    if count == 2:
                        front[x], front[y] = (-first, -second) if signed else (first, second)
                        continue
                    left, right = (-1.0, 1.0) if count == 1 else (1.0, -1.0)
                    if not signed:
                        left = right = 1.0
                    front[x], front[y] = left * second, right * first
                slot.view.write(parameters, value)
