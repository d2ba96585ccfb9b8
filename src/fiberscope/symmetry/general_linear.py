"""Changes of basis: GL(r), in independent copies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, multiply_axis, touched


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
