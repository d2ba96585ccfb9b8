"""Shifts that cancel: biases, free input directions, writes that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import Parameters, View
from fiberscope.symmetry.base import Element, Kind, Symmetry, touched
from fiberscope.symmetry.tangent_map import SumOfTerms, TangentMap, Term

Increments = Callable[[dict[str, NDArray[Any]], NDArray[Any]], Sequence[tuple[View, NDArray[Any]]]]
"""``(parameters, shift) -> [(view, increment)]``; the parameters are those before the shift."""

Linear = Callable[[Parameters], tuple[Sequence[Term], NDArray[Any] | float]]
"""``parameters -> (terms, Gram matrix or its diagonal)``."""


class Translation(Symmetry):
    """The additive group R^size, acting by shifts whose coefficients may depend on the weights.

    Parameters
    ----------
    shape
        Shape of an element; ``generators`` is its number of entries.
    views
        Every view an increment can go to.
    increments
        Computes the increments of one shift, read off the parameters before the shift. It must be
        linear in the shift, except that a shift may divide by a quantity it moves itself, as long
        as shifting twice equals shifting by the sum.
    linear
        The derivative of the increments at no shift, in closed form, for speed: computes the terms
        at given parameters, and their Gram matrix (or its diagonal).
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        views: Sequence[View | None],
        increments: Increments,
        *,
        kind: Kind = Kind.EXACT,
        linear: Linear | None = None,
    ) -> None:
        self.name, self.shape, self.kind = name, shape, kind
        self.linear = linear
        self.views = tuple(view for view in views if view is not None)
        self.increments = increments

    @property
    def touches(self) -> tuple[str, ...]:
        """Names of the stored tensors that the action can change."""
        return touched(*self.views)

    @property
    def generators(self) -> int:
        """Number of independent shifts."""
        return int(np.prod(self.shape, dtype=np.int64))

    def identity(self) -> NDArray[np.float64]:
        """No shift."""
        return np.zeros(self.shape)

    def random(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Standard normal shift."""
        return rng.standard_normal(self.shape)

    def compose(self, first: Element, second: Element) -> Element:
        """Sum of the shifts."""
        return first + second

    def inverse(self, element: Element) -> Element:
        """Opposite shift."""
        return -element

    def along(self, generator: int, step: complex) -> NDArray[np.complex128]:
        """``step`` along one coordinate."""
        element = np.zeros(self.generators, dtype=np.complex128)
        element[generator] = step
        return element.reshape(self.shape)

    def apply(self, element: Element, parameters: dict[str, NDArray[Any]]) -> None:
        """Shift in place."""
        for view, increment in self.increments(parameters, np.asarray(element)):
            window = view.window(parameters[view.tensor])
            window[...] = window + increment

    def tangent_map(self, parameters: Parameters) -> TangentMap:
        """The stated terms, or the list of directions where none are stated."""
        if self.linear is None:
            return super().tangent_map(parameters)
        return SumOfTerms(self.generators, *self.linear(parameters))
