"""Rotations of the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters, View
from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry, multiply_axis, touched
from fiberscope.symmetry.tangent_map import (
    RELATIVE_CUT,
    Directions,
    TangentMap,
    Vector,
    reciprocal,
)


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

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """Directions ``K w`` of writers and ``diag(1/gain) K diag(gain) x`` of reader rows."""
        return _RotationTangents(self, parameters)


class _Turned:
    """One view that turns: its vectors as rows, seen through ``left`` and ``right`` factors.

    The direction is ``diag(left) K diag(right) x`` for every vector ``x``. Vectors lie in rows
    because that is how most weights are stored.
    """

    def __init__(
        self,
        slot: Slot,
        parameters: Parameters,
        left: NDArray[np.float64] | None = None,
        right: NDArray[np.float64] | None = None,
    ) -> None:
        self.slot = slot
        value = np.asarray(slot.view.read(parameters), dtype=np.float64)
        moved = np.moveaxis(value, slot.axis, -1)
        self.shape = moved.shape
        rows = moved.reshape(-1, moved.shape[-1])
        self.rows = rows if right is None else rows * right
        self.left = left

    def gram(self) -> NDArray[np.float64]:
        """Sum of ``x x^T`` over the vectors, after the right factor."""
        return self.rows.T @ self.rows

    def add(self, skew: NDArray[np.float64], directions: Directions) -> None:
        turn = skew if self.left is None else skew * self.left[:, None]
        window = self.slot.view.window(directions[self.slot.view.tensor])
        target = np.moveaxis(window, self.slot.axis, -1)
        target += (self.rows @ turn.T).reshape(self.shape)

    def pull(self, directions: Directions) -> NDArray[np.float64]:
        window = self.slot.view.window(directions[self.slot.view.tensor])
        along = np.moveaxis(window, self.slot.axis, -1).reshape(self.rows.shape)
        pulled = along.T @ self.rows
        return pulled if self.left is None else pulled * self.left[:, None]


class _RotationTangents(TangentMap):
    """Skew-symmetric ``K``, the sum of ``B_i K_i B_i^T`` over the bases.

    Without gains the Gram matrix is the Lyapunov map ``K -> K M + M K``, with ``M`` the sum of
    ``x x^T`` over everything that turns. With gains each norm weighs the left side in its own way:
    ``solve`` then puts the mean weight in its place and is approximate.
    """

    def __init__(self, group: ResidualRotation, parameters: Parameters) -> None:
        self.generators, self.bases = group.generators, group.bases
        weighed = any(norm.gain is not None or norm.bias is not None for norm in group.norms)
        self.exact = len(group.bases) == 1 and not weighed
        width = group.bases[0].shape[0]
        self._turned = [_Turned(slot, parameters) for slot in group.writers]
        for norm in group.norms:
            gain = np.ones(width) if norm.gain is None else norm.gain.read(parameters)
            self._turned += [
                _Turned(slot, parameters, 1.0 / gain, np.asarray(gain)) for slot in norm.readers
            ]
            if norm.bias is not None:
                bias = Slot(norm.bias, 0)
                self._turned.append(_Turned(bias, parameters, np.asarray(gain), 1.0 / gain))
        total = np.zeros((width, width))
        for turned in self._turned:
            weight = 1.0 if turned.left is None else float(np.square(turned.left).mean())
            total += weight * turned.gram()
        self._factors = []
        for basis in self.bases:
            values, vectors = np.linalg.eigh(basis.T @ total @ basis)
            inverse = reciprocal(values[:, None] + values[None, :], RELATIVE_CUT)
            self._factors.append((vectors, inverse))

    def _skew(self, vector: Vector) -> list[NDArray[np.float64]]:
        """Skew matrices of every basis, from the entries above the diagonal, row by row."""
        parts, start = [], 0
        for basis in self.bases:
            size = basis.shape[1]
            rows, columns = np.triu_indices(size, 1)
            part = np.zeros((size, size))
            part[rows, columns] = vector[start : start + len(rows)]
            parts.append(part - part.T)
            start += len(rows)
        return parts

    def _upper(self, parts: list[NDArray[np.float64]]) -> Vector:
        return np.concatenate([part[np.triu_indices(len(part), 1)] for part in parts])

    def add(self, vector: Vector, directions: Directions) -> None:
        """Add the directions of the skew matrix of ``vector``."""
        parts = self._skew(vector)
        skew = sum(
            (basis @ part @ basis.T for basis, part in zip(self.bases, parts, strict=True)),
            start=np.zeros((len(self.bases[0]),) * 2),
        )
        for turned in self._turned:
            turned.add(skew, directions)

    def pull(self, directions: Directions) -> Vector:
        """Skew part of the sums of ``direction x^T``."""
        width = len(self.bases[0])
        total = np.zeros((width, width))
        for turned in self._turned:
            total += turned.pull(directions)
        inside = [basis.T @ total @ basis for basis in self.bases]
        return self._upper([part - part.T for part in inside])

    def solve(self, vector: Vector) -> Vector:
        """Solve the Lyapunov equation; exact without gains and with one basis."""
        solved = []
        for part, (vectors, inverse) in zip(self._skew(vector), self._factors, strict=True):
            # The coordinates of a skew matrix are half of its entries, and so is the Gram map.
            solved.append(vectors @ ((vectors.T @ part @ vectors) * inverse) @ vectors.T)
        return self._upper(solved)
