"""The tangent directions of a group as a linear map: from generators to parameters and back.

``Symmetry.tangents`` lists the directions one by one, which is exact and simple but needs a full
array for each. A tangent map applies all of them at once, in the time of reading the weights: what
iterative methods need. Groups give it in closed form in their own files; the default here is the
list itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import ParameterSpace, View

Vector = NDArray[np.float64]
Directions = dict[str, NDArray[np.float64]]
"""Named arrays of the shapes of the parameters, float64 and contiguous."""

RELATIVE_CUT = 1e-13
"""Eigenvalues of a Gram matrix below this share of its largest count as zero: they belong to
generators that move nothing (stabilizers), which no direction in the span needs."""


WELL_CONDITIONED = 1e-8
"""Least ratio of squared Cholesky pivots at which a Gram matrix is inverted directly."""


class TangentMap(ABC):
    """The linear map ``T`` from generator coordinates to directions, at fixed parameters.

    Column ``i`` is row ``i`` of ``Symmetry.tangents``.

    Attributes
    ----------
    generators
        Number of columns.
    exact
        Whether ``solve`` inverts the Gram matrix on its range to rounding.
    sides
        Where two sides are traded against each other: the coordinates of ``T^T theta`` that each
        contributes, whose difference gradient flow conserves (no offsets). None elsewhere.
    """

    generators: int
    exact: bool = True
    sides: tuple[Vector, Vector] | None = None

    @abstractmethod
    def add(self, vector: Vector, directions: Directions) -> None:
        """Add ``T vector`` into named arrays, in place; ``vector`` has shape ``(generators,)``."""

    @abstractmethod
    def pull(self, directions: Directions) -> Vector:
        """Transpose: ``T^T directions``, shape ``(generators,)``."""

    @abstractmethod
    def solve(self, vector: Vector) -> Vector:
        """Apply a symmetric, positive (semi)definite inverse of ``T^T T``, exact or approximate."""


class ListedTangents(TangentMap):
    """The default: the rows of ``Symmetry.tangents`` over the touched tensors, stored."""

    def __init__(self, rows: NDArray[np.float64], space: ParameterSpace) -> None:
        self.rows, self.space, self.generators = rows, space, len(rows)
        self._inverse = pseudo_inverse(rows @ rows.T)

    def add(self, vector: Vector, directions: Directions) -> None:
        """Add the sum of the rows."""
        for name, part in self.space.parameters(vector @ self.rows).items():
            directions[name] += part

    def pull(self, directions: Directions) -> Vector:
        """Inner products with the rows."""
        return self.rows @ self.space.vector({name: directions[name] for name in self.space.shapes})

    def solve(self, vector: Vector) -> Vector:
        """Apply the pseudo-inverse of the Gram matrix."""
        return self._inverse @ vector


class Term:
    """A part of a tangent map that lands on one view: a linear function and its transpose.

    ``forward`` takes the coordinates of the generators ``part`` (all by default) to an array that
    broadcasts to the view, ``transpose`` an array of the view's shape back to as many numbers.
    """

    def __init__(
        self,
        view: View,
        forward: Callable[[Vector], NDArray[Any]],
        transpose: Callable[[NDArray[Any]], Any],
        part: slice = slice(None),
    ) -> None:
        self.view, self.forward, self.transpose, self.part = view, forward, transpose, part


class SumOfTerms(TangentMap):
    """A tangent map written as terms, with its Gram matrix (full, or its diagonal)."""

    def __init__(self, generators: int, terms: Sequence[Term], gram: NDArray[Any] | float) -> None:
        self.generators, self.terms = generators, tuple(terms)
        gram = np.asarray(gram, dtype=np.float64)
        self._inverse = inverse(gram) if gram.ndim == 2 else reciprocal(gram)

    def add(self, vector: Vector, directions: Directions) -> None:
        """Add every term into its view."""
        for term in self.terms:
            window = term.view.window(directions[term.view.tensor])
            window += term.forward(vector[term.part])

    def pull(self, directions: Directions) -> Vector:
        """Sum of the transposed terms."""
        total = np.zeros(self.generators)
        for term in self.terms:
            window = term.view.window(directions[term.view.tensor])
            total[term.part] += np.asarray(term.transpose(window)).reshape(-1)
        return total

    def solve(self, vector: Vector) -> Vector:
        """Apply the pseudo-inverse of the Gram matrix."""
        if self._inverse.ndim == 2:
            return self._inverse @ vector
        return self._inverse * vector


def reciprocal(values: NDArray[Any], cut: float = 0.0) -> NDArray[np.float64]:
    """Reciprocals of nonnegative numbers; zero where they are at most ``cut`` of the largest.

    Sums of squares need no cut; eigenvalues carry the rounding of the largest.
    """
    values = np.asarray(values, dtype=np.float64)
    kept = values > cut * values.max(initial=0.0)
    return np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)


def inverse(gram: NDArray[Any]) -> NDArray[np.float64]:
    """Inverse of a symmetric positive matrix by Cholesky, or its pseudo-inverse if it is singular.

    The pivots of a Cholesky factor tell a singular matrix apart well enough: these Gram matrices
    are the identity plus squares, unless directions vanish altogether.
    """
    from scipy.linalg.lapack import dpotrf, dpotri

    if not np.isfinite(gram).all():
        return np.full(gram.shape, np.nan)
    factor, failed = dpotrf(gram, lower=1)
    pivots = np.diagonal(factor)
    if failed or pivots.min() ** 2 <= WELL_CONDITIONED * pivots.max() ** 2:
        return pseudo_inverse(gram)
    lower, _ = dpotri(factor, lower=1)
    whole: NDArray[np.float64] = np.tril(lower) + np.tril(lower, -1).T
    return whole


def pseudo_inverse(gram: NDArray[Any]) -> NDArray[np.float64]:
    """Pseudo-inverse of a symmetric positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(gram)
    return (vectors * reciprocal(values, RELATIVE_CUT)) @ vectors.T
