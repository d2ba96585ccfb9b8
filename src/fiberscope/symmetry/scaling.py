"""Independent nonzero factors that cancel: gains into readers, up against down, ReLU neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters, View
from fiberscope.symmetry.base import Element, Kind, Symmetry, touched
from fiberscope.symmetry.tangent_map import Directions, TangentMap, Vector, reciprocal


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

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """``power * factor * value`` on every slot; the Gram matrix is diagonal."""
        return _ScalingTangents(self, parameters)


class _ScalingTangents(TangentMap):
    """Every entry of a slot moves along its own value."""

    def __init__(self, scaling: Scaling, parameters: Parameters) -> None:
        self.generators = scaling.size
        self._parts: list[Any] = []
        gram, left, right = (np.zeros(scaling.size) for _ in range(3))
        for slot in scaling.slots:
            value = np.asarray(slot.view.read(parameters), dtype=np.float64)
            given = slot.axis if isinstance(slot.axis, tuple) else (slot.axis,)
            axes = tuple(axis % value.ndim for axis in given)
            shape = tuple(value.shape[k] if k in axes else 1 for k in range(value.ndim))
            indices = slot.coordinate
            coordinate = None if indices is None else np.asarray(indices, dtype=np.int64)
            others = tuple(k for k in range(value.ndim) if k not in axes)
            moved = slot.power * value
            squares = self._gather(np.square(moved).sum(axis=others), coordinate)
            gram += squares
            side = left if slot.power > 0 else right
            side += squares / abs(slot.power)
            letters = "abcdefgh"[: value.ndim]
            kept = "".join(letters[k] for k in sorted(axes))
            self._parts.append(
                (slot.view, moved, coordinate, shape, f"{letters},{letters}->{kept}")
            )
        self.sides = left, right
        self._inverse = reciprocal(gram)

    def _gather(self, sums: NDArray[Any], coordinate: NDArray[np.int64] | None) -> Vector:
        if coordinate is None:
            return sums.reshape(-1)
        return np.bincount(coordinate, sums.reshape(-1), self.generators).astype(np.float64)

    def add(self, vector: Vector, directions: Directions) -> None:
        """Add ``power * factor * value``."""
        for view, moved, coordinate, shape, _ in self._parts:
            factor = vector if coordinate is None else vector[coordinate]
            window = view.window(directions[view.tensor])
            window += moved * factor.reshape(shape)

    def pull(self, directions: Directions) -> Vector:
        """Sums of ``power * value * direction`` over the entries of each factor."""
        total = np.zeros(self.generators)
        for view, moved, coordinate, _, sums in self._parts:
            window = view.window(directions[view.tensor])
            total += self._gather(np.einsum(sums, moved, window), coordinate)
        return total

    def solve(self, vector: Vector) -> Vector:
        """Exact where no two slots share an entry."""
        return self._inverse * vector
