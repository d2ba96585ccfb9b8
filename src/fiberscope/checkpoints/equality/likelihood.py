"""The likelihood of a change of basis, where both models are rounded, without squared numbers.

For ``P' = M P`` and ``D' = M^-H D`` with rounding in all four factors, residuals are weighed by
what they should show: ``R = own(P') + M own(P) M^H`` for ``P' - M P``, and ``W = own(D) +
M^H own(D') M`` for ``D - M^H D'``. With ``R = L L^H`` and ``W = K K^H`` held fixed, the stationary
condition for ``M = L X K^H`` is the Sylvester equation

    X B B^H + A A^H X = (L^-1 P') B^H + A (K^-1 D)^H,   A = L^H D',   B = K^H P,

which the singular vectors of A and B make diagonal. Products such as ``B B^H`` would lose a channel
that is 1e-8 of the others in both factors; here the factors are made triangular (QR) and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
Reals = NDArray[np.float64]

ROUNDS = 4
"""Times that the weights are found anew."""
ZERO = 1e-12
"""Singular value, relative to the largest, that counts as zero."""
_EPSILON = float(np.finfo(np.float64).eps)


def adjoint(matrix: Numbers) -> Numbers:
    """Conjugate transpose of the last two axes; of real matrices not a copy."""
    across = np.swapaxes(matrix, -1, -2)
    return np.conj(across) if np.iscomplexobj(matrix) else across


def row_squares(array: Numbers) -> Reals:
    """Squared norms of the rows (last axis), real or complex."""
    return np.asarray(np.vecdot(array, array).real)


@dataclass(frozen=True)
class Factor:
    """One factor of a batch of circuits in both models, ``(batch, r, n)``, and its row noise.

    Attributes
    ----------
    first, second
        The factor of either model.
    first_noise, second_noise
        Mean variance of its rows, ``(batch, r)``.
    rest
        What a reduced factor has lost: products of the rows of the second model outside the row
        space of the first (or the other way round), ``(batch, r, r)``.
    length
        Numbers in a row before the reduction.
    """

    first: Numbers
    second: Numbers
    first_noise: Reals
    second_noise: Reals
    rest: Numbers | None = None
    length: int = 0

    def some(self, chosen: NDArray[np.int64]) -> Factor:
        """Some of the circuits."""
        return replace(
            self,
            first=self.first[chosen],
            second=self.second[chosen],
            first_noise=self.first_noise[chosen],
            second_noise=self.second_noise[chosen],
            rest=None if self.rest is None else self.rest[chosen],
        )

    def reduced(self, *, to_second: bool) -> Factor:
        """The same in coordinates of the row space of one model: at most r numbers in a row."""
        one, other = (self.second, self.first) if to_second else (self.first, self.second)
        basis, triangle = np.linalg.qr(adjoint(one))
        inside = other @ basis
        outside = other - inside @ adjoint(basis)
        pair = (inside, adjoint(triangle)) if to_second else (adjoint(triangle), inside)
        return replace(
            self,
            first=pair[0],
            second=pair[1],
            rest=outside @ adjoint(outside),
            length=one.shape[-1],
        )


@dataclass(frozen=True)
class Likelihood:
    """Circuits in reduced form: plain factors in the first's row space, dual in the second's."""

    plain: Factor
    dual: Factor

    @classmethod
    def of(cls, plain: Factor, dual: Factor) -> Likelihood:
        """Reduce both factors."""
        return cls(plain.reduced(to_second=False), dual.reduced(to_second=True))

    def some(self, chosen: NDArray[np.int64]) -> Likelihood:
        """Some of the circuits."""
        return Likelihood(self.plain.some(chosen), self.dual.some(chosen))

    # --- starts ----------------------------------------------------------------------------

    def by_plain(self) -> Numbers:
        """What the plain factors alone say, as least squares."""
        return self.plain.second @ _pseudo_inverse(self.plain.first)

    def by_dual(self) -> Numbers:
        """What the dual factors alone say."""
        return adjoint(self.dual.first @ _pseudo_inverse(self.dual.second))

    def by_both(self) -> Numbers:
        """Both, with one relative error for all rows."""
        size = row_squares(self.plain.second), row_squares(self.dual.first)
        roots = [np.sqrt(np.where(x > 0, x, 1.0))[..., None] * np.eye(x.shape[-1]) for x in size]
        return self._solved(self.plain.second, self.dual.first, roots[0], roots[1])

    # --- steps -----------------------------------------------------------------------------

    def improved(self, matrix: Numbers) -> Iterator[Numbers]:
        """Better and better fits, from any start."""
        for _ in range(ROUNDS):
            roots = self._roots(matrix)
            matrix = self._solved(self.plain.second, self.dual.first, *roots)
            left = self.plain.second - matrix @ self.plain.first
            right = self.dual.first - adjoint(matrix) @ self.dual.second
            matrix = matrix + self._solved(left, right, *roots)
            yield matrix

    def score(self, matrix: Numbers) -> Reals:
        """Squared residuals of all circuits in units of what they should be, ``(batch,)``."""
        roots = self._roots(matrix)
        left = self.plain.second - matrix @ self.plain.first
        right = self.dual.first - adjoint(matrix) @ self.dual.second
        parts = [
            _weighed_squares(root, residual, factor.rest)
            for root, residual, factor in zip(
                roots, (left, right), (self.plain, self.dual), strict=True
            )
        ]
        # A start from one factor fits that one too well; the other must look like rounding too.
        share = self.dual.length / (self.plain.length + self.dual.length)
        total = np.maximum(parts[0] + parts[1], parts[0] / (1 - share))
        total = np.maximum(total, parts[1] / share)
        return np.asarray(np.where(np.isfinite(total), total, np.inf))

    def completed(
        self, matrix: Numbers, numbers: NDArray[np.int64], small: float = ZERO
    ) -> Numbers:
        """Make fits invertible on directions ``v`` along which the first plain factor is zero.

        There ``x = M v`` is any solution of ``D'^H x = D^H v``: the least-squares one, and what
        the second dual factor does not see, if its rank is smaller too. With a larger ``small``
        the dual factors also decide where the plain one is that small. ``numbers`` are the circuits
        that are looked at.
        """
        matrix = matrix.copy()
        for number in numbers:
            left, sizes, _ = np.linalg.svd(self.plain.first[number])
            free = left[:, int((sizes > small * sizes[:1]).sum()) :]
            if not free.shape[-1]:
                continue
            rest = matrix[number] - (matrix[number] @ free) @ adjoint(free)
            kept = np.linalg.svd(rest, compute_uv=False)
            kept = kept[kept > 1e-13 * kept[:1]]
            typical = float(np.sqrt(kept[0] * kept[-1])) if kept.size else 1.0
            left, sizes, right = np.linalg.svd(self.dual.second[number])
            # What rounding alone leaves of a factor without full rank.
            noise = 3 * float(np.sqrt(self.dual.length * self.dual.second_noise[number].max()))
            rank = int((sizes > np.maximum(noise, ZERO * sizes[:1])).sum())
            seen = right[:rank] @ (adjoint(self.dual.first[number]) @ free)
            images = left[:, :rank] @ (seen / sizes[:rank, None])
            unseen = left[:, rank:][:, : free.shape[-1]]
            images[:, : unseen.shape[-1]] += typical * unseen
            matrix[number] = rest + images @ adjoint(free)
        return matrix

    # --- algebra ---------------------------------------------------------------------------

    def _roots(self, matrix: Numbers) -> tuple[Numbers, Numbers]:
        """L and K, lower triangular: roots of what residuals should show under a fit."""
        plain = _root(self.plain.second_noise, matrix, self.plain.first_noise)
        dual = _root(self.dual.first_noise, adjoint(matrix), self.dual.second_noise)
        return plain, dual

    def _solved(
        self, left: Numbers, right: Numbers, lower: Numbers, lower_dual: Numbers
    ) -> Numbers:
        """The change that explains ``left`` by the plain and ``right`` by the dual factor best."""
        rows, rows_size, rows_right = np.linalg.svd(adjoint(lower) @ self.dual.second)
        columns, columns_size, columns_right = np.linalg.svd(adjoint(lower_dual) @ self.plain.first)
        inside = adjoint(rows) @ np.linalg.solve(lower, left) @ adjoint(columns_right)
        across = rows_right @ adjoint(np.linalg.solve(lower_dual, right)) @ columns
        a, b = (_padded(x, left.shape[-2]) for x in (rows_size, columns_size))
        total = np.zeros_like(left, shape=(*left.shape[:-2], left.shape[-2], left.shape[-2]))
        total[..., : inside.shape[-1]] += inside * columns_size[..., None, :]
        total[..., : across.shape[-2], :] += rows_size[..., :, None] * across
        # Below the rounding of either the numbers say nothing.
        seen = (a > _EPSILON * a[..., :1])[..., :, None] | (b > _EPSILON * b[..., :1])[..., None, :]
        under = np.square(a)[..., :, None] + np.square(b)[..., None, :]
        seen &= under > 0
        found = np.where(seen, total / np.where(seen, under, 1.0), 0.0)
        return np.asarray(lower @ rows @ found @ adjoint(columns) @ adjoint(lower_dual))


def _root(own: Reals, matrix: Numbers, carried: Reals) -> Numbers:
    """Lower triangular L with ``L L^H = diag(own) + matrix diag(carried) matrix^H``."""
    eye = np.eye(own.shape[-1], dtype=matrix.dtype)
    # What is less than the rounding of the root itself would leave it singular.
    spread = (np.square(np.abs(matrix)) @ carried[..., None]).max(axis=-2)
    own = np.maximum(own, (4 * _EPSILON) ** 2 * spread)
    wide = [np.sqrt(own)[..., None] * eye, matrix * np.sqrt(carried)[..., None, :]]
    upper = np.linalg.qr(adjoint(np.concatenate(wide, axis=-1)), mode="r")
    return adjoint(np.asarray(upper))


def _weighed_squares(root: Numbers, residual: Numbers, rest: Numbers | None) -> Reals:
    """Squared norm of ``root^-1 residual``, and of what the reduction left out."""
    total = row_squares(np.linalg.solve(root, residual)).sum(axis=-1)
    if rest is not None:
        half = adjoint(np.linalg.solve(root, rest))
        total = total + np.trace(np.linalg.solve(root, half), axis1=-2, axis2=-1).real
    return np.asarray(total)


def _padded(sizes: Reals, count: int) -> Reals:
    """Singular values of a factor with fewer columns than rows: the others are zero."""
    short = count - sizes.shape[-1]
    return np.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, short)]) if short else sizes


def _pseudo_inverse(factor: Numbers) -> Numbers:
    return np.linalg.pinv(factor, rcond=ZERO)
