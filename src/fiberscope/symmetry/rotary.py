"""Changes of query/key basis that commute with rotary position encoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters
from fiberscope.symmetry.base import Element, Slot
from fiberscope.symmetry.general_linear import (
    GeneralLinear,
    GeneralLinearTangents,
    Invert,
    sylvester,
)
from fiberscope.symmetry.tangent_map import TangentMap, Vector, pseudo_inverse, reciprocal


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

    def nearest(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """The nearest commuting matrices (Frobenius), shape ``(copies, width, width)``.

        Rounding of a matrix with small and large planes can be large for the small ones; here each
        plane keeps its own.
        """
        found = np.zeros_like(matrix)
        for rows, columns, signs in self._basis:
            weights = np.asarray(signs)
            share = (matrix[:, rows, columns] * weights).mean(axis=1)
            found[:, rows, columns] += share[:, None] * weights
        return found

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """The directions of the general linear group, restricted to the commutant."""
        return CommutantTangents(self, parameters)

    @cached_property
    def sparse_basis(self) -> SparseBasis:
        """The basis as flat index arrays, for all generators of one copy at once."""
        return SparseBasis(self._basis, self.width)


class SparseBasis:
    """Matrices with at most one entry in a row and a column, as flat arrays over their entries.

    Attributes
    ----------
    generator, row, column, sign
        Which matrix an entry belongs to, its place, and its value.
    blocks
        Generators grouped by shared rows and columns.
    full
        For each block, whether it holds every matrix on its rows.
    largest_block
        Size of the largest block that is not full.
    """

    def __init__(
        self, basis: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], Any]], width: int
    ) -> None:
        self.size, self.width = len(basis), width
        none = np.zeros(0, dtype=np.int64)
        self.generator = np.repeat(np.arange(self.size), [len(rows) for rows, _, _ in basis])
        self.row = np.concatenate([none, *(rows for rows, _, _ in basis)])
        self.column = np.concatenate([none, *(columns for _, columns, _ in basis)])
        self.sign = np.concatenate([np.zeros(0), *(np.asarray(s, float) for _, _, s in basis)])
        self.position = self.row * width + self.column
        linked = np.arange(width)
        for rows, columns, _ in basis:
            own = np.unique(linked[np.concatenate([rows, columns])])
            if len(own) > 1:
                linked[np.isin(linked, own)] = own[0]
        label = np.zeros(self.size, dtype=np.int64)
        label[self.generator] = linked[self.row]
        self.blocks = [np.flatnonzero(label == value) for value in np.unique(label)]
        self.full = [
            len(block) == len(np.unique(self.row[np.isin(self.generator, block)])) ** 2
            for block in self.blocks
        ]
        sizes = [len(b) for b, full in zip(self.blocks, self.full, strict=True) if not full]
        self.largest_block = max(sizes, default=0)

    def sums(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum the weights of all entries of each generator."""
        return np.bincount(self.generator, weights, self.size).astype(np.float64)

    def dense(self, members: NDArray[np.int64]) -> NDArray[np.float64]:
        """Matrices of some generators, shape ``(members, width, width)``."""
        place = np.full(self.size, -1)
        place[members] = np.arange(len(members))
        number = place[self.generator]
        inside = number >= 0
        matrices = np.zeros((len(members), self.width, self.width))
        matrices[number[inside], self.row[inside], self.column[inside]] = self.sign[inside]
        return matrices


LARGEST_GRAM = 512
"""Generators of one block up to which their Gram matrix is inverted; beyond, its diagonal."""


class CommutantTangents(GeneralLinearTangents):
    """Directions of a linear subspace of matrices ``S``, given by a sparse basis.

    Basis matrices that share no row or column have orthogonal directions, so the Gram matrix falls
    into blocks. It is diagonal for a plane alone (a scaling and a turn), a Sylvester map for the
    rows that are not rotated, and small for planes of equal frequency.
    """

    def __init__(self, group: RotaryCommutant, parameters: Parameters) -> None:
        super().__init__(group, parameters)
        self.basis = group.sparse_basis
        self.exact = self.basis.largest_block <= LARGEST_GRAM

    def matrices(self, vector: Vector) -> NDArray[np.float64]:
        """Sums of basis matrices, ``(copies, width, width)``."""
        given = vector.reshape(self.copies, self.basis.size)
        weights = given[:, self.basis.generator] * self.basis.sign
        flat = [np.bincount(self.basis.position, row, self.width**2) for row in weights]
        return np.stack(flat).astype(np.float64).reshape(self.copies, self.width, self.width)

    def coordinates(self, matrices: NDArray[np.float64]) -> Vector:
        """Inner products with the basis matrices."""
        flat = matrices.reshape(self.copies, -1)[:, self.basis.position] * self.basis.sign
        return np.concatenate([self.basis.sums(row) for row in flat])

    def solve(self, vector: Vector) -> Vector:
        """Invert the Gram matrix block by block; exact but for very large blocks."""
        given = vector.reshape(self.copies, self.basis.size)
        solved = given * self._diagonal
        for members, invert in self._solvers:
            solved[:, members] = invert(given[:, members])
        return solved.reshape(-1)

    @cached_property
    def _diagonal(self) -> NDArray[np.float64]:
        plain = np.diagonal(self.plain, axis1=1, axis2=2)[:, self.basis.column]
        dual = np.diagonal(self.dual, axis1=1, axis2=2)[:, self.basis.row]
        return np.stack([reciprocal(self.basis.sums(row)) for row in plain + dual])

    @cached_property
    def _solvers(self) -> list[tuple[NDArray[np.int64], Invert]]:
        """Inverses of the blocks whose Gram matrix is not diagonal."""
        solvers: list[tuple[NDArray[np.int64], Invert]] = []
        for members, full in zip(self.basis.blocks, self.basis.full, strict=True):
            if full and len(members) > 1:
                rows = np.unique(self.basis.row[np.isin(self.basis.generator, members)])
                window = np.ix_(np.arange(self.copies), rows, rows)
                solvers.append((members, sylvester(self.plain[window], self.dual[window])))
            elif 2 < len(members) <= LARGEST_GRAM:
                solvers.append((members, self._dense_inverse(members)))
        return solvers

    def _dense_inverse(self, members: NDArray[np.int64]) -> Invert:
        basis = self.basis.dense(members)
        flat = basis.reshape(len(members), -1)
        inverses = []
        for plain, dual in zip(self.plain, self.dual, strict=True):
            gram = flat @ (basis @ plain + dual @ basis).reshape(len(members), -1).T
            inverses.append(pseudo_inverse((gram + gram.T) / 2))
        stacked = np.stack(inverses)
        return lambda given: np.einsum("cij,cj->ci", stacked, given)
