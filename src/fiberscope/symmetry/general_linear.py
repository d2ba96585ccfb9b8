"""Changes of basis: GL(r), in independent copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters
from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, multiply_axis, touched
from fiberscope.symmetry.tangent_map import (
    RELATIVE_CUT,
    Directions,
    TangentMap,
    Vector,
    reciprocal,
)


class GeneralLinear(Symmetry):
    """GL(width), one independent copy per entry of the slots' leading axis.

    Plain slots transform as ``x -> M x`` along their axis, dual slots as ``x -> M^-T x``.
    For the queries and keys of one head: ``(Q, K) -> (M Q, M^-T K)``, with ``Q^T K`` fixed.

    Parameters
    ----------
    name
        Plain words for reports.
    slots
        Where it acts; every view has ``copies`` entries on axis 0 and ``width`` on the slot axis.
    """

    def __init__(self, name: str, slots: tuple[Slot, ...], *, kind: Kind = Kind.EXACT) -> None:
        self.name = name
        self.kind = kind
        self.slots = slots
        first = slots[0]
        self.copies, self.width = first.view.shape[0], first.view.shape[first.axis]
        for slot in slots:
            shape = slot.view.shape
            if (shape[0], shape[slot.axis]) != (self.copies, self.width) or slot.axis % len(
                shape
            ) == 0:
                raise ValueError(f"{name}: {slot.view.tensor} does not fit GL({self.width})")

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*(slot.view for slot in self.slots))

    @property
    def generators(self) -> int:
        """``copies * width^2``."""
        return self.copies * self.width**2

    def identity(self) -> NDArray[np.float64]:
        """Identity matrices, shape ``(copies, width, width)``."""
        return np.broadcast_to(np.eye(self.width), (self.copies, self.width, self.width)).copy()

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Well-conditioned random matrices: orthogonal times singular values in [1/2, 2]."""
        shape = (self.copies, self.width, self.width)
        left = np.linalg.qr(rng.standard_normal(shape))[0]
        right = np.linalg.qr(rng.standard_normal(shape))[0]
        stretch = 2.0 ** rng.uniform(-1, 1, (self.copies, 1, self.width))
        return (left * stretch) @ right

    def compose(self, first: Element, second: Element) -> Element:
        """Act as ``first``, then ``second``: the matrix product ``second @ first``."""
        return second @ first

    def inverse(self, element: Element) -> Element:
        """Inverse matrices."""
        return np.linalg.inv(element)

    def along(self, generator: int, step: complex) -> NDArray[np.complex128]:
        """``I + step E_ij`` in one copy."""
        element = self.identity().astype(np.complex128)
        copy, rest = divmod(generator, self.width**2)
        row, column = divmod(rest, self.width)
        element[copy, row, column] += step
        return element

    def matrix(self, element: Element) -> NDArray[Any]:
        """Real (or complex-stepped) matrices of the element, ``(copies, width, width)``."""
        return np.asarray(element)

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place on the slots."""
        matrix = self.matrix(element)
        dual = np.linalg.inv(matrix).swapaxes(-1, -2)
        for slot in self.slots:
            value = slot.view.read(parameters)
            moved = multiply_axis(dual if slot.dual else matrix, value, slot.axis, batched=True)
            slot.view.write(parameters, moved)

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """``S X`` on plain slots and ``-S^T X`` on dual ones; the Gram map is Sylvester's."""
        return GeneralLinearTangents(self, parameters)


class GeneralLinearTangents(TangentMap):
    """Directions ``S X`` on plain slots and ``-S^T X`` on dual ones, for matrices ``S``.

    With ``A`` and ``B`` the sums of ``X X^T`` over plain and dual slots, the Gram matrix is
    ``S -> S A + B S``, inverted by the eigenvectors of both.

    Attributes
    ----------
    plain, dual
        ``A`` and ``B``, shape ``(copies, width, width)``.
    """

    def __init__(self, group: GeneralLinear, parameters: Parameters) -> None:
        self.copies, self.width = group.copies, group.width
        self.generators = group.generators
        self._slots = []
        square = (self.copies, self.width, self.width)
        self.plain, self.dual = np.zeros(square), np.zeros(square)
        for slot in group.slots:
            moved = np.moveaxis(np.asarray(slot.view.read(parameters)), slot.axis, 1)
            rows = np.ascontiguousarray(moved, dtype=np.float64)
            rows = rows.reshape(self.copies, self.width, -1)
            if slot.dual:
                self.dual += rows @ rows.swapaxes(1, 2)
            else:
                self.plain += rows @ rows.swapaxes(1, 2)
            self._slots.append((slot, rows, moved.shape))

    @property
    def sides(self) -> tuple[Vector, Vector]:  # type: ignore[override]
        """Coordinates of ``A`` and of ``B``."""
        return self.coordinates(self.plain), self.coordinates(self.dual)

    def matrices(self, vector: Vector) -> NDArray[np.float64]:
        """Matrices ``S`` of a vector of generator coordinates, ``(copies, width, width)``."""
        return vector.reshape(self.copies, self.width, self.width)

    def coordinates(self, matrices: NDArray[np.float64]) -> Vector:
        """Transpose of ``matrices``."""
        return matrices.reshape(-1)

    def add(self, vector: Vector, directions: Directions) -> None:
        """Add ``S X`` and ``-S^T X``."""
        matrices = self.matrices(vector)
        turned = -matrices.swapaxes(1, 2)
        for slot, rows, shape in self._slots:
            window = slot.view.window(directions[slot.view.tensor])
            moved = (turned if slot.dual else matrices) @ rows
            target = np.moveaxis(window, slot.axis, 1)
            target += moved.reshape(shape)

    def pull(self, directions: Directions) -> Vector:
        """Sums of ``V X^T`` over plain slots less those of ``X V^T`` over dual ones."""
        total = np.zeros((self.copies, self.width, self.width))
        for slot, rows, _ in self._slots:
            window = slot.view.window(directions[slot.view.tensor])
            along = np.moveaxis(window, slot.axis, 1).reshape(self.copies, self.width, -1)
            if slot.dual:
                total -= rows @ along.swapaxes(1, 2)
            else:
                total += along @ rows.swapaxes(1, 2)
        return self.coordinates(total)

    def solve(self, vector: Vector) -> Vector:
        """Solve the Sylvester equation ``S A + B S = C`` (minimum norm); exact."""
        return self._invert(vector.reshape(self.copies, -1)).reshape(-1)

    @cached_property
    def _invert(self) -> Invert:
        return sylvester(self.plain, self.dual)


Invert = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Solve for coordinates of shape ``(copies, generators of one copy)``."""


def sylvester(plain: NDArray[np.float64], dual: NDArray[np.float64]) -> Invert:
    """Minimum-norm solution of ``S A + B S = C`` by two eigendecompositions.

    ``A`` and ``B`` are symmetric positive semidefinite, shape ``(copies, r, r)``.
    """
    right, right_vectors = np.linalg.eigh(plain)
    left, left_vectors = np.linalg.eigh(dual)
    sums = left[:, :, None] + right[:, None, :]
    inverse = np.stack([reciprocal(block, RELATIVE_CUT) for block in sums])

    def invert(given: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = left_vectors.swapaxes(1, 2) @ given.reshape(inverse.shape) @ right_vectors
        solved = left_vectors @ (seen * inverse) @ right_vectors.swapaxes(1, 2)
        return solved.reshape(given.shape)

    return invert
