"""Changes of basis between factor pairs, by weighted maximum likelihood.

For factor pairs with one product, ``P' = M P`` and ``D' = M^-H D`` (so ``D = M^H D'``), with
rounding in ``P'`` and ``D'``: the stationary condition in M is the Sylvester equation

    M (P P^H W) + (R D' D'^H) M = P' P^H W + R D' D^H,   R = row noise of P',  W = M^H C M,

with C the row noise of D'. It is solved by two eigendecompositions, batched over circuits, W is
updated, and the solution is refined on its residuals. An unweighted fit is off by orders of
magnitude when M is ill-conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.once import once

ROUNDS = 4
REFINEMENTS = 2
ZERO = 1e-12
"""Singular value, relative to the largest, that counts as zero."""
SMALL = 1e-5
"""Singular value, relative to the largest, below which the other factor says more."""
ALIKE = 1.2
"""Variance of a fit without weights, relative to one with, up to which they are not worth it."""
GOOD_ENOUGH = 1.2
"""Weighted squared residual per degree of freedom at which the iteration stops."""


@dataclass
class BasisChange:
    """Fitted matrices ``M`` and ``N = M^-H``, both of shape ``(batch, r, r)``."""

    matrix: NDArray[Any]
    dual: NDArray[Any]
    apart: tuple[NDArray[Any], NDArray[Any]] | None = None
    """Residuals of both factors, where they are at hand."""

    @property
    def condition(self) -> NDArray[np.float64]:
        """Condition number of every matrix."""
        values = np.linalg.svd(self.matrix, compute_uv=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = values[..., 0] / values[..., -1]
        return np.where(np.isfinite(ratio), ratio, np.inf)

    @property
    def condition_bound(self) -> NDArray[np.float64]:
        """At least the condition number, and at most r times that."""
        norms = [np.sqrt((np.abs(x) ** 2).sum(axis=(-1, -2))) for x in (self.matrix, self.dual)]
        return np.asarray(norms[0] * norms[1])


def adjoint(matrix: NDArray[Any]) -> NDArray[Any]:
    """Conjugate transpose of the last two axes; of real matrices not a copy."""
    across = np.swapaxes(matrix, -1, -2)
    return np.conj(across) if np.iscomplexobj(matrix) else across


def fit_basis(
    plain: NDArray[Any],
    plain_moved: NDArray[Any],
    dual: NDArray[Any],
    dual_moved: NDArray[Any],
    plain_noise: NDArray[np.float64],
    dual_noise: NDArray[np.float64],
) -> BasisChange:
    """Fit ``plain_moved = M plain`` and ``dual_moved = M^-H dual``.

    Parameters
    ----------
    plain, plain_moved
        Shape ``(batch, r, n)``, real or complex.
    dual, dual_moved
        Shape ``(batch, r, k)``.
    plain_noise, dual_noise
        Mean variance of every row of the moved factors, shape ``(batch, r)``.
    """
    r = plain.shape[-2]
    if r == 1:
        return _fit_scalar(plain, plain_moved, dual, dual_moved, plain_noise, dual_noise)
    noise = np.maximum(plain_noise, _smallest(plain_moved))
    back = np.maximum(dual_noise, _smallest(dual_moved))
    whole = _Problem(plain, plain_moved, dual, dual_moved, noise, back)
    enough = GOOD_ENOUGH * max(1, r * (plain.shape[-1] + dual.shape[-1] - r))
    starts: tuple[Callable[[_Problem], NDArray[Any]], ...] = (
        lambda p: _carried(p.plain, p.plain_moved, p.gram, p.cross),
        lambda p: adjoint(_carried(p.dual_moved, p.dual, p.gram_moved, adjoint(p.cross_dual))),
        lambda p: _solve(
            p.gram, p.gram_moved, p.cross + p.cross_dual, _eye(p.gram), np.ones_like(p.noise)
        ),
        lambda p: p.completed(_carried(p.plain, p.plain_moved, p.gram, p.cross), SMALL),
    )
    kind = np.result_type(plain, plain_moved)
    best = np.broadcast_to(np.eye(r, dtype=kind), (len(plain), r, r)).copy()
    best_score = np.full(len(plain), np.inf)
    for start in starts:
        # Well-conditioned circuits need no iteration: what already looks like rounding is done.
        open_ = np.flatnonzero(best_score > enough)
        if not open_.size:
            break
        problem = whole if open_.size == len(plain) else whole.some(open_)
        for matrix, score in problem.climb(start(problem), enough):
            better = score < best_score[open_]
            last = problem.last
            if (
                problem is whole
                and last is not None
                and (score <= enough).all()
                and not _doubtful(matrix, adjoint(last.dual)).any()
            ):
                return last  # the usual case: the first start explains all, nothing is singular
            best[open_[better]] = matrix[better]
            best_score[open_[better]] = score[better]
    best = _completed(best)
    return BasisChange(best, adjoint(_inverse(best)))


@dataclass
class _Problem:
    """Circuits whose fit is still open."""

    plain: NDArray[Any]
    plain_moved: NDArray[Any]
    dual: NDArray[Any]
    dual_moved: NDArray[Any]
    noise: NDArray[np.float64]
    back: NDArray[np.float64]
    last: BasisChange | None = None
    """What was scored last."""

    @once
    def gram(self) -> NDArray[Any]:
        return np.asarray(self.plain @ adjoint(self.plain))

    @once
    def gram_moved(self) -> NDArray[Any]:
        return np.asarray(self.dual_moved @ adjoint(self.dual_moved))

    @once
    def cross(self) -> NDArray[Any]:
        return np.asarray(self.plain_moved @ adjoint(self.plain))

    @once
    def cross_dual(self) -> NDArray[Any]:
        return np.asarray(self.dual_moved @ adjoint(self.dual))

    def some(self, chosen: NDArray[np.int64]) -> _Problem:
        """Some of the circuits."""
        return _Problem(
            self.plain[chosen],
            self.plain_moved[chosen],
            self.dual[chosen],
            self.dual_moved[chosen],
            self.noise[chosen],
            self.back[chosen],
        )

    def climb(
        self, matrix: NDArray[Any], enough: float
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
        """The start and its improvements, each with its weighted squared residual."""
        matrix = self.completed(matrix)
        score = self.score(matrix)
        yield matrix, score
        for _ in range(ROUNDS):
            if (score <= enough).all():
                return
            weight = adjoint(matrix) @ (self.back[..., None] * matrix)
            matrix = self.solve(self.cross, self.cross_dual, weight)
            for _ in range(REFINEMENTS):
                left = (self.plain_moved - matrix @ self.plain) @ adjoint(self.plain)
                right = self.dual_moved @ adjoint(self.dual - adjoint(matrix) @ self.dual_moved)
                matrix = matrix + self.solve(left, right, weight)
            matrix = self.completed(matrix)
            score = self.score(matrix)
            yield matrix, score

    def completed(self, matrix: NDArray[Any], small: float | None = None) -> NDArray[Any]:
        """Make a fit invertible on directions ``v`` along which the first plain factor is zero.

        There ``x = M v`` is any solution of ``D'^H x = D^H v``: the least-squares one, and what
        the second dual factor does not see, if its rank is smaller too. With ``small``, the dual
        factors also decide where the plain one is that small, in every circuit.
        """
        every = small is not None
        doubtful = np.arange(len(matrix)) if every else np.flatnonzero(_doubtful(matrix))
        if not doubtful.size:
            return matrix
        matrix = matrix.copy()
        for number in doubtful:
            left, sizes, _ = np.linalg.svd(self.plain[number])
            free = left[:, int((sizes > (small or ZERO) * sizes[:1]).sum()) :]
            if not free.shape[-1]:
                continue
            rest = matrix[number] - (matrix[number] @ free) @ adjoint(free)
            kept = np.linalg.svd(rest, compute_uv=False)
            kept = kept[kept > 1e-13 * kept[:1]]
            typical = float(np.sqrt(kept[0] * kept[-1])) if kept.size else 1.0
            dual = self.dual_moved[number]
            left, sizes, right = np.linalg.svd(dual)
            # What rounding alone leaves of a factor without full rank.
            noise = 3 * float(np.sqrt(dual.shape[-1] * self.back[number].max()))
            rank = int((sizes > np.maximum(noise, ZERO * sizes[:1])).sum())
            seen = right[:rank] @ (adjoint(self.dual[number]) @ free)
            images = left[:, :rank] @ (seen / sizes[:rank, None])
            unseen = left[:, rank:][:, : free.shape[-1]]
            images[:, : unseen.shape[-1]] += typical * unseen
            matrix[number] = rest + images @ adjoint(free)
        return matrix

    def solve(self, left: NDArray[Any], right: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        return _solve(self.gram, self.gram_moved, (left, right), weight, self.noise)

    def score(self, matrix: NDArray[Any]) -> NDArray[np.float64]:
        """Weighted squared residuals in the moved coordinates."""
        dual = adjoint(_inverse(matrix))
        first, second = matrix @ self.plain, dual @ self.dual
        np.subtract(self.plain_moved, first, out=first)
        np.subtract(self.dual_moved, second, out=second)
        self.last = BasisChange(matrix, dual, (first, second))
        parts = (
            (row_squares(first) / self.noise).sum(axis=-1),
            (row_squares(second) / self.back).sum(axis=-1),
        )
        total = parts[0] + parts[1]
        # A start from one factor fits that one too well; the other must look like rounding too.
        share = self.dual.shape[-1] / (self.plain.shape[-1] + self.dual.shape[-1])
        total = np.maximum(total, np.maximum(parts[0] / (1 - share), parts[1] / share))
        return np.asarray(np.where(np.isfinite(total), total, np.inf))


def _fit_scalar(
    plain: NDArray[Any],
    plain_moved: NDArray[Any],
    dual: NDArray[Any],
    dual_moved: NDArray[Any],
    plain_noise: NDArray[np.float64],
    dual_noise: NDArray[np.float64],
) -> BasisChange:
    """One factor a pair: ``p' = z p`` and ``d = conj(z) d'``, linear in z."""
    noise = np.maximum(plain_noise, _smallest(plain_moved))[..., 0]
    back = np.maximum(dual_noise, _smallest(dual_moved))[..., 0]
    over = (plain_moved * np.conj(plain)).sum(axis=(-1, -2))
    under = (np.abs(plain) ** 2).sum(axis=(-1, -2))
    over_dual = (dual_moved * np.conj(dual)).sum(axis=(-1, -2))
    under_dual = (np.abs(dual_moved) ** 2).sum(axis=(-1, -2))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(under > 0, over / under, np.where(under_dual > 0, over_dual / under_dual, 1.0))
        for _ in range(3):
            size = np.abs(z) ** 2
            weight = np.where(size > 0, noise / (back * np.where(size > 0, size, 1.0)), 0.0)
            total = under + weight * under_dual
            z = np.where(total > 0, (over + weight * over_dual) / total, 1.0)
        z = np.where(z == 0, 1.0, z)
        dual_z = 1.0 / np.conj(z)
    return BasisChange(z[:, None, None], dual_z[:, None, None])


def weighed_columns(
    values: Sequence[NDArray[Any]], variances: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    """Factors of both models with columns in units of their rounding, and the row noise then.

    Columns behind gains of different sizes have rounding of different sizes; a change of basis
    acts on rows, so columns can be scaled freely.

    Parameters
    ----------
    values, variances
        Two arrays each, of shape ``(batch, r, n)``; variances in float32 are those of formats
        beside whose rounding that of float64 is nothing.

    Returns
    -------
    tuple
        The factors (the arrays given, where the columns are alike) and the noise ``(batch, r)``.
    """
    total = variances[0] + variances[1]
    rows, length = total.shape[-2:]
    column = np.ones((1, rows), dtype=total.dtype) @ total / rows
    column = column.astype(np.float64)
    if total.dtype == np.float64:
        size = (np.abs(values[1]) ** 2).mean(axis=-2, keepdims=True)
        column += (16 * np.finfo(np.float64).eps) ** 2 * size
    typical = column.mean(axis=-1, keepdims=True)
    if column.min() > 0 and (typical * (1 / column).mean(axis=-1, keepdims=True)).max() < ALIKE:
        ones = np.ones(length, dtype=total.dtype)
        return list(values), (total @ ones).astype(np.float64) / length
    column = np.maximum(column, 1e-12 * typical)
    unit = np.sqrt(np.where(column > 0, typical / np.where(column > 0, column, 1.0), 1.0))
    squares = np.square(unit).swapaxes(-1, -2).astype(total.dtype)
    noise = (total @ squares)[..., 0].astype(np.float64) / length
    return [value * unit for value in values], noise


def row_squares(array: NDArray[Any]) -> NDArray[np.float64]:
    """Squared norms of the rows (last axis), real or complex."""
    return np.asarray(np.vecdot(array, array).real)


def _smallest(moved: NDArray[Any]) -> NDArray[np.float64]:
    """A variance below which float64 itself cannot see, per row."""
    size = row_squares(moved) / moved.shape[-1]
    largest = size.max(axis=-1, keepdims=True)
    floor: NDArray[np.float64] = (
        np.maximum(size, 1e-12 * largest) * (16 * np.finfo(np.float64).eps) ** 2
    )
    return np.maximum(floor, np.finfo(np.float64).tiny)


def _eye(matrix: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(np.eye(matrix.shape[-1]), matrix.shape)


def _spectral(matrix: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0.0), vectors


def _root(weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Square root of a positive matrix and its pseudo-inverse."""
    values, vectors = _spectral(weight)
    root = np.sqrt(values)
    cut = root.max(axis=-1, keepdims=True) * 1e-12
    inverse = np.where(root > cut, 1.0 / np.where(root > cut, root, 1.0), 0.0)
    lead = vectors * root[..., None, :]
    return lead @ adjoint(vectors), (vectors * inverse[..., None, :]) @ adjoint(vectors)


