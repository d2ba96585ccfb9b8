"""Linear algebra over a field on plain arrays: ranks and null spaces, exact where the field is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.power_series import JET_PRIME


class Field(ABC):
    """Linear algebra over a field, on plain arrays."""

    @abstractmethod
    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring sums of products back into the field's normal form."""

    @abstractmethod
    def nullspace(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Columns spanning ``{v : matrix v = 0}``, shape ``(columns, nullity)``."""

    @abstractmethod
    def rank(self, matrix: NDArray[Any]) -> int:
        """Rank."""


class RealField(Field):
    """float64, with ranks decided at ``1e-10`` of the largest singular value."""

    TOLERANCE = 1e-10

    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Nothing to do."""
        return values

    def nullspace(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Orthonormal basis from the singular value decomposition."""
        if matrix.shape[0] == 0:
            return np.eye(matrix.shape[1])
        _, sigma, right = np.linalg.svd(matrix, full_matrices=True)
        cutoff = self.TOLERANCE * (sigma[0] if sigma.size else 0.0)
        return right[int(np.sum(sigma > cutoff)) :].T

    def rank(self, matrix: NDArray[Any]) -> int:
        """Singular values above the tolerance."""
        if 0 in matrix.shape:
            return 0
        sigma = np.linalg.svd(matrix, compute_uv=False)
        return int(np.sum(sigma > self.TOLERANCE * sigma[0])) if sigma[0] > 0 else 0


class ResidueField(Field):
    """Residues modulo a prime at most 2^25, int64."""

    def __init__(self, modulus: int = JET_PRIME) -> None:
        self.modulus = modulus

    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Residues in ``[0, modulus)``."""
        return values % self.modulus

    def echelon(self, matrix: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
        """Reduced row echelon form (nonzero rows only) and its pivot columns."""
        work = np.asarray(matrix, dtype=np.int64) % self.modulus
        pivots: list[int] = []
        row = 0
        for column in range(work.shape[1]):
            if row == work.shape[0]:
                break
            below = np.flatnonzero(work[row:, column])
            if below.size == 0:
                continue
            pivot = row + int(below[0])
            if pivot != row:
                work[[row, pivot]] = work[[pivot, row]]
            inverse = pow(int(work[row, column]), -1, self.modulus)
            work[row, column:] = work[row, column:] * inverse % self.modulus
            others = np.flatnonzero(work[:, column])
            others = others[others != row]
            if others.size:
                factors = work[others, column][:, None]
                work[others, column:] = (
                    work[others, column:] - factors * work[row, column:]
                ) % self.modulus
            pivots.append(column)
            row += 1
        return work[:row], pivots

    def nullspace(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Basis from the reduced echelon form."""
        columns = matrix.shape[1]
        reduced, pivots = self.echelon(matrix)
        free = [c for c in range(columns) if c not in set(pivots)]
        basis = np.zeros((columns, len(free)), dtype=np.int64)
        for j, column in enumerate(free):
            basis[column, j] = 1
            if pivots:
                basis[pivots, j] = -reduced[:, column] % self.modulus
        return basis

    def rank(self, matrix: NDArray[Any]) -> int:
        """Rank modulo the prime (at most the rank over the rational numbers)."""
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        return len(self.pivot_columns(matrix))

    def pivot_columns(self, matrix: NDArray[Any]) -> list[int]:
        """First independent columns of a matrix, by elimination below the pivots only."""
        work = np.asarray(matrix, dtype=np.int64) % self.modulus
        pivots: list[int] = []
        row = 0
        for column in range(work.shape[1]):
            if row == work.shape[0]:
                break
            below = np.flatnonzero(work[row:, column])
            if below.size == 0:
                continue
            pivot = row + int(below[0])
            if pivot != row:
                work[[row, pivot]] = work[[pivot, row]]
            inverse = pow(int(work[row, column]), -1, self.modulus)
            line = work[row, column:] * inverse % self.modulus
            others = row + 1 + np.flatnonzero(work[row + 1 :, column])
            if others.size:
                work[others, column:] = (
                    work[others, column:] - work[others, column][:, None] * line
                ) % self.modulus
            pivots.append(column)
            row += 1
        return pivots


class RationalField(Field):
    """Exact rational numbers (object arrays of ``Fraction``), for small matrices."""

    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Nothing to do."""
        return values

    def _echelon(self, matrix: NDArray[Any]) -> tuple[list[list[Fraction]], list[int]]:
        work = [[Fraction(value) for value in row] for row in np.asarray(matrix, dtype=object)]
        pivots: list[int] = []
        for column in range(matrix.shape[1]):
            row = len(pivots)
            pivot = next((k for k in range(row, len(work)) if work[k][column] != 0), None)
            if pivot is None:
                continue
            work[row], work[pivot] = work[pivot], work[row]
            lead = work[row][column]
            work[row] = [value / lead for value in work[row]]
            for k in range(len(work)):
                if k != row and work[k][column] != 0:
                    factor = work[k][column]
                    work[k] = [x - factor * y for x, y in zip(work[k], work[row], strict=True)]
            pivots.append(column)
        return work[: len(pivots)], pivots

    def nullspace(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Basis from the reduced echelon form."""
        columns = matrix.shape[1]
        reduced, pivots = self._echelon(matrix)
        free = [c for c in range(columns) if c not in set(pivots)]
        basis = np.empty((columns, len(free)), dtype=object)
        basis.fill(Fraction(0))
        for j, column in enumerate(free):
            basis[column, j] = Fraction(1)
            for i, pivot in enumerate(pivots):
                basis[pivot, j] = -reduced[i][column]
        return basis

    def rank(self, matrix: NDArray[Any]) -> int:
        """Exact rank."""
        return len(self._echelon(matrix)[1]) if 0 not in matrix.shape else 0
