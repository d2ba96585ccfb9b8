"""The contract a family fulfils: parameters to observation, under a design."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers import FLOAT64, Array, Dual, DualNumbers, NumberSystem
from fiberscope.parameters import Parameters, ParameterSpace
from fiberscope.symmetry import Element, Symmetry
from fiberscope.verdict import Outcome


@dataclass(frozen=True)
class Design:
    """What may be observed. Families subclass it with their input bank, queries, environments.

    Attributes
    ----------
    size
        Number of independent observations (inputs, queries, samples): what saturation grows.
    """

    size: int


class Family(ABC):
    """A parameter map ``theta -> observation``.

    Attributes
    ----------
    name
        What the family is called in reports.
    space
        Its named parameters.
    number_systems
        Names of the number systems in which :meth:`observe` runs; always contains ``float64``.
    complete
        True where the family claims that its exact symmetries are the whole fiber at generic
        points of :meth:`generic`, for the designs of :meth:`design`.
    """

    name: str
    space: ParameterSpace
    number_systems: frozenset[str] = frozenset({"float64"})
    complete: bool = False

    @abstractmethod
    def generic(self, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Draw parameters from a distribution with a density, of scale about one."""

    def exceptional(self, rng: np.random.Generator) -> Mapping[str, dict[str, NDArray[np.float64]]]:
        """Points where the fiber is larger than generic, by a label in words (default: none)."""
        return {}

    @abstractmethod
    def design(self, size: int, rng: np.random.Generator) -> Design:
        """A random design with ``size`` observations, all of the same kind."""

    @property
    @abstractmethod
    def sufficient_size(self) -> int:
        """A design size at which the generic rank has saturated (checked, not trusted)."""

    @abstractmethod
    def observe(
        self, parameters: Mapping[str, Array], design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """The observation, flattened, in the given number system.

        ``parameters`` are arrays of ``system``; the design's data are converted by the family.
        """

    @abstractmethod
    def symmetries(self, design: Design) -> Sequence[Symmetry]:
        """The symmetries that act under this design."""

    def jacobian(
        self, parameters: Parameters, design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """Jacobian of the observation, shape ``(observations, space.size)``.

        Dual numbers in ``system`` by default; a family with a closed form overrides this and
        tests it against the default.
        """
        duals = DualNumbers(system)
        flat = duals.variables(system.array(self.space.vector(parameters)))
        named: dict[str, Any] = {}
        for name, window in self.space.slices():
            named[name] = flat[window].reshape(self.space.shapes[name])
        observed = self.observe(named, design, duals)
        if not isinstance(observed, Dual):
            return system.zeros((observed.shape[0], self.space.size))
        return observed.tangent.swapaxes(0, 1)


class HasCanonicalForm(ABC):
    """A family whose points have a canonical representative."""

    @abstractmethod
    def canonical(self, parameters: Parameters, design: Design) -> dict[str, NDArray[np.float64]]:
        """The representative: the same for all points of a fiber; applying it twice is once."""


@dataclass(frozen=True)
class Comparison:
    """Answer to *do two points lie in one fiber?*.

    Attributes
    ----------
    outcome
        SAME, DIFFERENT or UNDECIDED.
    witness
        For SAME: the moves that carry the first point to the second, in order.
    reason
        For DIFFERENT the first difference, for UNDECIDED what is missing, in words.
    """

    outcome: Outcome
    witness: tuple[tuple[Symmetry, Element], ...] = ()
    reason: str = ""

    def carry(self, parameters: Parameters) -> dict[str, NDArray[Any]]:
        """Apply the witness to the first point."""
        moved = dict(parameters)
        for symmetry, element in self.witness:
            moved = symmetry.act(element, moved)
        return moved


class HasComparison(ABC):
    """A family that tells whether two points lie in one fiber."""

    @abstractmethod
    def compare(self, first: Parameters, second: Parameters, design: Design) -> Comparison:
        """Compare two points under a design."""