def _solve(
    gram: NDArray[Any],
    gram_moved: NDArray[Any],
    right: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]],
    weight: NDArray[Any],
    noise: NDArray[np.float64],
) -> NDArray[Any]:
    """Solve ``M gram W + R gram_moved M = left W + R right`` by two eigendecompositions."""
    root, inverse_root = _root(weight)
    spread = np.sqrt(noise)
    a_values, a_vectors = _spectral(spread[..., None] * gram_moved * spread[..., None, :])
    b_values, b_vectors = _spectral(root @ gram @ root)
    if isinstance(right, tuple):
        left, behind = right
        # R^-1/2 (left W + R behind) W^-1/2
        target = (left @ root) / spread[..., None] + (spread[..., None] * behind) @ inverse_root
    else:
        target = (right / spread[..., None]) @ inverse_root
    target = adjoint(a_vectors) @ target @ b_vectors
    total = a_values[..., :, None] + b_values[..., None, :]
    cut = total.max(axis=(-1, -2), keepdims=True) * 1e-15
    with np.errstate(divide="ignore", invalid="ignore"):
        solved = np.where(total > cut, target / total, 0.0)
    middle = a_vectors @ solved @ adjoint(b_vectors)
    return np.asarray((spread[..., None] * middle) @ root)


def _completed(matrix: NDArray[Any]) -> NDArray[Any]:
    """Make singular fits invertible: directions in which neither factor lives may go anywhere."""
    if not _doubtful(matrix).any():
        return matrix
    left, values, right = np.linalg.svd(matrix)
    largest = values[..., :1]
    lost = values <= 1e-13 * largest
    if not lost.any():
        return matrix
    typical = np.where(largest > 0, np.sqrt(largest * _smallest_kept(values, lost)), 1.0)
    return np.asarray((left * np.where(lost, typical, values)[..., None, :]) @ right)


