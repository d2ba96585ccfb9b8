"""Balancing one pair of factors: the smallest norm that a change of basis can give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]

_ROUNDS = 3
"""The second round removes what the condition of the first change of basis left behind."""


@dataclass(frozen=True)
class FactorMove:
    """What balances a pair of factors of width r: a change of basis, a cut, a rotation.

    Attributes
    ----------
    matrix : ndarray, shape (r, r)
        First move: ``(A, B) -> (M A, M^-H B)``.
    live : int
        Rows from this one on are dead after the first move: their product is zero to rounding, so
        both are cut. It is the rank of ``A^H B``.
    rotation : ndarray, shape (r, r)
        Last move, orthogonal (unitary): the nearest of the balanced points.
    """

    matrix: Matrix
    live: int
    rotation: Matrix


def reduced(factor: Matrix) -> Matrix:
    """A factor of shape ``(r, min(r, n))`` with the same Gram matrix ``F F^H`` as ``(r, n)``."""
    if factor.shape[1] <= factor.shape[0]:
        return factor
    triangular = np.asarray(np.linalg.qr(factor.conj().T, mode="r"))
    return triangular.conj().T


def polar(matrix: Matrix) -> Matrix:
    """The orthogonal (unitary) matrix U that maximises ``Re <U, C>``."""
    left, _, right = np.linalg.svd(matrix)
    return np.asarray(left @ right)


def balance_factors(left: Matrix, right: Matrix) -> FactorMove:
    """Find the change of basis that makes ``|M A|^2 + |M^-H B|^2`` smallest.

    The product ``A^H B = U S V^H`` is fixed. The smallest sum is twice the sum of its singular
    values, reached where ``A A^H = B B^H``, and all points that reach it differ by a rotation; of
    these the one nearest to ``(A, B)`` is taken (orthogonal Procrustes). With triangular factors
    ``A = R_A^H O_A^H``, ``B = R_B^H O_B^H`` the first move is ``S^-1/2 V^H R_B``, as far as S is
    positive. Where the product has a lower rank than r the infimum is not attained by a change of
    basis but in the closure of its orbit: by cutting the dead rows.

    Parameters
    ----------
    left, right : ndarray, shapes (r, a) and (r, b)
        Real, or complex for the planes of rotary heads.

    Source: Morrow, arXiv 2609.01231, section on balanced representatives, for real factors of full
    rank; the dead part by the closed orbit in the closure (Kempf and Ness).
    """
    width = left.shape[0]
    first, second = reduced(left), reduced(right)
    start = (first, second)
    dtype = np.result_type(first, second, np.float64)
    matrix, live = np.eye(width, dtype=dtype), width
    for _ in range(_ROUNDS):
        move, live = balancing(first, second)
        first, second = move @ first, np.linalg.inv(move).conj().T @ second
        first[live:], second[live:] = 0, 0
        matrix = move @ matrix
    rotation = polar(start[0] @ first.conj().T + start[1] @ second.conj().T)
    return FactorMove(matrix, live, rotation)


def balancing(left: Matrix, right: Matrix) -> tuple[Matrix, int]:
    """One change of basis after which the live rows are balanced and the others cancel.

    Returns
    -------
    matrix : ndarray, shape (r, r)
        In the new basis the live rows of both factors are orthogonal, with equal norms.
    live : int
        The rank of ``A^H B``, judged at each row's own scale.
    """
    width = left.shape[0]
    # Rows are brought to equal norms first, so that rounding is judged at each row's own scale.
    norms = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    both = (norms[0] > 0) & (norms[1] > 0)
    scale = np.ones(width)
    scale[both] = np.sqrt(norms[1][both] / norms[0][both])
    left, right = left * scale[:, None], right / scale[:, None]
    u, values, v = np.linalg.svd(left.conj().T @ right, full_matrices=False)
    sizes = np.linalg.norm(left, 2) * np.linalg.norm(right, 2)
    live = int(np.sum(values > 4 * width * np.finfo(float).eps * sizes))
    root = np.sqrt(values[:live])[:, None]
    kept = v[:live] @ right.conj().T / root
    if live == width:
        return kept * scale, live
    dual = u[:, :live].conj().T @ left.conj().T / root
    # Rows orthogonal to the dual ones complete the basis; their product is the dead part.
    complete = np.linalg.qr(dual.conj().T, mode="complete")[0]
    return np.concatenate([kept, complete[:, live:].conj().T]) * scale, live
