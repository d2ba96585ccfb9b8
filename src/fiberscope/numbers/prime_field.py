"""Prime fields with word-size primes: vectorised arithmetic, exact ranks, random primes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.numbers.balls import load_flint
from fiberscope.numbers.system import Array, NumberSystem, UnsupportedError

PRIME_RANGE = (1 << 30, 1 << 31)
"""Random primes are drawn uniformly from this half-open range."""

PRIMES_IN_RANGE = 50_697_537
"""Number of primes in :data:`PRIME_RANGE`: pi(2^31) - pi(2^30) = 105097565 - 54400028."""

_SMALL_WORK = 1 << 13
"""Below this many multiplications an int64 matrix product beats the set-up of float64 ones."""


class PrimeArray:
    """Array of residues modulo ``modulus``: int64 values in ``[0, modulus)``.

    Carries ``+ - * / @ **``, indexing, ``sum``, ``reshape``, ``transpose`` and ``swapaxes`` with
    NumPy's meaning; other operands are converted exactly (integers, fractions, floats).
    """

    __slots__ = ("modulus", "values")
    # NumPy must leave mixed operations to this class.
    __array_priority__ = 500.0
    __array_ufunc__ = None

    def __init__(self, values: NDArray[np.int64], modulus: int) -> None:
        self.values, self.modulus = values, modulus

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.values.size

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"PrimeArray(shape {self.shape}, modulus {self.modulus})"

    def _of(self, other: Any) -> NDArray[np.int64]:
        if isinstance(other, PrimeArray):
            if other.modulus != self.modulus:
                raise UnsupportedError(
                    f"residues modulo {self.modulus} and modulo {other.modulus} do not mix"
                )
            return other.values
        return residues(other, self.modulus)

    def _new(self, values: NDArray[np.int64]) -> PrimeArray:
        return PrimeArray(values, self.modulus)

    def __neg__(self) -> PrimeArray:
        return self._new(-self.values % self.modulus)

    def __add__(self, other: Any) -> PrimeArray:
        if _foreign(other):
            return NotImplemented
        return self._new((self.values + self._of(other)) % self.modulus)

    __radd__ = __add__

    def __sub__(self, other: Any) -> PrimeArray:
        if _foreign(other):
            return NotImplemented
        return self._new((self.values - self._of(other)) % self.modulus)

    def __rsub__(self, other: Any) -> PrimeArray:
        return self._new((self._of(other) - self.values) % self.modulus)

    def __mul__(self, other: Any) -> PrimeArray:
        if _foreign(other):
            return NotImplemented
        return self._new(self.values * self._of(other) % self.modulus)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> PrimeArray:
        if _foreign(other):
            return NotImplemented
        return self._new(self.values * inverse(self._of(other), self.modulus) % self.modulus)

    def __rtruediv__(self, other: Any) -> PrimeArray:
        return self._new(self._of(other) * inverse(self.values, self.modulus) % self.modulus)

    def __pow__(self, exponent: int) -> PrimeArray:
        if exponent < 0:
            return self._new(power(inverse(self.values, self.modulus), -exponent, self.modulus))
        return self._new(power(self.values, exponent, self.modulus))

    def __matmul__(self, other: Any) -> PrimeArray:
        if _foreign(other):
            return NotImplemented
        return self._new(matmul(self.values, self._of(other), self.modulus))

    def __rmatmul__(self, other: Any) -> PrimeArray:
        return self._new(matmul(self._of(other), self.values, self.modulus))

    def __getitem__(self, key: Any) -> PrimeArray:
        return self._new(np.asarray(self.values[key]))

    def sum(self, axis: Any = None, keepdims: bool = False) -> PrimeArray:
        """Sum over axes (fewer than 2^32 terms each)."""
        return self._new(np.asarray(self.values.sum(axis=axis, keepdims=keepdims)) % self.modulus)

    def reshape(self, *shape: Any) -> PrimeArray:
        """Reshape."""
        return self._new(self.values.reshape(*shape))

    def transpose(self, *axes: Any) -> PrimeArray:
        """Permute the axes."""
        return self._new(self.values.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> PrimeArray:
        """Swap two axes."""
        return self._new(self.values.swapaxes(first, second))


def _foreign(other: Any) -> bool:
    """Tell whether another wrapper (dual numbers) should take over the operation."""
    return hasattr(other, "tangent")


class PrimeField(NumberSystem):
    """The integers modulo a prime below 2^31.

    Parameters
    ----------
    prime
        A prime number; :meth:`random` draws one.

    Raises
    ------
    InputError
        If ``prime`` is not a prime or not below 2^31.
    """

    exact = True
    rigorous = True

    def __init__(self, prime: int) -> None:
        if prime >= PRIME_RANGE[1]:
            raise InputError(
                f"the prime {prime} is not below 2^31: give a smaller one, or none to draw some"
            )
        if not is_prime(prime):
            raise InputError(f"{prime} is not a prime number: give a prime, or none to draw some")
        self.prime = prime
        self.name = "prime field"

    def __repr__(self) -> str:
        return f"PrimeField({self.prime})"

    @classmethod
    def random(cls, rng: np.random.Generator) -> PrimeField:
        """Draw a field whose prime is uniform over :data:`PRIME_RANGE`."""
        return cls(random_prime(rng))

    def array(self, values: Any) -> PrimeArray:
        """Residues of integers, fractions and floats (each float is a fraction).

        Raises
        ------
        ZeroDivisionError
            If a denominator is divisible by the prime.
        """
        if isinstance(values, PrimeArray):
            return values
        return PrimeArray(residues(values, self.prime), self.prime)

    def zeros(self, shape: tuple[int, ...]) -> PrimeArray:
        """Array of zeros."""
        return PrimeArray(np.zeros(shape, dtype=np.int64), self.prime)

    def random_array(self, shape: tuple[int, ...], rng: np.random.Generator) -> PrimeArray:
        """Uniformly random residues."""
        return PrimeArray(rng.integers(0, self.prime, shape), self.prime)

    def exp(self, x: Array) -> Array:
        """Raise: a prime field has no exponential."""
        raise UnsupportedError(f"{self.name} has no exponential: use float64 or balls")

    def sqrt(self, x: Array) -> Array:
        """Raise: half of a prime field has no square root."""
        raise UnsupportedError(f"{self.name} has no square root: use float64 or balls")

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """Raise: a residue stands for infinitely many integers."""
        raise UnsupportedError(f"{self.name} has no float64 values: residues have no size")

    def rank(self, matrix: PrimeArray) -> int:
        """Exact rank of a matrix of residues."""
        return rank(matrix.values, self.prime)


def residues(values: Any, prime: int) -> NDArray[np.int64]:
    """Residues in ``[0, prime)`` of integers, fractions and floats, entry by entry."""
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return np.asarray(array % prime, dtype=np.int64)
    flat = [_residue(entry, prime) for entry in array.reshape(-1).tolist()]
    return np.array(flat, dtype=np.int64).reshape(array.shape)


def _residue(entry: Any, prime: int) -> int:
    if isinstance(entry, int):
        return entry % prime
    fraction = Fraction(entry)
    if fraction.denominator % prime == 0:
        raise ZeroDivisionError(f"the denominator of {fraction} is zero modulo {prime}")
    return fraction.numerator * pow(fraction.denominator, -1, prime) % prime


def power(values: NDArray[np.int64], exponent: int, prime: int) -> NDArray[np.int64]:
    """``values ** exponent`` modulo ``prime`` for ``exponent >= 0``, by repeated squaring."""
    result: NDArray[np.int64] | None = None
    square = values
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square % prime
        exponent >>= 1
        if exponent:
            square = square * square % prime
    return np.ones_like(values) if result is None else result


def inverse(values: NDArray[np.int64], prime: int) -> NDArray[np.int64]:
    """Reciprocals modulo ``prime``; ``ZeroDivisionError`` if one is zero."""
    if not np.all(values):
        raise ZeroDivisionError(f"division by zero modulo {prime}")
    return power(values, prime - 2, prime)


def matmul(left: NDArray[np.int64], right: NDArray[np.int64], prime: int) -> NDArray[np.int64]:
    """Matrix product modulo ``prime`` of arrays of residues (NumPy's rules for shapes)."""
    inner = left.shape[-1]
    if inner == 0:
        return left @ right
    if right.size <= _SMALL_WORK and left.size * right.size <= _SMALL_WORK * inner:
        # 15- and 16-bit halves of the left factor: every sum stays below 2^63 for inner < 2^15.
        high, low = left >> 16, left & 0xFFFF
        if inner < 1 << 15:
            return (((high @ right) % prime << 16) + (low @ right)) % prime
    half = prime >> 1
    a = np.where(left > half, left - prime, left).astype(np.float64)
    b = np.where(right > half, right - prime, right).astype(np.float64)
    # Pieces of the left factor with `bits` bits: a piece times b is below 2^(bits - 1 + 30), and
    # sums of `chunk` such products stay below 2^53, so float64 is exact.
    bits, chunk = (15, 256) if inner <= 256 else (11, 4096)
    total: NDArray[np.int64] | None = None
    for start in range(0, inner, chunk):
        part = _exact_product(
            a[..., start : start + chunk],
            b[start : start + chunk] if b.ndim == 1 else b[..., start : start + chunk, :],
            bits,
            prime,
        )
        total = part if total is None else (total + part) % prime
    assert total is not None
    return total


def _exact_product(
    a: NDArray[np.float64], b: NDArray[np.float64], bits: int, prime: int
) -> NDArray[np.int64]:
    base = float(1 << bits)
    pieces = []
    rest = a
    for _ in range(0, 30 - bits, bits):
        upper = np.rint(rest / base)
        pieces.append(rest - upper * base)
        rest = upper
    pieces.append(rest)
    total: NDArray[np.int64] | None = None
    for piece in reversed(pieces):
        product = (piece @ b).astype(np.int64)
        # |total| < 2^31 and bits <= 15, so the shift stays far below 2^63.
        total = product % prime if total is None else ((total << bits) + product) % prime
    assert total is not None
    return total


def rank(matrix: NDArray[np.int64], prime: int) -> int:
    """Exact rank modulo ``prime`` of a matrix of residues, by python-flint.

    Raises
    ------
    InputError
        If python-flint (the extra ``exact``) is not installed.
    """
    flint = load_flint()
    rows, columns = matrix.shape
    if not rows or not columns:
        return 0
    # Through integers: python-flint converts a list of them faster than a list of residues.
    integers = flint.fmpz_mat(rows, columns, matrix.reshape(-1).tolist())
    return int(flint.nmod_mat(integers, prime).rank())


def is_prime(number: int) -> bool:
    """Tell whether ``number`` is prime (Miller-Rabin; the bases decide below 3.2 * 10^9)."""
    if number < 2:
        return False
    for small in (2, 3, 5, 7):
        if number % small == 0:
            return number == small
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        x = pow(base, odd, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def random_prime(rng: np.random.Generator) -> int:
    """A prime drawn uniformly from :data:`PRIME_RANGE` (by rejection)."""
    while True:
        candidate = int(rng.integers(PRIME_RANGE[0] // 2, PRIME_RANGE[1] // 2)) * 2 + 1
        if is_prime(candidate):
            return candidate
