"""Changes of basis between factor pairs, by weighted maximum likelihood.

For factor pairs with one product, ``P' = M P`` and ``D' = M^-H D`` (so ``D = M^H D'``), with
rounding in all of them. Most circuits are explained by the plain factors alone, by least squares;
the others are fitted by :mod:`fiberscope.checkpoints.equality.likelihood` from several starts.
An unweighted fit is off by orders of magnitude when M is ill-conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.likelihood import (
    Factor,
    Likelihood,
    adjoint,
    row_squares,
)

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


def fit_basis(
    plain: NDArray[Any],
    plain_moved: NDArray[Any],
    dual: NDArray[Any],
    dual_moved: NDArray[Any],
    plain_noise: NDArray[np.float64],
    dual_noise: NDArray[np.float64],
    plain_carried: NDArray[np.float64] | None = None,
    dual_carried: NDArray[np.float64] | None = None,
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
    plain_carried, dual_carried
        The same of the first factors, which the change of basis carries along; zero by default.
    """
    one = _factor(plain, plain_moved, plain_carried, plain_noise)
    other = _factor(dual, dual_moved, dual_carried, dual_noise)
    r = plain.shape[-2]
    if r == 1:
        return _fit_scalar(one, other)
    enough = GOOD_ENOUGH * max(1, r * (plain.shape[-1] + dual.shape[-1] - r))
    quick, score = _by_plain(one, other)
    open_ = np.flatnonzero(~(score <= enough) | _doubtful(quick.matrix, adjoint(quick.dual)))
    if not open_.size:
        return quick  # the usual case: the plain factors explain all, nothing is singular
    best = quick.matrix.copy()
    best[open_] = _climbed(Likelihood.of(one.some(open_), other.some(open_)), enough)
    best = _completed(best)
    return BasisChange(best, adjoint(_inverse(best)))


def _factor(
    first: NDArray[Any],
    second: NDArray[Any],
    first_noise: NDArray[np.float64] | None,
    second_noise: NDArray[np.float64],
) -> Factor:
    given = np.zeros(first.shape[:-1]) if first_noise is None else first_noise
    return Factor(
        first,
        second,
        np.maximum(given, _smallest(first)),
        np.maximum(second_noise, _smallest(second)),
    )


def _by_plain(plain: Factor, dual: Factor) -> tuple[BasisChange, NDArray[np.float64]]:
    """Least squares of the plain factors, and its squared residuals in units of the row noise."""
    gram = plain.first @ adjoint(plain.first)
    matrix = (plain.second @ adjoint(plain.first)) @ _inverse_gram(gram)
    back = adjoint(_inverse(matrix))
    parts, residuals = [], []
    for by, factor in ((matrix, plain), (back, dual)):
        residual = by @ factor.first
        np.subtract(factor.second, residual, out=residual)
        carried = (np.square(np.abs(by)) @ factor.first_noise[..., None])[..., 0]
        noise = factor.second_noise + carried
        parts.append((row_squares(residual) / noise).sum(axis=-1))
        residuals.append(residual)
    share = dual.first.shape[-1] / (plain.first.shape[-1] + dual.first.shape[-1])
    total = np.maximum(parts[0] + parts[1], np.maximum(parts[0] / (1 - share), parts[1] / share))
    score = np.where(np.isfinite(total), total, np.inf)
    return BasisChange(matrix, back, (residuals[0], residuals[1])), score


def _climbed(whole: Likelihood, enough: float) -> NDArray[Any]:
    """The best fits from several starts."""
    starts: tuple[Callable[[Likelihood], NDArray[Any]], ...] = (
        Likelihood.by_plain,
        Likelihood.by_dual,
        Likelihood.by_both,
        lambda p: p.completed(p.by_plain(), np.arange(len(p.plain.first)), SMALL),
    )
    count, r = whole.plain.first.shape[:2]
    kind = np.result_type(whole.plain.first, whole.plain.second)
    best = np.broadcast_to(np.eye(r, dtype=kind), (count, r, r)).copy()
    best_score = np.full(count, np.inf)
    for start in starts:
        # Well-conditioned circuits need no iteration: what already looks like rounding is done.
        open_ = np.flatnonzero(best_score > enough)
        if not open_.size:
            break
        problem = whole if open_.size == count else whole.some(open_)
        for matrix, score in _candidates(problem, start(problem), enough):
            better = score < best_score[open_]
            best[open_[better]] = matrix[better]
            best_score[open_[better]] = score[better]
    return best


