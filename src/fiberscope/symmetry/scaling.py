"""Independent nonzero factors that cancel: gains into readers, up against down, ReLU neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import View
from fiberscope.symmetry.base import Element, Kind, Symmetry, touched


@dataclass(frozen=True)
class ScaledSlot:
    """A place where factor ``c`` enters as ``c**power`` along an axis, or several, of a view.

    ``coordinate`` says which factor each position of the axes (first slowest) uses, so that for
    instance the two rows of a rotary plane can share one; by default each has its own. With no
    axes, ``()``, one factor multiplies the whole view.
    """

    view: View
    axis: int | tuple[int, ...]
    power: int = 1
    coordinate: tuple[int, ...] | None = None


class Scaling(Symmetry):
    """The torus of ``size`` nonzero factors; exact where the factors cancel or are homogeneous.

    Parameters
    ----------
    positive
        True where only positive factors keep the function (ReLU neurons): random elements are
        then drawn positive, and signs are no symmetry.
    """

    def __init__(
        self,
        name: str,
        size: int,
        slots: Sequence[ScaledSlot],
        *,
        positive: bool = False,
        kind: Kind = Kind.EXACT,
        broken_by: str = "",
    ) -> None:
        self.name, self.size, self.slots = name, size, tuple(slots)
        self.positive, self.kind, self.broken_by = positive, kind, broken_by

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*(slot.view for slot in self.slots))

    @property
    def generators(self) -> int:
        """Number of factors."""
        return self.size

    def identity(self) -> NDArray[np.float64]:
        """All factors one, shape ``(size,)``."""
        return np.ones(self.size)

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Factors of size in [1/2, 2], with random signs unless ``positive``."""
        factors = 2.0 ** rng.uniform(-1, 1, self.size)
        return factors if self.positive else factors * rng.choice([-1.0, 1.0], self.size)

    def compose(self, first: Element, second: Element) -> Element:
        """Product of the factors."""
        return first * second

    def inverse(self, element: Element) -> Element:
        """Reciprocals of the factors."""
        return 1 / element

    def along(self, generator: int, step: complex) -> NDArray[np.complex128]:
        """One factor ``1 + step``."""
        element = np.ones(self.size, dtype=np.complex128)
        element[generator] += step
        return element

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place on the slots."""
        for slot in self.slots:
            value = slot.view.read(parameters)
            factor = np.asarray(element) ** slot.power
            if slot.coordinate is not None:
                factor = factor[np.asarray(slot.coordinate)]
            given = slot.axis if isinstance(slot.axis, tuple) else (slot.axis,)
            axes = tuple(axis % value.ndim for axis in given)
            shape = [value.shape[k] if k in axes else 1 for k in range(value.ndim)]
            factor = factor.reshape(shape)
            slot.view.write(parameters, value * factor)
