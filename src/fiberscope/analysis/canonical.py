"""The canonical representative of a point, checked before it is handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.analysis.deviation import relative_deviation
from fiberscope.errors import InputError
from fiberscope.family import Design, Family, HasCanonicalForm
from fiberscope.numbers import FLOAT64, NumberSystem
from fiberscope.parameters import Parameters


@dataclass(frozen=True)
class CanonicalResult:
    """A canonical representative.

    Attributes
    ----------
    parameters
        Same names and shapes as the given ones.
    deviation
        Largest change of the observation, relative to its size (0 in exact arithmetic).
    moved
        True when some parameter changed.
    """

    parameters: dict[str, NDArray[Any]]
    deviation: float
    moved: bool


def canonical(
    family: Family, parameters: Parameters, design: Design, system: NumberSystem = FLOAT64
) -> CanonicalResult:
    """Canonical form of a point, with the deviation of its observation measured.

    Raises
    ------
    InputError
        If the family offers no canonical form, or the parameters do not fit it.
    """
    if not isinstance(family, HasCanonicalForm):
        raise InputError(f"{family.name} has no canonical form")
    try:
        family.space.check(parameters)
    except ValueError as error:
        raise InputError(f"the parameters do not fit {family.name}: {error}") from None
    form = family.canonical(parameters, design)
    before = family.observe(parameters, design, system)
    after = family.observe(form, design, system)
    if system.exact:
        deviation = 0.0 if bool(np.all(np.asarray(before) == np.asarray(after))) else float("inf")
    else:
        deviation = relative_deviation(system.to_float64(after), system.to_float64(before))
    moved = any(not np.array_equal(form[name], parameters[name]) for name in family.space.shapes)
    return CanonicalResult(form, deviation, moved)
