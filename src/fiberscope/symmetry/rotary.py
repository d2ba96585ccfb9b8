"""Changes of query/key basis that commute with rotary position encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Element, Slot
from fiberscope.symmetry.general_linear import GeneralLinear


class RotaryCommutant(GeneralLinear):
    """Matrices that commute with the rotations of all planes, one copy per key/value group.

    Planes of equal frequency form a block of ``m`` planes on which the commutant is GL(m, C), of
    real dimension ``2 m^2``; with distinct frequencies each plane carries rotations and scalings
    only, ``C^x``. Rows that are not rotated form a block of their own, where the commutant is GL.

    Parameters
    ----------
    planes
        Row indices ``(first, second)`` of every plane: ``(j, j + rot/2)`` for the half-split
        layout, ``(2j, 2j + 1)`` for the interleaved one.
    frequencies
        One nonzero frequency a plane; equal numbers share a block. A negative frequency turns
        the plane backwards, which is the same as exchanging its two rows.

    Source: Tran et al., Functional Equivalence in Attention (2606.17830), section on RoPE; the
    commutant for equal frequencies is elementary (commutant of an isotypic representation).
    """

    def __init__(
        self,
        name: str,
        slots: tuple[Slot, ...],
        planes: Sequence[tuple[int, int]],
        frequencies: Sequence[float],
    ) -> None:
        super().__init__(name, slots)
        if len(planes) != len(frequencies):
            raise ValueError(f"{name}: {len(planes)} planes but {len(frequencies)} frequencies")
        rotated = [row for plane in planes for row in plane]
        if len(set(rotated)) != len(rotated) or any(not 0 <= row < self.width for row in rotated):
            raise ValueError(f"{name}: the planes are not disjoint pairs of the {self.width} rows")
        blocks: dict[float, list[tuple[int, int]]] = {}
        for plane, frequency in zip(planes, frequencies, strict=True):
            if frequency == 0:
                raise ValueError(f"{name}: frequency 0 does not rotate, leave plane {plane} out")
            oriented = plane if frequency > 0 else (plane[1], plane[0])
            blocks.setdefault(abs(float(frequency)), []).append(oriented)
        self.blocks = tuple(np.array(block, dtype=np.int64) for block in blocks.values())
        self.unrotated = np.array(
            [row for row in range(self.width) if row not in set(rotated)], dtype=np.int64
        )
        self._basis = self._commutant_basis()

    def _commutant_basis(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], Any]]:
        """Sparse basis ``(rows, columns, signs)`` of the commutant of one copy."""
        basis: list[tuple[NDArray[np.int64], NDArray[np.int64], Any]] = []
        for block in self.blocks:
            for p in block:
                for q in block:
                    # a + ib acts on the pair (x_first, x_second) as [[a, -b], [b, a]].
                    basis.append((np.array([p[0], p[1]]), np.array([q[0], q[1]]), (1.0, 1.0)))
                    basis.append((np.array([p[1], p[0]]), np.array([q[0], q[1]]), (1.0, -1.0)))
        basis.extend(
            (np.array([p]), np.array([q]), (1.0,)) for p in self.unrotated for q in self.unrotated
        )
        return basis

    @property
    def generators(self) -> int:
        """``copies * (sum over blocks of 2 m^2 + unrotated^2)``."""
        return self.copies * len(self._basis)

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Well-conditioned random commuting matrices."""
        element = np.zeros((self.copies, self.width, self.width))
        for copy in range(self.copies):
            for block in self.blocks:
                z = rng.standard_normal((2, len(block), len(block)))
                unitary = np.linalg.qr(z[0] + 1j * z[1])[0]
                moved = unitary * 2.0 ** rng.uniform(-1, 1, len(block))
                first, second = block[:, 0], block[:, 1]
                element[copy][np.ix_(first, first)] = moved.real
                element[copy][np.ix_(second, second)] = moved.real
                element[copy][np.ix_(second, first)] = moved.imag
                element[copy][np.ix_(first, second)] = -moved.imag
            if len(self.unrotated):
                rest = rng.standard_normal((len(self.unrotated),) * 2)
                orthogonal = np.linalg.qr(rest)[0]
                element[copy][np.ix_(self.unrotated, self.unrotated)] = orthogonal * (
                    2.0 ** rng.uniform(-1, 1, len(self.unrotated))
                )
        return element

    def along(self, generator: int, step: complex) -> NDArray[np.complex128]:
        """``I + step * (basis matrix of the commutant)`` in one copy."""
        element = self.identity().astype(np.complex128)
        copy, number = divmod(generator, len(self._basis))
        rows, columns, signs = self._basis[number]
        element[copy, rows, columns] += step * np.asarray(signs)
        return element

    def commutes(self, element: Element, tolerance: float = 1e-12) -> bool:
        """Tell whether the matrices commute with all plane rotations, to ``tolerance``."""
        matrix = self.matrix(element)
        for block in self.blocks:
            turn = np.eye(self.width)
            turn[np.ix_(block.ravel(), block.ravel())] = 0.0
            turn[block[:, 0], block[:, 1]] = -1.0
            turn[block[:, 1], block[:, 0]] = 1.0
            if np.abs(matrix @ turn - turn @ matrix).max() > tolerance * np.abs(matrix).max():
                return False
        return True
