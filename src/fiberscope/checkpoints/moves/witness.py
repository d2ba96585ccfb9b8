"""A witness: steps that carry one set of parameters to another with the same function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.moves.catalogue import Catalogue, Step
from fiberscope.errors import InputError
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Element, Permutation, QuarterTurn, Symmetry, Translation
from fiberscope.symmetry.scaling import Scaling

PREMISE_TOLERANCE = 0.02
"""Largest relative difference of rows or gains that count as equal (bfloat16 rounds by 0.004)."""


@dataclass(frozen=True)
class StepDescription:
    """What one step does.

    Attributes
    ----------
    size
        How far it is from doing nothing: the fraction of units that change place (permutations),
        the root mean square of ``factor - 1`` (scalings), of ``M - 1`` per row (changes of basis,
        rotations), or of the shift (translations).
    condition
        Largest over smallest singular value or absolute factor; 1 for permutations and shifts.
    """

    mechanism: str
    layer: int | None
    where: str
    size: float
    condition: float


@dataclass(frozen=True)
class MechanismDescription:
    """The steps of one mechanism together: places, largest size, largest condition number."""

    mechanism: str
    places: int
    size: float
    condition: float


@dataclass(frozen=True)
class Witness:
    """Steps that act one after the other.

    Attributes
    ----------
    architecture
        The architecture they act on.
    observable
        The observable they preserve.
    steps
        In the order of acting.
    """

    architecture: Architecture
    observable: Observable
    steps: tuple[Step, ...] = ()

    @property
    def catalogue(self) -> Catalogue:
        """The symmetries that act, built on first use."""
        found: Catalogue | None = self.__dict__.get("_catalogue")
        if found is None:
            found = Catalogue(self.architecture, self.observable)
            self.__dict__["_catalogue"] = found
        return found

    def symmetry(self, step: Step) -> Symmetry:
        """The acting symmetry of one step."""
        return self.catalogue.acting(step).symmetry

    def apply(
        self, parameters: Parameters, *, tolerance: float = PREMISE_TOLERANCE
    ) -> dict[str, NDArray[np.float64]]:
        """Move parameters; the given ones are left alone.

        Parameters
        ----------
        parameters
            All stored tensors of the architecture.
        tolerance
            How unequal the rows or gains may be whose equality a step needs.

        Raises
        ------
        InputError
            If a step does not fit the model, or what it takes as equal is not.
        """
        moved = {name: np.array(value, dtype=np.float64) for name, value in parameters.items()}
        for step in self.steps:
            found = self.catalogue.acting(step)
            check_premise(step, found.premise(moved), tolerance)
            act(found.symmetry, step.element, moved)
        return moved

    def inverse(self) -> Witness:
        """The witness that carries back: inverse elements in the opposite order."""
        steps = [
            replace(step, element=self.symmetry(step).inverse(step.element))
            for step in reversed(self.steps)
        ]
        return replace(self, steps=tuple(steps))

    def compose(self, after: Witness) -> Witness:
        """The witness that acts as this one, then as ``after``.

        Raises
        ------
        InputError
            If the two act on different architectures.
        """
        if (after.architecture, after.observable) != (self.architecture, self.observable):
            raise InputError(
                f"witnesses of {self.architecture.name} and {after.architecture.name} at different "
                "sizes or observables cannot be composed; use two of one model"
            )
        return replace(self, steps=self.steps + after.steps)

    def describe(self) -> tuple[StepDescription, ...]:
        """One description a step."""
        return tuple(describe(step, self.symmetry(step)) for step in self.steps)

    def mechanisms(self) -> tuple[MechanismDescription, ...]:
        """Descriptions gathered by mechanism, in the order of acting."""
        gathered: dict[str, list[StepDescription]] = {}
        for description in self.describe():
            gathered.setdefault(description.mechanism, []).append(description)
        return tuple(
            MechanismDescription(
                name,
                len({(d.layer, d.where) for d in found}),
                max(d.size for d in found),
                max(d.condition for d in found),
            )
            for name, found in gathered.items()
        )


def act(symmetry: Symmetry, element: Element, arrays: dict[str, NDArray[Any]]) -> None:
    """Act in place; a rule may work out a quantity that is infinite there and that it never uses.

    A direction 1/gain at a zero gain is one. What reaches the weights is checked to be finite when
    they are written.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        symmetry.apply(element, arrays)


def check_premise(step: Step, unequal: float, tolerance: float) -> None:
    """Raise when what a step takes as equal is not."""
    if not unequal <= tolerance:
        raise InputError(
            f"the witness's {step.key.mechanism!r} at {step.key.where!r} needs numbers to be equal "
            f"that differ by {unequal:.1e} here; use the witness with the model it was made for"
        )


def describe(step: Step, symmetry: Symmetry) -> StepDescription:
    """How large a step is, and how ill-conditioned."""
    key = step.key
    sizes, conditions = [0.0], [1.0]
    for part, identity in zip(step.parts, _identity(symmetry), strict=True):
        if not part.size:
            continue
        if isinstance(symmetry, Permutation | QuarterTurn):
            sizes.append(float((part != identity).mean()))
        elif isinstance(symmetry, Translation):
            sizes.append(float(np.sqrt(np.square(part).mean())))
        elif isinstance(symmetry, Scaling):
            sizes.append(float(np.sqrt(np.square(part - 1).mean())))
            factors = np.abs(part)
            conditions.append(float(factors.max() / factors.min()))
        else:
            width = part.shape[-1]
            change = np.square(part - identity).sum(axis=(-2, -1)) / max(1, width)
            sizes.append(float(np.sqrt(change.max())))
            values = np.linalg.svd(part, compute_uv=False)
            conditions.append(float((values[..., 0] / values[..., -1]).max()))
    return StepDescription(key.mechanism, key.layer, key.where, max(sizes), max(conditions))


def _identity(symmetry: Symmetry) -> tuple[NDArray[Any], ...]:
    identity = symmetry.identity()
    return identity if isinstance(identity, tuple) else (identity,)


def header(witness: Witness) -> Mapping[str, Any]:
    """What a file says of the model a witness belongs to."""
    architecture = witness.architecture
    return {
        "architecture": architecture.name,
        "sizes": {k: v for k, v in architecture.sizes.items() if isinstance(v, int | bool)},
        "tensors": {name: list(shape) for name, shape in architecture.tensors.items()},
        "tied": architecture.tied,
        "observable": witness.observable.value,
    }
