"""Orthogonal changes of query/key basis that commute with rotary position encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Slot
from fiberscope.symmetry.rotary import RotaryCommutant


class OrthogonalCommutant(RotaryCommutant):
    """The orthogonal matrices among the rotary commutant, one copy per key/value group.

    What is left of a change of basis when queries and keys are normalised to unit length: U(m)
    for ``m`` planes of equal frequency (dimension ``m^2``; one angle for a plane alone) and O on
    the rows that are not rotated. Without planes it is O(width).
    """

    def __init__(
        self,
        name: str,
        slots: tuple[Slot, ...],
        planes: Sequence[tuple[int, int]] = (),
        frequencies: Sequence[float] = (),
    ) -> None:
        super().__init__(name, slots, planes, frequencies)

    def _commutant_basis(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], Any]]:
        """Skew-Hermitian matrices on the blocks, skew-symmetric ones on the other rows."""
        entries: list[tuple[list[int], list[int], tuple[float, ...]]] = []
        for block in self.blocks:
            for i, p in enumerate(block):
                entries.append(([p[1], p[0]], [p[0], p[1]], (1.0, -1.0)))
                for q in block[i + 1 :]:
                    rows, columns = [p[0], p[1], q[0], q[1]], [q[0], q[1], p[0], p[1]]
                    entries.append((rows, columns, (1.0, 1.0, -1.0, -1.0)))
                    rows = [p[1], p[0], q[1], q[0]]
                    entries.append((rows, columns, (1.0, -1.0, 1.0, -1.0)))
        for i, p in enumerate(self.unrotated):
            entries.extend(([p, q], [q, p], (1.0, -1.0)) for q in self.unrotated[i + 1 :])
        return [(np.array(rows), np.array(columns), signs) for rows, columns, signs in entries]

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Random orthogonal commuting matrices: the orthogonal polar factor of a general one."""
        left, _, right = np.linalg.svd(super().random(rng))
        return left @ right
