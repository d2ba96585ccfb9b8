"""Rotations of the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import View
from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, multiply_axis, touched


@dataclass(frozen=True)
class NormReaders:
    """The linear maps that read one norm: their input axes turn, seen through the gain."""

    gain: View | None
    bias: View | None
    readers: tuple[Slot, ...]


def ones_complement(width: int) -> NDArray[np.float64]:
    """Orthonormal basis of the vectors that sum to zero, shape ``(width, width - 1)`` (Helmert)."""
    basis = np.zeros((width, width - 1))
    for column in range(1, width):
        basis[:column, column - 1] = 1.0
        basis[column, column - 1] = -float(column)
        basis[:, column - 1] /= np.sqrt(column * (column + 1.0))
    return basis


class ResidualRotation(Symmetry):
    """Rotate what is written, and turn every reader back through its gain.

    With normalised stream ``x`` and reader ``W (gain * x + bias)``: writers become ``R w``, a
    reader ``W diag(gain) R^T diag(1/gain)`` and a norm's bias ``diag(gain) R diag(1/gain) bias``.
    The rotations are ``R = 1 + sum_i B_i (R_i - 1) B_i^T`` with ``R_i`` in O(m_i), for mutually
    orthogonal bases ``B_i`` of shape ``(width, m_i)``: everything for RMSNorm, the vectors that
    sum to zero for LayerNorm, blocks of equal final gains for tied embeddings.

    An element is a tuple of the matrices ``R_i``.
    """

    def __init__(
        self,
        name: str,
        bases: Sequence[NDArray[np.float64]],
        writers: Sequence[Slot],
        norms: Sequence[NormReaders],
        *,
        kind: Kind = Kind.EXACT,
    ) -> None:
        self.name, self.kind = name, kind
        self.bases = tuple(bases)
        self.writers, self.norms = tuple(writers), tuple(norms)

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        views = [slot.view for slot in self.writers]
        for norm in self.norms:
            views += [slot.view for slot in norm.readers]
            if norm.bias is not None:
                views.append(norm.bias)
        return touched(*views)

    @property
    def generators(self) -> int:
        """Sum of ``m (m - 1) / 2`` over the bases."""
        return sum(b.shape[1] * (b.shape[1] - 1) // 2 for b in self.bases)

    def identity(self) -> tuple[NDArray[np.float64], ...]:
        """Identity matrices."""
        return tuple(np.eye(b.shape[1]) for b in self.bases)

    def random(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], ...]:
        """Random orthogonal matrices (Haar measure)."""
        drawn = []
        for basis in self.bases:
            q, r = np.linalg.qr(rng.standard_normal((basis.shape[1],) * 2))
            drawn.append(q * np.where(np.diagonal(r) < 0, -1.0, 1.0))
        return tuple(drawn)

    def compose(self, first: Element, second: Element) -> Element:
        """Rotate by ``first``, then by ``second``."""
        return tuple(b @ a for a, b in zip(first, second, strict=True))

    def inverse(self, element: Element) -> Element:
        """Transposes."""
        return tuple(part.T for part in element)

    def along(self, generator: int, step: complex) -> Element:
        """``1 + step (E_ij - E_ji)`` in one block (orthogonal to first order in ``step``)."""
        element = [np.eye(b.shape[1], dtype=np.complex128) for b in self.bases]
        for part in element:
            count = part.shape[0] * (part.shape[0] - 1) // 2
            if generator < count:
                rows, columns = np.triu_indices(part.shape[0], 1)
                i, j = rows[generator], columns[generator]
                part[i, j] += step
                part[j, i] -= step
                break
            generator -= count
        return tuple(element)

    def rotation(self, element: Element) -> NDArray[Any]:
        """Whole rotation ``R``, shape ``(width, width)``."""
        width = self.bases[0].shape[0]
        total: NDArray[Any] = np.eye(width)
        for basis, part in zip(self.bases, element, strict=True):
            total = total + basis @ (part - np.eye(part.shape[0])) @ basis.T
        return total

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place on writers, readers and norm biases."""
        rotation = self.rotation(element)
        for norm in self.norms:
            gain = np.ones(len(rotation)) if norm.gain is None else norm.gain.read(parameters)
            for slot in norm.readers:
                # W diag(gain) R^T diag(1/gain): as a matrix on the input axis, its transpose.
                back = rotation * gain / gain[:, None]
                value = slot.view.read(parameters)
                slot.view.write(parameters, multiply_axis(back, value, slot.axis, batched=False))
            if norm.bias is not None:
                seen = rotation * gain[:, None] / gain
                norm.bias.write(parameters, seen @ norm.bias.read(parameters))
        for slot in self.writers:
            value = slot.view.read(parameters)
            slot.view.write(parameters, multiply_axis(rotation, value, slot.axis, batched=False))
