"""Factors of head products: triangular forms, ranks, spectra, and what a derivative sees.

For factors A of shape ``(r, a)`` and B of shape ``(r, b)`` the function sees only ``A^T B``. The
derivative of the product has rank ``a rank(B) + b rank(A) - rank(A) rank(B)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.ledger.wiring import Point

Matrix = NDArray[np.float64]


def seen_rank(left_rank: int, right_rank: int, left: int, right: int) -> int:
    """Rank of the derivative of ``A^T B`` at factors of the given ranks and input widths."""
    return left * right_rank + right * left_rank - left_rank * right_rank


@dataclass(frozen=True)
class Factor:
    """Triangular factors of stacked matrices ``(copies, r, inputs)``."""

    triangular: NDArray[np.float64]
    inputs: int

    def ranks(self) -> NDArray[np.int64]:
        """Numerical ranks, one a copy."""
        values = np.linalg.svd(self.triangular, compute_uv=False)
        tolerance = np.finfo(float).eps * max(self.triangular.shape[-1], self.inputs)
        return np.sum(values > tolerance * values[..., :1], axis=-1) * (values[..., 0] > 0)


def triangular(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """R with ``F^T = Q R`` for each ``F`` of shape ``(..., r, inputs)``."""
    return np.asarray(np.linalg.qr(factors.swapaxes(-1, -2), mode="r"))


def seen_through(
    point: Point, weight: Matrix, bias: Matrix | None, norm: tuple[Matrix, Matrix | None]
) -> Matrix:
    """A reader as a map of the normalised vector and, in a last column, the constant 1."""
    gain, norm_bias = norm
    folded = weight * gain
    if point.blind:
        folded = folded - folded.mean(axis=-1, keepdims=True)
    if bias is None and norm_bias is None:
        return folded
    constant = np.zeros(weight.shape[:-1]) if norm_bias is None else weight @ norm_bias
    if bias is not None:
        constant = constant + bias
    return np.concatenate([folded, constant[..., None]], axis=-1)


def product_spectrum(left: Matrix, right: Matrix) -> tuple[Matrix, Matrix]:
    """Singular values of ``left @ right^T`` over the product of the factors' norms, and that.

    What is zero must be judged against the factors: the product of factors on complementary
    subspaces is nothing but rounding, whose own largest value says nothing.
    """
    scaled, scale = [], np.ones(1)
    for factor in (left, right):
        size = np.linalg.norm(factor, axis=(-2, -1), keepdims=True)
        scaled.append(factor / np.where(size > 0, size, 1.0))
        scale = scale * size[..., 0]
    values = np.linalg.svd(scaled[0] @ scaled[1].swapaxes(-1, -2), compute_uv=False)
    return np.asarray(values), scale


def resolution(values: NDArray[Any]) -> float:
    """Rounding of a product of factors of norm one."""
    return 4 * float(np.finfo(float).eps) * float(values.shape[-1])


def conditions_of(values: NDArray[Any]) -> Matrix:
    """Largest over smallest singular value; infinite below float64's resolution."""
    largest, smallest = values[..., 0], values[..., -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(smallest > resolution(values), largest / smallest, np.inf)
