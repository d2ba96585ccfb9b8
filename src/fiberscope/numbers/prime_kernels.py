"""Arithmetic modulo a prime on plain arrays, in the fastest form that the prime allows.

Primes below 2^23 fit float64: residues lie around zero, products of two stay below 2^45, and a
matrix product needs one BLAS call and one reduction. Larger ones need int64 and split products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.prime_field import is_prime, matmul, power, rank, residues

NARROW_RANGE = (1 << 22, 1 << 23)
"""Range of the random primes of the fast form."""

_BLOCK = 32
"""Columns that elimination treats at once, so that most of its work is BLAS products."""

_OWN_ELIMINATION = 200
"""From this size on elimination in float64 beats handing the entries to python-flint."""

_CHUNK = 256
"""Inner size up to which sums of products of narrow residues stay below 2^53."""


class PrimeKernel(ABC):
    """Arithmetic on arrays of residues; every result is reduced."""

    prime: int

    @abstractmethod
    def convert(self, values: Any) -> NDArray[Any]:
        """Residues of integers and fractions."""

    @abstractmethod
    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring sums of a few products of residues back to residues."""

    @abstractmethod
    def matmul(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        """Matrix product."""

    def rank(self, matrix: NDArray[Any]) -> int:
        """Exact rank of a matrix of residues."""
        return rank(self.integers(matrix), self.prime)

    @abstractmethod
    def integers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The residues as int64 in ``[0, prime)``."""

    def random(
        self, rng: np.random.Generator, shape: int | tuple[int, ...], low: int = 0
    ) -> NDArray[Any]:
        """Residues drawn uniformly from ``low, ..., prime - 1``."""
        return self.convert(rng.integers(low, self.prime, shape))

    def power(self, values: NDArray[Any], exponent: int) -> NDArray[Any]:
        """``values ** exponent`` for ``exponent >= 1``, by repeated squaring."""
        result: NDArray[Any] | None = None
        while exponent:
            if exponent & 1:
                result = values if result is None else self.reduce(result * values)
            exponent >>= 1
            if exponent:
                values = self.reduce(values * values)
        assert result is not None
        return result


class WideKernel(PrimeKernel):
    """int64, primes below 2^31."""

    def __init__(self, prime: int) -> None:
        self.prime = prime

    def convert(self, values: Any) -> NDArray[np.int64]:
        """Residues in ``[0, prime)``."""
        return residues(values, self.prime)

    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Remainder."""
        return values % self.prime

    def matmul(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        """Exact product by splitting."""
        return matmul(left, right, self.prime)

    def integers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The array itself."""
        return values

    def power(self, values: NDArray[Any], exponent: int) -> NDArray[Any]:
        """``values ** exponent``."""
        return power(values, exponent, self.prime)


class NarrowKernel(PrimeKernel):
    """float64, primes below 2^23: residues between about ``-prime/2`` and ``prime/2``."""

    def __init__(self, prime: int) -> None:
        self.prime, self.inverse = prime, 1.0 / prime

    def convert(self, values: Any) -> NDArray[np.float64]:
        """Residues around zero."""
        return self.reduce(residues(values, self.prime).astype(np.float64))

    def reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """Subtract the nearest multiple of the prime; exact below 2^53."""
        quotient = values * self.inverse
        np.rint(quotient, out=quotient)
        quotient *= self.prime
        return np.subtract(values, quotient, out=quotient)

    def matmul(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        """BLAS product, in chunks of the inner axis that keep it exact."""
        inner = left.shape[-1]
        if inner <= _CHUNK:
            return self.reduce(left @ right)
        total = self.reduce(left[..., :_CHUNK] @ right[..., :_CHUNK, :])
        for start in range(_CHUNK, inner, _CHUNK):
            stop = start + _CHUNK
            total += self.reduce(left[..., start:stop] @ right[..., start:stop, :])
        return self.reduce(total)

    def integers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Add the prime where a residue is negative."""
        found = values.astype(np.int64)
        return np.where(found < 0, found + self.prime, found)

    def rank(self, matrix: NDArray[Any]) -> int:
        """Exact rank: blocked Gaussian elimination for large matrices, python-flint for others."""
        if min(matrix.shape) < _OWN_ELIMINATION:
            return super().rank(matrix)
        work = np.array(matrix, dtype=np.float64)
        found = 0
        for start in range(0, work.shape[1], _BLOCK):
            stop = min(start + _BLOCK, work.shape[1])
            if found == len(work):
                break
            order, factors, count = self._panel(work[found:, start:stop])
            if count and stop < work.shape[1]:
                rest = work[found:, stop:][order]
                for row in range(1, count):
                    rest[row] = self.reduce(rest[row] - factors[:row, row] @ rest[:row])
                work[found + count :, stop:] = self.reduce(
                    rest[count:] - factors[:count, count:].T @ rest[:count]
                )
            found += count
        return found

    def _panel(
        self, panel: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """Eliminate a few columns: row order, factors (one row for each pivot), pivots found."""
        columns = np.ascontiguousarray(panel.T)
        factors = np.zeros_like(columns)
        order = np.arange(columns.shape[1])
        count = 0
        for position in range(len(columns)):
            column = columns[position]
            for row in range(1, count):
                column[row : row + 1] = self.reduce(
                    column[row : row + 1] - factors[:row, row] @ column[:row]
                )
            if count:
                column[count:] = self.reduce(
                    column[count:] - column[:count] @ factors[:count, count:]
                )
            below = np.flatnonzero(column[count:])
            if not len(below):
                continue
            pivot = count + int(below[0])
            for array in (columns, factors, order):
                array[..., [count, pivot]] = array[..., [pivot, count]]
            inverse = pow(int(column[count]), -1, self.prime)
            factors[count, count + 1 :] = self.reduce(column[count + 1 :] * self.convert([inverse]))
            count += 1
            if count == columns.shape[1]:
                break
        return order, factors, count


def kernel_of(prime: int) -> PrimeKernel:
    """The fastest kernel for a prime."""
    return NarrowKernel(prime) if prime < NARROW_RANGE[1] else WideKernel(prime)


def random_narrow_prime(rng: np.random.Generator) -> int:
    """A prime drawn uniformly from :data:`NARROW_RANGE` (by rejection)."""
    while True:
        candidate = int(rng.integers(NARROW_RANGE[0] // 2, NARROW_RANGE[1] // 2)) * 2 + 1
        if is_prime(candidate):
            return candidate
