"""Two symmetries that only polynomial networks have."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import View
from fiberscope.symmetry import Element, ScaledSlot, Scaling, Symmetry


class QuadricRotation(Symmetry):
    """Rotations of the last hidden layer of ``x -> sum_j w_j (row_j . x)^2``, one output.

    Only the quadratic form ``M = R^T diag(w) R`` is seen, with the rows (and biases) of the last
    hidden layer in ``R``. A skew matrix ``K`` acts by the Cayley transform
    ``R -> (1 - X)^-1 (1 + X) R`` with ``X = diag(w)^-1 K``, which keeps ``M`` and ``w`` and is
    rational, so it moves exact weights to exact weights. Rows with ``w_j = 0`` stay.

    An element is a tuple of skew matrices that act one after another: composition joins the
    tuples, the inverse reverses them with opposite signs, and the identity is empty.
    """

    def __init__(self, name: str, rows: View, weights: View, biases: View | None) -> None:
        self.name = name
        self.rows, self.weights, self.biases = rows, weights, biases
        self.size = rows.shape[0]

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        if self.biases is None:
            return (self.rows.tensor,)
        return (self.rows.tensor, self.biases.tensor)

    @property
    def generators(self) -> int:
        """``b (b - 1) / 2`` for ``b`` hidden neurons."""
        return self.size * (self.size - 1) // 2

    def identity(self) -> Element:
        """No rotation."""
        return ()

    def random(self, rng: np.random.Generator) -> Element:
        """One skew matrix with entries of size about a quarter."""
        upper = np.triu(rng.standard_normal((self.size, self.size)) / 4, 1)
        return (upper - upper.T,)

    def compose(self, first: Element, second: Element) -> Element:
        """Rotate by ``first``, then by ``second``."""
        return (*first, *second)

    def inverse(self, element: Element) -> Element:
        """The opposite rotations in reverse order."""
        return tuple(-part for part in reversed(element))

    def along(self, generator: int, step: complex) -> Element:
        """``step (E_ij - E_ji)``."""
        rows, columns = np.triu_indices(self.size, 1)
        skew = np.zeros((self.size, self.size), dtype=np.complex128)
        skew[rows[generator], columns[generator]] = step
        return (skew - skew.T,)

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place on the rows (and biases) of the last hidden layer."""
        weights = self.weights.read(parameters).reshape(-1)
        kept = np.array([bool(w != 0) for w in weights])
        for skew in element:
            rows = self.rows.read(parameters)
            if self.biases is not None:
                rows = np.concatenate([rows, self.biases.read(parameters)[:, None]], axis=1)
            turn = skew[np.ix_(kept, kept)] / weights[kept][:, None]
            one = np.eye(len(turn), dtype=np.int64)
            moved = rows.copy()
            moved[kept] = solve(one - turn, (one + turn) @ rows[kept])
            self.rows.write(parameters, moved[:, : self.rows.shape[1]])
            if self.biases is not None:
                self.biases.write(parameters, moved[:, -1])


class ShiftedPowerScaling(Scaling):
    """Rescalings of the neurons of a layer with activation ``a (z - c)^r + e`` and biases.

    ``W -> s W``, ``b -> s (b - c) + c``, outgoing ``V -> V / s^r``; the next bias takes up the
    constant, ``b' -> b' + e sum_j V_j (1 - s_j^-r)``.
    """

    def __init__(
        self,
        name: str,
        rows: View,
        biases: View,
        columns: View,
        next_biases: View,
        *,
        degree: int,
        centre: Fraction,
        constant: Fraction,
    ) -> None:
        slots = (ScaledSlot(rows, 0), ScaledSlot(columns, 1, power=-degree))
        super().__init__(name, rows.shape[0], slots)
        self.biases, self.columns, self.next_biases = biases, columns, next_biases
        self.degree, self.centre, self.constant = degree, centre, constant

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return (*super().touches, self.biases.tensor, self.next_biases.tensor)

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place."""
        exact = np.asarray(element).dtype == object
        centre: Any = self.centre if exact else float(self.centre)
        constant: Any = self.constant if exact else float(self.constant)
        factor = np.asarray(element)
        columns = self.columns.read(parameters)
        freed = columns @ (1 - factor**-self.degree)
        self.next_biases.write(parameters, self.next_biases.read(parameters) + constant * freed)
        biases = self.biases.read(parameters)
        self.biases.write(parameters, factor * (biases - centre) + centre)
        super().apply(element, parameters)


def solve(matrix: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Solve ``matrix x = right``, exactly for object arrays of fractions.

    Raises
    ------
    ZeroDivisionError
        If the matrix is singular (exact arithmetic).
    """
    if np.result_type(matrix, right).kind != "O":
        return np.asarray(np.linalg.solve(matrix, right))
    size = len(matrix)
    work = np.concatenate([matrix, right], axis=1).astype(object)
    for column in range(size):
        pivots = [row for row in range(column, size) if work[row, column] != 0]
        if not pivots:
            raise ZeroDivisionError("the matrix is singular")
        work[[column, pivots[0]]] = work[[pivots[0], column]]
        work[column] = work[column] / Fraction(work[column, column])
        for row in range(size):
            if row != column and work[row, column] != 0:
                work[row] = work[row] - work[row, column] * work[column]
    return work[:, size:]
