"""Rotations of the stream fitted to tables, and how well the tables' rounding determines them.

A fitted rotation is off by a small turn X (antisymmetric). With ``s_i`` the singular values of a
table's rows in units of their rounding, X between the i-th and the j-th direction has the variance
``1 / (s_i^2 + s_j^2)``: large between two faint directions, however well the others are known.
Products of columns lose what is more than eight digits fainter than the rest; where that matters,
the rows of both models are made triangular together (QR), and the fit is refined on its residual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.equality.statistic import EPSILON, allowance
from fiberscope.symmetry import ones_complement

Pairs = Sequence[tuple[Vectors, Vectors]]
"""Tables whose rows correspond."""
Block = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Coordinates of the second model, and of the first."""
SHARE = 0.1
"""Error of arithmetic, in standard deviations that rounding leaves, above which it matters."""
UNSEEN = 10.0
"""Singular value, in roundings, of a direction about which tables say too little."""
REFINEMENTS = 5


@dataclass(frozen=True)
class Rotation:
    """``y = matrix @ x``, and what is not known about it.

    Attributes
    ----------
    matrix
        Orthogonal, shape ``(d, d)``.
    directions
        Orthonormal columns in the second model's coordinates, ``(d, d)``.
    turns
        Variance of the turn that the fit may be off by between two of them, ``(d, d)``.
    undetermined
        Directions about which the tables say nothing.
    """

    matrix: Array
    directions: Array
    turns: Array
    undetermined: int

    @property
    def is_even(self) -> bool:
        """Whether all turns are known about as well (within a factor of 100)."""
        known = self.turns[self.turns > 0]
        return not known.size or bool(known.max() <= 1e4 * known.min())

    @property
    def spread(self) -> Array:
        """Root of a covariance that all coordinates share, for turns that are even."""
        return np.asarray(self.directions * np.sqrt(self.turns.mean(axis=0)))


class Tables:
    """Corresponding rows of two models, as a fit needs them."""

    def __init__(self, pairs: Pairs, width: int) -> None:
        self.pairs, self.width = pairs, width

    def _rows(self) -> Iterator[tuple[Noisy, Noisy, Array]]:
        """Rows of both, a few at a time, and what puts them in units of their rounding."""
        for a, b in self.pairs:
            for x, y in zip(a.parts(), b.parts(), strict=True):
                noise = (x.variance + y.variance).mean(axis=-1, keepdims=True)
                floor = np.square(y.value).mean(axis=-1, keepdims=True) * allowance(1.0) ** 2
                yield x, y, 1.0 / np.maximum(noise, np.maximum(floor, np.finfo(float).tiny))

    @once
    def moments(self) -> tuple[Array, Array]:
        """Sums of ``b^T a`` and ``a^T a`` over rows."""
        cross, information = np.zeros((2, self.width, self.width))
        for x, y, weight in self._rows():
            cross += (y.value * weight).T @ x.value
            information += (x.value * weight).T @ x.value
        return cross, information

    @once
    def triangle(self) -> tuple[Array, Array]:
        """Fewer rows of both with the same sums of products, ``(2 d, d)`` each."""
        found = np.zeros((0, 2 * self.width))
        for x, y, weight in self._rows():
            rows = np.concatenate([x.value, y.value], axis=1) * np.sqrt(weight)
            found = np.asarray(np.linalg.qr(np.concatenate([found, rows]), mode="r"))
        return found[:, : self.width], found[:, self.width :]

    def fitted(self, blocks: Sequence[Block], *, centred: bool, sign: float = 1.0) -> Rotation:
        """The rotations inside blocks that fit best, times a sign.

        Parameters
        ----------
        centred
            Whether every block keeps its vector of ones, as behind a LayerNorm.
        """
        shape = (self.width, self.width)
        matrix, directions, turns = np.zeros(shape), np.eye(self.width), np.zeros(shape)
        open_ = 0
        for rows, columns in blocks:
            inner, own, apart, unseen = self._block(rows, columns, centred, sign)
            matrix[np.ix_(rows, columns)] = sign * inner
            directions[np.ix_(rows, rows)] = own
            turns[np.ix_(rows, rows)] = apart
            open_ += unseen
        return Rotation(matrix, directions, turns, open_)

    def _block(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], centred: bool, sign: float
    ) -> tuple[Array, Array, Array, int]:
        size = len(rows)
        cross, information = self.moments
        cross = sign * cross[np.ix_(rows, columns)]
        if size == 1:
            keeps = centred or cross[0, 0] >= 0
            return np.full((1, 1), 1.0 if keeps else -1.0), np.eye(1), np.zeros((1, 1)), 0
        basis = ones_complement(size) if centred else np.eye(size)
        left, values, right = np.linalg.svd(basis.T @ cross @ basis)
        strength, own = np.linalg.eigh(basis.T @ information[np.ix_(columns, columns)] @ basis)
        inner: Array = left @ right
        # Below rounding of the products the polar factor is arbitrary.
        cut = max(self.width * 1e-14 * float(values[0]), UNSEEN**2)
        open_ = int((values <= cut).sum())
        cut = max(self.width * 1e-14 * float(strength[-1]), UNSEEN**2)
        faintest = strength[strength > cut].min(initial=strength[-1])
        if EPSILON * strength[-1] > SHARE * np.sqrt(max(faintest, 0.0)) or open_:
            one, other = self.triangle
            inner, sizes, own = _refined(one[:, columns] @ basis, sign * other[:, rows] @ basis)
            strength = np.square(sizes)
            cut = max((8 * size * EPSILON) ** 2 * float(strength.max()), UNSEEN**2)
            open_ = int((strength <= cut).sum())
        turns = _turns(strength, cut)
        if not centred:
            return inner, inner @ own, turns, open_
        whole = np.full((size, 1), size**-0.5)
        directions = np.concatenate([basis @ inner @ own, whole], axis=1)
        return basis @ inner @ basis.T + 1.0 / size, directions, np.pad(turns, (0, 1)), open_


