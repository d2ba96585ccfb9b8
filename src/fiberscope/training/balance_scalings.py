"""Balancing scalings: neurons whose rows and columns carry factors that cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from fiberscope.symmetry import ScaledSlot, Scaling
from fiberscope.training.balance_heads import Arrays


@dataclass(frozen=True)
class ScalingMove:
    """Elements of the scalings of one layer's neurons, and the neurons that are cut.

    Attributes
    ----------
    symmetries
        The acting groups, all on the same neurons.
    elements
        One array of factors each, shape ``(neurons,)``.
    dead
        Neurons one of whose factors is zero: all the factors are cut.
    """

    symmetries: tuple[Scaling, ...]
    elements: tuple[NDArray[np.float64], ...]
    dead: NDArray[np.bool_]

    @property
    def cut(self) -> int:
        """Number of neurons cut."""
        return int(self.dead.sum())

    def without_cuts(self) -> ScalingMove:
        """The same move, but dead neurons rest."""
        elements = tuple(np.where(self.dead, 1.0, element) for element in self.elements)
        return ScalingMove(self.symmetries, elements, np.zeros_like(self.dead))

    def apply(self, parameters: Arrays) -> None:
        """Move in place."""
        for symmetry, element in zip(self.symmetries, self.elements, strict=True):
            symmetry.apply(element, parameters)
        self._cut(parameters)

    def carry_covectors(self, covectors: Arrays, before: Arrays) -> None:
        """Carry gradients along: they move by the reciprocal factors, and vanish where cut."""
        for symmetry, element in zip(self.symmetries, self.elements, strict=True):
            symmetry.apply(symmetry.inverse(element), covectors)
        self._cut(covectors)

    def _cut(self, arrays: Arrays) -> None:
        if self.cut:
            for slot in _slots(self.symmetries):
                value = slot.view.read(arrays)
                shape = [1] * value.ndim
                shape[_axis(slot)] = len(self.dead)
                slot.view.write(arrays, np.where(self.dead.reshape(shape), 0.0, value))


def _axis(slot: ScaledSlot) -> int:
    assert isinstance(slot.axis, int) and slot.coordinate is None
    return slot.axis % len(slot.view.shape)


def _slots(symmetries: Sequence[Scaling]) -> list[ScaledSlot]:
    """Every view once."""
    return list({slot.view: slot for s in symmetries for slot in s.slots}.values())


def _squares(symmetries: Sequence[Scaling], parameters: Arrays) -> dict[tuple[int, ...], Any]:
    """Squared norm of every neuron's slots, added up by the powers with which factors enter."""
    squares: dict[tuple[int, ...], Any] = {}
    for slot in _slots(symmetries):
        powers = tuple(
            next((other.power for other in s.slots if other.view == slot.view), 0)
            for s in symmetries
        )
        value = np.moveaxis(slot.view.read(parameters), _axis(slot), 0)
        value = value.reshape(len(value), -1).astype(np.float64)
        squares[powers] = squares.get(powers, 0.0) + np.sum(value**2, axis=1)
    return squares


def balance_scalings(symmetries: Sequence[Scaling], parameters: Arrays) -> ScalingMove:
    """Positive factors that give every neuron the smallest norm.

    Terms of squared norms ``n_k`` scale by ``exp(2 <w_k, t>)``. There is one term more than there
    are factors, so ``sum_k l_k w_k = 0`` for one positive ``l`` up to scale, and the minimum is
    where ``n_k = l_k D`` with ``D = prod_k (n_k / l_k)^(l_k / sum l)``: for up against down, equal
    norms.

    Raises
    ------
    ValueError
        If the factors do not all cancel in one way (no rule of the ledger gives such scalings).
    """
    squares = _squares(symmetries, parameters)
    powers = np.array(list(squares), dtype=np.float64)
    kernel = null_space(powers.T)
    if kernel.shape[1] != 1 or np.any(kernel * kernel.sum() <= 0):
        raise ValueError(f"the factors of {symmetries[0].name} do not cancel in one way")
    share = kernel[:, 0] / kernel.sum()
    norms = np.array(list(squares.values()))
    dead = np.any(norms == 0, axis=0)
    logs = np.log(np.where(dead, 1.0, norms / share[:, None]))
    wanted = (share @ logs - logs) / 2
    exponents = np.linalg.lstsq(powers, np.where(dead, 0.0, wanted), rcond=None)[0]
    return ScalingMove(tuple(symmetries), tuple(np.exp(exponents)), dead)


def scaling_moments(
    symmetry: Scaling, parameters: Arrays
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both sides of each neuron's balance: ``sum of power * norm^2``, positive and negative."""
    sides = np.zeros((2, symmetry.size))
    for (power,), square in _squares([symmetry], parameters).items():
        sides[int(power < 0)] += abs(power) * square
    return sides[0], sides[1]
