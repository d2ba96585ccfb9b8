"""Whether two points lie in one fiber."""

from __future__ import annotations

from fiberscope.errors import InputError
from fiberscope.family import Comparison, Design, Family, HasComparison
from fiberscope.parameters import Parameters
from fiberscope.verdict import Outcome


def compare(family: Family, first: Parameters, second: Parameters, design: Design) -> Comparison:
    """SAME with a witness or proof, DIFFERENT with the first difference, or UNDECIDED.

    Raises
    ------
    InputError
        If one of the points does not fit the family.
    """
    for label, point in (("first", first), ("second", second)):
        try:
            family.space.check(point)
        except ValueError as error:
            raise InputError(f"the {label} point does not fit {family.name}: {error}") from None
    if not isinstance(family, HasComparison):
        return Comparison(Outcome.UNDECIDED, reason=f"{family.name} offers no comparison")
    return family.compare(first, second, design)
