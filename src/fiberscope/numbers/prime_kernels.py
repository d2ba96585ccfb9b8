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

_OWN_ELIMINATION = 120
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
            order, factors, solved = self._panel(work[found:, start:stop])
            count = len(solved)
            if count and stop < work.shape[1]:
                rest = work[found:, stop:][order]
                heads = self.reduce(solved @ rest[:count])
                work[found + count :, stop:] = self.reduce(rest[count:] - factors.T @ heads)
            found += count
        return found

    def _panel(
        self, panel: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Eliminate a few columns.

        Returns the order of the rows (pivots first), the factors of the rows below (one row for
        each pivot), and the inverse of the triangle of the pivot rows' own factors.
        """
        columns = np.ascontiguousarray(panel.T)
        width, height = columns.shape
        factors, solved = np.zeros((width, height)), np.eye(width)
        order = np.arange(height)
        count = 0
        for column in columns:
            if count == height:
                break
            if count:
                heads = self.reduce(solved[:count, :count] @ column[:count])
                column[count:] = self.reduce(column[count:] - heads @ factors[:count, count:])
            below = np.flatnonzero(column[count:])
            if not len(below):
                continue
            pivot = count + int(below[0])
            if pivot != count:
                for array in (columns, factors, order):
                    array[..., [count, pivot]] = array[..., [pivot, count]]
            if count:
                solved[count, :count] = -self.reduce(
                    factors[:count, count] @ solved[:count, :count]
                )
            inverse = pow(int(column[count]), -1, self.prime)
            scale = inverse - self.prime if inverse > self.prime // 2 else inverse
            factors[count, count + 1 :] = self.reduce(column[count + 1 :] * float(scale))
            count += 1
        return order, factors[:count, count:], solved[:count, :count]


def kernel_of(prime: int) -> PrimeKernel:
    """The fastest kernel for a prime."""
    return NarrowKernel(prime) if prime < NARROW_RANGE[1] else WideKernel(prime)


def random_narrow_prime(rng: np.random.Generator) -> int:
    """A prime drawn uniformly from :data:`NARROW_RANGE` (by rejection)."""
    while True:
        candidate = int(rng.integers(NARROW_RANGE[0] // 2, NARROW_RANGE[1] // 2)) * 2 + 1
        if is_prime(candidate):
            return candidate