def _smallest_kept(values: NDArray[np.float64], lost: NDArray[np.bool_]) -> NDArray[np.float64]:
    kept = np.where(lost, np.inf, values).min(axis=-1, keepdims=True)
    return np.where(np.isfinite(kept), kept, 1.0)


def _inverse(matrix: NDArray[Any]) -> NDArray[Any]:
    """Inverse; directions in which a rank-deficient circuit leaves it open go to zero."""
    return _pseudo_inverse(matrix, False)


def _carried(
    first: NDArray[Any], second: NDArray[Any], gram: NDArray[Any], cross: NDArray[Any]
) -> NDArray[Any]:
    """Least-squares ``X`` with ``second = X first``, given ``first first^H``, ``second first^H``.

    Gram matrices see half the digits: where these do not do, the factor itself is decomposed.
    """
    inverse = _inverse_gram(gram)
    result = cross @ inverse
    for number in np.flatnonzero(_doubtful(gram, inverse)):
        result[number] = second[number] @ np.linalg.pinv(first[number], rcond=ZERO)
    return np.asarray(result)


def _inverse_gram(gram: NDArray[Any]) -> NDArray[Any]:
    """:func:`_inverse` of Hermitian matrices."""
    return _pseudo_inverse(gram, True)


def _pseudo_inverse(matrix: NDArray[Any], hermitian: bool) -> NDArray[Any]:
    """By elimination where that is as good, batch entry by batch entry."""
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(matrix, rcond=1e-13, hermitian=hermitian)
    doubtful = _doubtful(matrix, inverse)
    if doubtful.any():
        inverse[doubtful] = np.linalg.pinv(matrix[doubtful], rcond=1e-13, hermitian=hermitian)
    return np.asarray(inverse)


def _doubtful(matrix: NDArray[Any], inverse: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Where a matrix may be singular to working precision."""
    if inverse is None:
        try:
            inverse = np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            return np.ones(len(matrix), dtype=np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = [np.sqrt((np.abs(x) ** 2).sum(axis=(-1, -2))) for x in (matrix, inverse)]
        apart = np.abs(matrix @ inverse - _eye(matrix)).max(axis=(-1, -2))
        return np.asarray(~((sizes[0] * sizes[1] < 1e12) & (apart < 1e-3)))
