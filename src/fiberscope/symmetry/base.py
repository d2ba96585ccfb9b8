"""What every symmetry offers: elements, their action on named parameters, tangent directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters, ParameterSpace, View
from fiberscope.symmetry.tangent_map import ListedTangents, TangentMap

Element = Any
"""A group element: an array, or a tuple of arrays, in the group's own coordinates."""

COMPLEX_STEP = 1e-30
"""Imaginary step of the derivative of an action: below it nothing cancels, so it is exact to
rounding for the holomorphic actions used here."""


class Kind(Enum):
    """How a symmetry leaves the observation unchanged."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    DISCRETE = "discrete"


@dataclass(frozen=True)
class Slot:
    """One place where a group acts: along ``axis`` of a view.

    The leading ``copies`` axis of the view (if the group acts with several independent copies)
    has index 0; all other axes are carried along. ``dual`` slots transform with the inverse
    transpose, so that the contraction of a plain and a dual slot is invariant.
    """

    view: View
    axis: int
    dual: bool = False


class Symmetry(ABC):
    """A group (or linear space of shifts) acting on named parameters.

    Attributes
    ----------
    name
        What acts, in plain words.
    kind
        Exact, approximate (``broken_by`` says what breaks it) or discrete.
    broken_by
        For an approximate symmetry, what breaks it; empty otherwise.
    """

    name: str
    kind: Kind = Kind.EXACT
    broken_by: str = ""

    @property
    @abstractmethod
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""

    @property
    @abstractmethod
    def generators(self) -> int:
        """Dimension of the acting group (its orbits can be smaller where it has stabilizers)."""

    @abstractmethod
    def identity(self) -> Element:
        """Neutral element."""

    @abstractmethod
    def random(self, rng: np.random.Generator) -> Element:
        """Draw a random element, of moderate condition."""

    @abstractmethod
    def compose(self, first: Element, second: Element) -> Element:
        """Element that acts as ``first``, then ``second``."""

    @abstractmethod
    def inverse(self, element: Element) -> Element:
        """Element that undoes ``element``."""

    @abstractmethod
    def along(self, generator: int, step: complex) -> Element:
        """Element ``1 + step * generator + O(step^2)``; ``step`` may be complex."""

    @abstractmethod
    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Act in place on a private copy of the touched tensors."""

    def act(self, element: Element, parameters: Parameters) -> dict[str, NDArray[Any]]:
        """Return the moved parameters; the given ones are left alone."""
        moved = {name: np.asarray(value) for name, value in parameters.items()}
        dtype = np.result_type(np.float64, *(np.asarray(part).dtype for part in _parts(element)))
        for name in self.touches:
            moved[name] = moved[name].astype(np.result_type(moved[name], dtype), copy=True)
        self.apply(element, moved)
        return moved

    def tangents(self, parameters: Parameters, space: ParameterSpace) -> NDArray[np.float64]:
        """Tangent directions of the orbit at ``parameters``: shape ``(generators, space.size)``.

        Derived from the action by a complex step, so an action is written only once.
        """
        return self._derivatives(parameters, space)

    def _derivatives(self, parameters: Parameters, space: ParameterSpace) -> NDArray[np.float64]:
        rows = np.zeros((self.generators, space.size))
        for generator in range(self.generators):
            moved = self.act(self.along(generator, 1j * COMPLEX_STEP), parameters)
            moved = {name: moved[name] for name in space.shapes}
            rows[generator] = np.imag(space.vector(moved)) / COMPLEX_STEP
        return rows

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """The same directions as a linear map at ``parameters`` (float64 arrays).

        By default the list of directions itself; groups override it with a closed form.
        """
        space = ParameterSpace({name: np.shape(parameters[name]) for name in self.touches})
        return ListedTangents(self._derivatives(parameters, space), space)


def _parts(element: Element) -> Iterable[Any]:
    return element if isinstance(element, tuple) else (element,)


def touched(*views: View | None) -> tuple[str, ...]:
    """Names of the tensors behind the views, each once, in order."""
    return tuple(dict.fromkeys(view.tensor for view in views if view is not None))


def multiply_axis(
    matrix: NDArray[Any], array: NDArray[Any], axis: int, *, batched: bool
) -> NDArray[Any]:
    """Multiply ``matrix`` into one axis of ``array``.

    With ``batched`` the matrix has shape ``(copies, r, r)`` and the array's axis 0 counts copies.
    """
    moved = np.moveaxis(array, axis, -1)
    if not batched:
        return np.moveaxis(moved @ matrix.swapaxes(-1, -2), -1, axis)
    extra = moved.ndim - 2
    if extra == 0:
        return np.einsum("cij,cj->ci", matrix, moved)
    lead = matrix.reshape(matrix.shape[0], *([1] * (extra - 1)), *matrix.shape[1:])
    return np.moveaxis(moved @ lead.swapaxes(-1, -2), -1, axis)
