"""Smith factors of a matrix of power series, over a prime field or the rational numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.balls import load_flint
from fiberscope.numbers.fields import ResidueField


@dataclass(frozen=True)
class SmithOrders:
    """Smith factors ``t^order`` of a matrix of power series over a field.

    Attributes
    ----------
    multiplicities
        Order -> number of factors, in increasing order.
    unresolved
        Columns that vanish through the truncation: exact zeros, or orders of ``precision`` and
        more.
    precision
        Orders below this one are all listed.
    """

    multiplicities: Mapping[int, int]
    unresolved: int
    precision: int

    @property
    def rank(self) -> int:
        """Number of listed factors."""
        return sum(self.multiplicities.values())


def smith_orders(coefficients: NDArray[np.int64], field: ResidueField) -> SmithOrders:
    """Smith factors of ``sum_k coefficients[k] t^k`` over ``F_p[[t]]``, through the truncation.

    The power of ``t`` common to all entries is divided out; a block of the leading matrix of full
    rank is inverted as a power series and eliminated; its Schur complement has a higher order and
    is treated in the same way. Each block of rank ``r`` met after dividing by ``t^k`` in total is
    ``r`` factors ``t^k``.

    Parameters
    ----------
    coefficients
        Residues, shape ``(length, rows, columns)``.
    field
        The prime field.
    """
    work = np.asarray(coefficients, dtype=np.int64) % field.modulus
    length, _, columns = work.shape
    orders: dict[int, int] = {}
    order = 0
    while work.shape[1] and work.shape[2]:
        present = np.flatnonzero(work.reshape(work.shape[0], -1).any(axis=1))
        if not present.size:
            break
        order += int(present[0])
        work = work[int(present[0]) :]
        picked_columns = field.pivot_columns(work[0])
        picked_rows = field.pivot_columns(work[0][:, picked_columns].T)
        orders[order] = orders.get(order, 0) + len(picked_columns)
        other_rows = np.setdiff1d(np.arange(work.shape[1]), picked_rows)
        other_columns = np.setdiff1d(np.arange(work.shape[2]), picked_columns)
        block = work[:, picked_rows][:, :, picked_columns]
        right = work[:, picked_rows][:, :, other_columns]
        below = work[:, other_rows][:, :, picked_columns]
        rest = work[:, other_rows][:, :, other_columns]
        solved = _solve(block, right, field)
        work = (rest - _product(below, solved, field)) % field.modulus
    found = sum(orders.values())
    return SmithOrders(dict(sorted(orders.items())), columns - found, length)


def rational_smith_orders(coefficients: NDArray[Any]) -> SmithOrders:
    """Smith factors of ``sum_k coefficients[k] t^k`` over ``Q[[t]]``, through the truncation.

    The same elimination as :func:`smith_orders` in exact rational numbers, whose numerators grow:
    for small matrices. Modulo a prime that divides no denominator the ``k`` smallest orders of the
    reduced matrix add up to at least as much, for every ``k`` (they are the order of its ``k x k``
    minors); they differ only for finitely many primes.

    Parameters
    ----------
    coefficients
        Integers, floats (taken as the dyadic numbers they are) or fractions, shape
        ``(length, rows, columns)``.

    Raises
    ------
    InputError
        Without python-flint.
    """
    flint = load_flint()
    source = np.asarray(coefficients)
    length, rows, columns = source.shape
    work = [
        flint.fmpq_mat(rows, columns, [_rational(x, flint) for x in part.reshape(-1).tolist()])
        for part in source
    ]
    orders: dict[int, int] = {}
    order = 0
    while work and work[0].nrows() and work[0].ncols():
        present = next((k for k, part in enumerate(work) if part.rank()), None)
        if present is None:
            break
        order += present
        work = work[present:]
        picked_columns = _pivots(work[0])
        picked_rows = _pivots(_part(work[0], range(work[0].nrows()), picked_columns).transpose())
        orders[order] = orders.get(order, 0) + len(picked_columns)
        other_rows = [i for i in range(work[0].nrows()) if i not in picked_rows]
        other_columns = [j for j in range(work[0].ncols()) if j not in picked_columns]
        if not other_rows or not other_columns:
            break
        block, right, below, rest = (
            [_part(part, some_rows, some_columns) for part in work]
            for some_rows in (picked_rows, other_rows)
            for some_columns in (picked_columns, other_columns)
        )
        inverse = block[0].inv()
        solved: list[Any] = []
        for k, part in enumerate(right):
            for i in range(1, k + 1):
                part = part - block[i] * solved[k - i]
            solved.append(inverse * part)
        work = []
        for k, part in enumerate(rest):
            for i in range(k + 1):
                part = part - below[i] * solved[k - i]
            work.append(part)
    found = sum(orders.values())
    return SmithOrders(dict(sorted(orders.items())), columns - found, length)


def _rational(value: Any, flint: Any) -> Any:
    exact = Fraction(value)
    return flint.fmpq(exact.numerator, exact.denominator)


def _pivots(matrix: Any) -> list[int]:
    """First independent columns of an ``fmpq_mat``."""
    reduced, rank = matrix.rref()
    columns = range(matrix.ncols())
    return [next(j for j in columns if reduced[i, j] != 0) for i in range(rank)]


def _part(matrix: Any, rows: Iterable[int], columns: Iterable[int]) -> Any:
    kept = list(columns)
    chosen = [[matrix[i, j] for j in kept] for i in rows]
    return type(matrix)(len(chosen), len(kept), [x for row in chosen for x in row])


def _product(a: NDArray[np.int64], b: NDArray[np.int64], field: ResidueField) -> NDArray[np.int64]:
    """Product of matrices of power series, truncated."""
    length = a.shape[0]
    result = np.zeros((length, a.shape[1], b.shape[2]), dtype=np.int64)
    for i in range(length):
        if a[i].any():
            result[i:] = (result[i:] + _matmul(a[i], b[: length - i], field)) % field.modulus
    return result


def _matmul(a: NDArray[np.int64], b: NDArray[np.int64], field: ResidueField) -> NDArray[np.int64]:
    """Exact product of residues below 2^25, by float64 products of halves below 2^53."""
    high, low = a >> 13, a & 0x1FFF
    right = b.astype(np.float64)
    top = (high.astype(np.float64) @ right).astype(np.int64) % field.modulus
    bottom = (low.astype(np.float64) @ right).astype(np.int64)
    return ((top << 13) + bottom) % field.modulus


def _solve(
    block: NDArray[np.int64], right: NDArray[np.int64], field: ResidueField
) -> NDArray[np.int64]:
    """``block^-1 right`` for an invertible leading coefficient."""
    length, size = block.shape[0], block.shape[1]
    identity = np.eye(size, dtype=np.int64)
    reduced, _ = field.echelon(np.concatenate([block[0], identity], axis=1))
    inverse = reduced[:, size:]
    result = np.zeros_like(right)
    powers = [k for k in range(1, length) if block[k].any()]
    for k in range(length):
        total = right[k].copy()
        for i in powers:
            if i <= k:
                total = (total - _matmul(block[i], result[k - i], field)) % field.modulus
        result[k] = _matmul(inverse, total, field)
    return result