def _turns(strength: Array, cut: float) -> Array:
    """Variances of turns between directions; two about which nothing is known count as none."""
    seen = np.maximum(strength[:, None], strength) > cut
    np.fill_diagonal(seen, False)
    total = strength[:, None] + strength
    return np.asarray(np.where(seen, 1.0 / np.where(seen, total, 1.0), 0.0))


def _refined(one: Array, other: Array) -> tuple[Array, Array, Array]:
    """Rotation with ``other = one @ rotation.T``, singular values of one, and its directions."""
    size = one.shape[1]
    both = np.asarray(np.linalg.qr(np.concatenate([one, other], axis=1), mode="r"))
    if len(both) < size:
        both = np.concatenate([both, np.zeros((size - len(both), 2 * size))])
    one, other = both[:size, :size], both[:size, size:]
    u, sizes, v = np.linalg.svd(one)
    cut = 8 * size * EPSILON * float(sizes[0])
    seen = sizes > cut
    # Least squares sees faint directions; the refinement then weighs them as they deserve.
    solved = (v.T * np.where(seen, 1.0 / np.where(seen, sizes, 1.0), 0.0)) @ (u.T @ other)
    left, _, right = np.linalg.svd(solved.T)
    inner: Array = left @ right
    total = np.square(sizes)[:, None] + np.square(sizes)
    known = seen[:, None] | seen
    for _ in range(REFINEMENTS):
        own = inner @ v.T
        apart = (other - one @ inner.T) @ own
        across = apart.T @ u
        turn = across * sizes - across.T * sizes[:, None]
        turn = np.where(known, turn / np.where(known, total, 1.0), 0.0)
        step = own @ turn @ own.T
        # A rotation near the identity (Cayley).
        eye = np.eye(size)
        inner = np.linalg.solve(eye - step / 2, (eye + step / 2) @ inner)
        left, _, right = np.linalg.svd(inner)
        inner = left @ right
        if float((np.abs(turn) * np.sqrt(total)).max(initial=0.0)) < SHARE:
            break
    return inner, sizes, v.T
