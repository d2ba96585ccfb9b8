"""Balanced factors of a product: the form of (A, B) that a change of basis cannot alter.

``(A, B) -> (M A, M^-H B)`` keeps ``A^H B``. With the singular value decomposition
``A^H B = X s Y^H`` the balanced factors are ``W sqrt(s) X^H`` and ``W sqrt(s) Y^H`` with W unitary:
those of smallest norm, with equal Gram matrices ``A A^H = B B^H``. W is fixed by a fixed reference:
``A R + B S`` becomes Hermitian and positive (its unitary polar factor becomes 1). Only products of
the width of the factors are decomposed, never the large product.

Source: Morrow, arXiv 2609.01231 (balanced representatives of attention heads); the polar alignment
replaces singular vectors, which near-equal singular values leave undetermined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.readers import REFERENCE_SEED
from fiberscope.checkpoints.canonical.workspace import ARITHMETIC, ROUNDINGS, relative_noise

Array = NDArray[np.float64]

SAFE = 1e-11
"""Relative error of a factor through its Gram matrix up to which no orthogonalisation is needed."""


@dataclass(frozen=True)
class BalancedPairs:
    """Balanced factors of several pairs.

    Attributes
    ----------
    first, second
        Shapes as given.
    basis
        The M of every pair, shape ``(pairs, n, n)``, with ``first = M A`` on the span of A.
    settled
        Whether the pairs were balanced and aligned already, so that they are returned as given.
    deficient
        Number of directions of every pair that the product does not see (and that are set to 0).
    loose
        Number of directions of every pair that the reference does not fix beyond rounding.
    uncertain
        By how much rounding of the given factors has moved the balanced ones, relative to the
        largest row, shape ``(pairs,)``: an estimate, 0 where nothing was computed.
    """

    first: Array
    second: Array
    basis: Array | None
    settled: bool
    deficient: NDArray[np.int64]
    loose: NDArray[np.int64]
    uncertain: Array


def sketch(array: Array, stream: int) -> Array:
    """Product of the last axis with the fixed reference: signed sums over residue classes.

    ``(..., n, a) -> (..., n, n)``; column ``c`` sums the entries ``c, c + n, ...``, with fixed
    random signs.
    """
    width, count = array.shape[-2], array.shape[-1]
    seed = np.random.SeedSequence([REFERENCE_SEED, 7, stream, count])
    signs = np.random.Generator(np.random.PCG64(seed)).choice(np.array([-1.0, 1.0]), count)
    signed = array * signs
    if spare := -count % width:
        padding = [(0, 0)] * (array.ndim - 1) + [(0, spare)]
        signed = np.pad(signed, padding)
    return signed.reshape(*array.shape[:-1], -1, width).sum(axis=-2)


def balance(
    first: Array, second: Array, spacing: float, lost: tuple[Array, Array] | None = None
) -> BalancedPairs:
    """Balanced and aligned factors.

    Parameters
    ----------
    first, second
        Shapes ``(pairs, n, a)`` and ``(pairs, n, b)``.
    spacing
        Relative spacing of the numbers' storage: what is within it counts as settled.
    lost
        Squared lengths of what was taken from the rows of both factors, or cancelled in them, and
        was rounded with them: shapes ``(pairs, n)``.
    """
    pairs, width = first.shape[:2]
    left, right = _gram(first), _gram(second)
    reference = sketch(first, 0), sketch(second, 1)
    none = np.zeros(pairs, dtype=np.int64)
    if _is_settled(first, second, left, right, reference[0] + reference[1], spacing):
        sizes = np.linalg.svd(reference[0] + reference[1], compute_uv=False)
        loose = _loose(np.asarray(sizes, dtype=np.float64), spacing)
        return BalancedPairs(first, second, None, True, none, np.maximum(loose, 0), np.zeros(pairs))
    basis, dual, safe = _from_grams(left, right, spacing)
    deficient = none.copy()
    moved, other = np.empty_like(first), np.empty_like(second)
    aligned = np.empty((pairs, width, width))
    crossed = right @ dual.swapaxes(-1, -2), left @ basis.swapaxes(-1, -2)
    aligned[safe] = basis[safe] @ reference[0][safe] + dual[safe] @ reference[1][safe]
    for pair in np.flatnonzero(~safe):
        moved[pair], other[pair], basis[pair], deficient[pair] = _by_orthogonalising(
            first[pair], second[pair]
        )
        aligned[pair] = sketch(moved[pair], 0) + sketch(other[pair], 1)
        crossed[0][pair] = second[pair] @ other[pair].T
        crossed[1][pair] = first[pair] @ moved[pair].T
    turn, sizes = _unitary_part(aligned)
    lengths = tuple(np.diagonal(gram, axis1=-2, axis2=-1) for gram in (left, right))
    if lost is not None:
        lengths = lengths[0] + lost[0], lengths[1] + lost[1]
    uncertain = _uncertainty(lengths, crossed, basis, sizes, deficient, spacing)
    turn = turn.swapaxes(-1, -2)
    basis = turn @ basis
    if safe.all():
        np.matmul(basis, first, out=moved)
        np.matmul(turn @ dual, second, out=other)
    else:
        moved[safe] = basis[safe] @ first[safe]
        other[safe] = (turn @ dual)[safe] @ second[safe]
        moved[~safe] = turn[~safe] @ moved[~safe]
        other[~safe] = turn[~safe] @ other[~safe]
    loose = np.maximum(_loose(sizes, spacing) - deficient, 0)
    return BalancedPairs(moved, other, basis, False, deficient, loose, uncertain)


def _uncertainty(
    lengths: tuple[Array, ...],
    crossed: tuple[Array, Array],
    basis: Array,
    alignment: Array,
    deficient: NDArray[np.int64],
    spacing: float,
) -> Array:
    """How far rounding of the factors moves the balanced ones, relative to their largest row.

    With ``A^T B = X s Y^T`` a row of the balanced first factor is ``(A^T B y_i)^T / sqrt(s_i)``.
    Rounding of A, row by row, moves it by ``e / sqrt(12) sqrt(sum_k |A_k|^2 (B_k y_i)^2 / s_i)``,
    at most by the root of what it does to the product, and the second factor likewise. A row that
    is moved by a tenth of itself may as well be zero but for rounding: all of it is uncertain. The
    alignment follows with the condition of what it is found from. To first order: an estimate.
    """
    sizes = np.maximum(np.einsum("gik,gki->gi", basis, crossed[1]), 0.0)
    rows, live = np.sqrt(sizes), sizes > 0
    error = spacing / np.sqrt(12.0)
    product = error * np.sqrt(2.0 * (lengths[0] * lengths[1]).sum(axis=-1))
    moved = np.zeros_like(sizes)
    for squared, products in zip(lengths, crossed, strict=True):
        squares = np.einsum("gk,gki->gi", squared, products**2)
        part = np.divide(np.sqrt(squares), sizes, out=np.zeros_like(sizes), where=live)
        moved = np.maximum(moved, error * part)
    moved = np.minimum(moved, np.sqrt(product)[:, None])
    worst = np.where(moved > 0.1 * rows, np.maximum(moved, rows), moved).max(axis=-1)
    for pair, cut in enumerate(deficient):
        fixed = alignment[pair, : alignment.shape[1] - cut]
        if len(fixed) > 1:
            worst[pair] *= 1.0 + fixed[0] / max(float(fixed[-2:].sum()), 1e-300)
    largest = rows.max(axis=-1)
    return np.asarray(np.divide(worst, largest, out=np.zeros_like(worst), where=largest > 0))


def _gram(array: Array) -> Array:
    return array @ array.swapaxes(-1, -2)


def _is_settled(
    first: Array, second: Array, left: Array, right: Array, aligned: Array, spacing: float
) -> bool:
    """Equal Gram matrices, and a positive symmetric product with the reference, up to rounding."""
    size = np.sqrt(np.diagonal(left, axis1=-2, axis2=-1))
    allowed = ROUNDINGS * spacing
    different = np.abs(left - right)
    if (different > allowed * size[:, :, None] * size[:, None, :]).any():
        return False
    # That was generous and cheap; an entry's own rounding has a relative deviation of at most
    # sqrt(2) times the geometric mean of its rows'.
    noise = np.sqrt(2.0) * np.hypot(relative_noise(first, spacing), relative_noise(second, spacing))
    noise = np.sqrt(noise) * size
    floor = allowed * ARITHMETIC / spacing * size[:, :, None] * size[:, None, :]
    if (different > noise[:, :, None] * noise[:, None, :] + floor).any():
        return False
    # A sum of signed entries has the rounding of the entries, whatever cancels in it.
    rows = np.sqrt(np.maximum(np.diagonal(left, axis1=-2, axis2=-1), 0.0)).max(axis=-1)
    bound = allowed * rows / np.sqrt(left.shape[-1])
    if (np.abs(aligned - aligned.swapaxes(-1, -2)).max(axis=(-2, -1)) > bound).any():
        return False
    lowest = np.linalg.eigvalsh((aligned + aligned.swapaxes(-1, -2)) / 2)[:, 0]
    return bool((lowest >= -bound * np.sqrt(left.shape[-1])).all())


def _from_grams(
    left: Array, right: Array, spacing: float
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """M and M^-T of the balanced form, from Gram matrices; and for which pairs that is accurate."""
    pairs = len(left)
    basis = np.zeros_like(left)
    dual = np.zeros_like(left)
    safe = np.ones(pairs, dtype=bool)
    lower = [np.zeros_like(left), np.zeros_like(left)]
    for place, gram in enumerate((left, right)):
        try:
            lower[place] = np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            for pair in range(pairs):
                try:
                    lower[place][pair] = np.linalg.cholesky(gram[pair])
                except np.linalg.LinAlgError:
                    safe[pair] = False
        diagonal = np.diagonal(lower[place], axis1=-2, axis2=-1)
        ratio = diagonal.max(axis=-1) / np.maximum(diagonal.min(axis=-1), 1e-300)
        error = 100.0 * np.finfo(np.float64).eps * ratio**2
        safe &= error < max(SAFE, 1e-3 * spacing)
    if not safe.any():
        return basis, dual, safe
    a, b = lower[0][safe], lower[1][safe]
    middle = a.swapaxes(-1, -2) @ b
    x, s, _ = np.linalg.svd(middle)
    # M = sqrt(s) X^T L^-1, and its inverse transpose from the same factors: M^-T = s^-1/2 X^T L^T.
    half = np.sqrt(s)[..., None]
    turned = x.swapaxes(-1, -2)
    basis[safe] = half * np.linalg.solve(a.swapaxes(-1, -2), x).swapaxes(-1, -2)
    dual[safe] = (turned @ a.swapaxes(-1, -2)) / half
    return basis, dual, safe


def _by_orthogonalising(first: Array, second: Array) -> tuple[Array, Array, Array, int]:
    """One pair through QR factors: accurate for any condition, and for deficient rank."""
    width = first.shape[0]
    left, upper_left = np.linalg.qr(first.T)
    right, upper_right = np.linalg.qr(second.T)
    x, s, y = np.linalg.svd(upper_left @ upper_right.T, full_matrices=False)
    size = np.linalg.norm(upper_left) * np.linalg.norm(upper_right)
    s = np.where(s > width * np.finfo(np.float64).eps * size, s, 0.0)
    half = np.zeros((width, 1))
    half[: len(s), 0] = np.sqrt(s)
    moved, other = np.zeros_like(first), np.zeros_like(second)
    moved[: len(s)] = half[: len(s)] * (left @ x).T
    other[: len(s)] = half[: len(s)] * (right @ y.T).T
    # M with M first = moved: sqrt(s) X^T R^-T; what the product does not see is cut.
    basis = np.zeros((width, width))
    live = int(np.count_nonzero(s))
    solved = np.linalg.lstsq(upper_left, x[:, :live], rcond=None)[0]
    basis[:live] = half[:live] * solved.T
    return moved, other, basis, width - live


def _unitary_part(matrices: Array) -> tuple[Array, Array]:
    """Orthogonal polar factor Y of ``T = Y P`` and the singular values of T."""
    x, s, y = np.linalg.svd(matrices)
    return x @ y, s


def _loose(sizes: Array, spacing: float) -> NDArray[np.int64]:
    """Directions whose alignment is within a thousand roundings of being undetermined."""
    largest = sizes[:, :1]
    return np.asarray(np.count_nonzero(sizes < 1e3 * spacing * largest, axis=-1), dtype=np.int64)
