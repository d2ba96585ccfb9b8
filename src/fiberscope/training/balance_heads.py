"""Balancing heads: the elements of their changes of basis that give the smallest norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.symmetry import GeneralLinear, RotaryCommutant
from fiberscope.training.balance_factors import FactorMove, balance_factors

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class HeadMove:
    """An element of a head's change of basis, a cut of dead rows, and a rotation.

    Attributes
    ----------
    symmetry
        The acting group, from the ledger.
    element
        First move, shape ``(copies, r, r)``.
    dead
        Rows cut after it, shape ``(copies, r)``; all False for heads of full rank.
    rotation
        Last move, orthogonal, shape ``(copies, r, r)``.
    """

    symmetry: GeneralLinear
    element: NDArray[np.float64]
    dead: NDArray[np.bool_]
    rotation: NDArray[np.float64]

    @property
    def cut(self) -> int:
        """Number of rows cut."""
        return int(self.dead.sum())

    def without_cuts(self) -> HeadMove:
        """The same move, but heads with dead rows rest."""
        rests = np.any(self.dead, axis=1).reshape(-1, 1, 1)
        identity = self.symmetry.identity()
        return HeadMove(
            self.symmetry,
            np.where(rests, identity, self.element),
            np.zeros_like(self.dead),
            np.where(rests, identity, self.rotation),
        )

    def apply(self, parameters: Arrays) -> None:
        """Move in place."""
        if not self.cut:
            self.symmetry.apply(self.symmetry.compose(self.element, self.rotation), parameters)
            return
        self.symmetry.apply(self.element, parameters)
        self._cut(parameters)
        self.symmetry.apply(self.rotation, parameters)

    def carry_covectors(self, covectors: Arrays, before: Arrays) -> None:
        """Carry gradients along: they move by the inverse transpose, and vanish where rows are cut.

        Both factors of a cut row are zero, and the gradient of each is proportional to the other.
        """
        transposed = np.linalg.inv(self.element).swapaxes(-1, -2)
        self.symmetry.apply(transposed, covectors)
        self._cut(covectors)
        self.symmetry.apply(self.rotation, covectors)

    def _cut(self, arrays: Arrays) -> None:
        if not self.cut:
            return
        for slot in self.symmetry.slots:
            value = slot.view.read(arrays)
            axis = slot.axis % value.ndim
            shape = [1] * value.ndim
            shape[0], shape[axis] = self.dead.shape
            slot.view.write(arrays, np.where(self.dead.reshape(shape), 0.0, value))


def stacked(symmetry: GeneralLinear, parameters: Arrays, *, dual: bool) -> list[NDArray[Any]]:
    """The factor of every copy, shape ``(r, n)``: all plain (or dual) slots side by side."""
    factors: list[list[NDArray[Any]]] = [[] for _ in range(symmetry.copies)]
    for slot in symmetry.slots:
        if slot.dual is dual:
            value = np.moveaxis(slot.view.read(parameters), slot.axis, 1)
            for copy, part in enumerate(value):
                factors[copy].append(part.reshape(symmetry.width, -1))
    return [np.concatenate(parts, axis=1).astype(np.float64) for parts in factors]


@dataclass(frozen=True)
class _Block:
    """A part of the rows on which the group is a full linear group, real or complex."""

    width: int
    read: Callable[[NDArray[Any]], NDArray[Any]]
    write: Callable[[NDArray[Any], NDArray[Any]], None]
    rows: Callable[[int], NDArray[np.int64]]
    """Rows of the head that a row of the block stands for, from a given one on."""


def blocks(symmetry: GeneralLinear) -> list[_Block]:
    """The blocks of a group: one real one, or the planes of a frequency as complex rows."""
    if not isinstance(symmetry, RotaryCommutant):
        return [_real(np.arange(symmetry.width))]
    found = [_complex(planes) for planes in symmetry.blocks]
    if len(symmetry.unrotated):
        found.append(_real(symmetry.unrotated))
    return found


def _real(rows: NDArray[np.int64]) -> _Block:
    def write(target: NDArray[Any], matrix: NDArray[Any]) -> None:
        target[np.ix_(rows, rows)] = matrix

    return _Block(len(rows), lambda factor: factor[rows], write, lambda start: rows[start:])


def _complex(planes: NDArray[np.int64]) -> _Block:
    first, second = planes[:, 0], planes[:, 1]

    def write(target: NDArray[Any], matrix: NDArray[Any]) -> None:
        # a + ib acts on the pair (x_first, x_second) as [[a, -b], [b, a]].
        target[np.ix_(first, first)] = matrix.real
        target[np.ix_(second, second)] = matrix.real
        target[np.ix_(second, first)] = matrix.imag
        target[np.ix_(first, second)] = -matrix.imag

    return _Block(
        len(planes),
        lambda factor: factor[first] + 1j * factor[second],
        write,
        lambda start: planes[start:].ravel(),
    )


def head_move(symmetry: GeneralLinear, moves: list[list[FactorMove]]) -> HeadMove:
    """Assemble the moves of every copy and block to one element."""
    element, rotation = symmetry.identity(), symmetry.identity()
    dead = np.zeros((symmetry.copies, symmetry.width), dtype=bool)
    for copy, by_block in enumerate(moves):
        element[copy], rotation[copy] = 0.0, 0.0
        for block, move in zip(blocks(symmetry), by_block, strict=True):
            block.write(element[copy], move.matrix)
            block.write(rotation[copy], move.rotation)
            dead[copy, block.rows(move.live)] = True
    return HeadMove(symmetry, element, dead, rotation)


def balance_heads(symmetry: GeneralLinear, parameters: Arrays) -> HeadMove:
    """Balance every copy of a change of basis: queries against keys, or values against outputs.

    With rotary positions the group is smaller (rotations and scalings of each plane), and only
    what it can move is balanced: the norms of the planes, and their mutual products where planes
    share a frequency. The queries of a group count together against its one key.
    """
    lefts = stacked(symmetry, parameters, dual=False)
    rights = stacked(symmetry, parameters, dual=True)
    moves = [
        [balance_factors(block.read(left), block.read(right)) for block in blocks(symmetry)]
        for left, right in zip(lefts, rights, strict=True)
    ]
    return head_move(symmetry, moves)


def head_moments(
    symmetry: GeneralLinear, parameters: Arrays
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both sides of the balance of every copy: what the group can move of ``A A^T`` and ``B B^T``.

    Half the derivative of the squared norm along the group's directions is their difference, which
    gradient flow conserves.

    Returns
    -------
    left, right : ndarray of float64
        All copies and blocks, flattened; complex blocks as real and imaginary parts.
    """
    sides = []
    for dual in (False, True):
        parts = []
        for factor in stacked(symmetry, parameters, dual=dual):
            for block in blocks(symmetry):
                piece = block.read(factor)
                gram = piece @ piece.conj().T
                parts += [np.real(gram).ravel(), np.imag(gram).ravel()]
        sides.append(np.concatenate(parts))
    return sides[0], sides[1]