def _candidates(
    problem: Likelihood, matrix: NDArray[Any], enough: float
) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
    """A start and its improvements, each with its score."""
    matrix = problem.completed(matrix, np.flatnonzero(_doubtful(matrix)))
    score = problem.score(matrix)
    yield matrix, score
    if (score <= enough).all():
        return
    for better in problem.improved(matrix):
        matrix = problem.completed(better, np.flatnonzero(_doubtful(better)))
        score = problem.score(matrix)
        yield matrix, score
        if (score <= enough).all():
            return


def _fit_scalar(plain: Factor, dual: Factor) -> BasisChange:
    """One factor a pair: ``p' = z p`` and ``d = conj(z) d'``, linear in z."""
    over = (plain.second * np.conj(plain.first)).sum(axis=(-1, -2))
    under = row_squares(plain.first)[..., 0]
    over_dual = (dual.second * np.conj(dual.first)).sum(axis=(-1, -2))
    under_dual = row_squares(dual.second)[..., 0]
    noises = [x[..., 0] for f in (plain, dual) for x in (f.first_noise, f.second_noise)]
    with np.errstate(divide="ignore", invalid="ignore"):
        # From the factor that stands out of its rounding by more.
        clear = under / noises[0] >= under_dual / noises[3]
        starts = over / under, over_dual / under_dual
        z = np.where(clear & (under > 0) | ~(under_dual > 0), starts[0], starts[1])
        z = np.where((under > 0) | (under_dual > 0), z, 1.0)
        for _ in range(3):
            size = np.square(np.abs(z))
            weight = (noises[1] + size * noises[0]) / (noises[2] + size * noises[3])
            total = under + weight * under_dual
            z = np.where(total > 0, (over + weight * over_dual) / total, 1.0)
        z = np.where(z == 0, 1.0, z)
        dual_z = 1.0 / np.conj(z)
    return BasisChange(z[:, None, None], dual_z[:, None, None])


def weighed_columns(
    values: Sequence[NDArray[Any]], variances: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], list[NDArray[np.float64]]]:
    """Factors of both models with columns in units of their rounding, and the row noise then.

    Columns behind gains of different sizes have rounding of different sizes; a change of basis
    acts on rows, so columns can be scaled freely. Rows of the two models are in different bases
    and can be of different sizes: what counts is how the rounding of each is shared out.

    Parameters
    ----------
    values, variances
        Two arrays each, of shape ``(batch, r, n)``; variances in float32 are those of formats
        beside whose rounding that of float64 is nothing.

    Returns
    -------
    list
        The factors (the arrays given, where the columns are alike).
    list
        Their noise ``(batch, r)``.
    """
    rows, length = variances[0].shape[-2:]
    column = np.zeros((len(variances[0]), 1, length))
    for value, variance in zip(values, variances, strict=True):
        ones = np.ones((1, rows), dtype=variance.dtype)
        share = (ones @ variance / rows).astype(np.float64)
        if variance.dtype == np.float64:
            size = np.square(np.abs(value)).mean(axis=-2, keepdims=True)
            share += (16 * np.finfo(np.float64).eps) ** 2 * size
        whole = share.mean(axis=-1, keepdims=True)
        column += np.where(whole > 0, share / np.where(whole > 0, whole, 1.0), 0.0)
    typical = column.mean(axis=-1, keepdims=True)
    if column.min() > 0 and (typical * (1 / column).mean(axis=-1, keepdims=True)).max() < ALIKE:
        ones = np.ones(length, dtype=variances[0].dtype)
        return list(values), [(x @ ones).astype(np.float64) / length for x in variances]
    column = np.maximum(column, 1e-12 * typical)
    unit = np.sqrt(np.where(column > 0, typical / np.where(column > 0, column, 1.0), 1.0))
    squares = np.square(unit).swapaxes(-1, -2).astype(variances[0].dtype)
    noises = [(x @ squares)[..., 0].astype(np.float64) / length for x in variances]
    return [value * unit for value in values], noises


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
