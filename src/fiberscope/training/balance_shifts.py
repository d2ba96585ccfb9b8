"""Balancing biases: dead key biases, values folded into output biases, parallel output biases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.ledger.rules.constants import output_map, unrotated_index
from fiberscope.parameters import View
from fiberscope.symmetry import Translation
from fiberscope.training.balance_heads import Arrays


@dataclass(frozen=True)
class ShiftMove:
    """A shift of biases, and how gradients move with it.

    Attributes
    ----------
    symmetry
        The acting group, from the ledger.
    element : ndarray of float64
        The shift.
    attention
        For value biases, the attention whose outputs the shift passes through; None for shifts
        whose coefficients do not depend on the weights, which leave gradients as they are.
    into
        For value biases, the output bias that takes the constant; None where none does.
    """

    symmetry: Translation
    element: NDArray[np.float64]
    attention: Attention | None = None
    into: View | None = None
    cut: int = 0

    def apply(self, parameters: Arrays) -> None:
        """Move in place."""
        self.symmetry.apply(self.element, parameters)

    def carry_covectors(self, covectors: Arrays, before: Arrays) -> None:
        """Carry gradients along, given the parameters before the move.

        The constant that leaves the output bias is ``W x``, and W is a sum of outputs: so each
        output row gains its entry of x times the gradient by the constant.
        """
        if self.attention is None:
            return
        a = self.attention
        assert a.value_bias is not None
        if self.into is not None:
            shift, constant = self.element, self.into.read(covectors)
        else:
            moved = self.symmetry.act(self.element, before)
            shift = a.value_bias.read(moved) - a.value_bias.read(before)
            seen = a.value_bias.read(covectors).reshape(-1)
            constant = np.linalg.lstsq(output_map(a, before).T, seen, rcond=None)[0]
        rows = shift.reshape(a.groups, 1, a.value_width, 1)
        a.output.write(covectors, a.output.read(covectors) + rows * constant)


def key_shift(symmetry: Translation, attention: Attention, parameters: Arrays) -> ShiftMove:
    """Take the dead part of the key bias to zero: the rows that carry no position."""
    assert attention.key_bias is not None
    rows = attention.key_bias.read(parameters)[:, unrotated_index(attention)]
    return ShiftMove(symmetry, -rows.astype(np.float64))


def parallel_shift(
    symmetry: Translation, biases: tuple[View, ...], parameters: Arrays
) -> ShiftMove:
    """Share the sum of one step's output biases equally."""
    values = np.array([bias.read(parameters) for bias in biases], dtype=np.float64)
    return ShiftMove(symmetry, values.mean(axis=0) - values[1:])


def kernel_shift(
    symmetry: Translation, attention: Attention, shift: NDArray[np.float64], parameters: Arrays
) -> ShiftMove:
    """Without an output bias: the element that shifts the value bias by a given ``(G s,)``.

    The shift must lie among the constants that the outputs send to nothing anyone sees.
    """
    assert attention.value_bias is not None
    basis = np.array(
        [
            dict(symmetry.increments(parameters, unit))[attention.value_bias].reshape(-1)
            for unit in np.eye(symmetry.generators)
        ]
    )
    element = np.linalg.lstsq(basis.T, shift, rcond=None)[0]
    return ShiftMove(symmetry, element, attention)
