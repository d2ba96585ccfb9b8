"""How many parameters the observation determines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.analysis.rank import CLEAR_GAP, RankVerdict, rank_of
from fiberscope.family import Family
from fiberscope.parameters import Parameters
from fiberscope.verdict import Evidence, Status, to_plain

_MOST_DOUBLINGS = 4


@dataclass(frozen=True)
class DimensionResult:
    """The functional dimension at one point: rank of the observation's Jacobian.

    Attributes
    ----------
    value
        Rank: number of parameter directions that change the observation.
    status
        How far the value can be trusted.
    parameters, nullity
        Number of parameters, and parameters minus value.
    spectrum
        Singular values of the Jacobian at the largest design, in decreasing order.
    gap, tolerance, decided
        See :class:`~fiberscope.analysis.rank.RankVerdict`.
    saturation
        ``(design size, rank)`` at growing designs.
    saturated
        True when the last growth of the design added nothing; otherwise the value is only a lower
        bound.
    evidence
        Why the value is believed, in sentences.
    """

    value: int
    status: Status
    parameters: int
    nullity: int
    spectrum: NDArray[np.float64]
    gap: float
    tolerance: float
    decided: bool
    saturation: tuple[tuple[int, int], ...]
    saturated: bool
    evidence: tuple[Evidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


def dimension(
    family: Family, parameters: Parameters | None = None, seed: int = 0
) -> DimensionResult:
    """Functional dimension of ``family`` at ``parameters`` (default: a generic point).

    The Jacobian's rank is taken at half the family's sufficient design size, at that size and at
    twice it, and on by doubling (four times at most) until a doubling adds nothing. All designs
    come from one seed, so a family that draws its inputs in order extends the smaller design.

    Parameters
    ----------
    family
        Any family; its float64 Jacobian is used.
    parameters
        Named float64 arrays of ``family.space``.
    seed
        Seeds the generic point and the designs.

    Raises
    ------
    InputError
        If names or shapes differ from ``family.space``, or the Jacobian is not finite.
    """
    if parameters is None:
        parameters = family.generic(np.random.default_rng([seed, 0]))
    family.space.check(parameters)
    size = family.sufficient_size
    saturation: list[tuple[int, int]] = []
    if size > 1:
        saturation.append((size // 2, _rank(family, parameters, size // 2, seed).value))
    verdict = _rank(family, parameters, size, seed)
    saturation.append((size, verdict.value))
    saturated = False
    for _ in range(_MOST_DOUBLINGS):
        size *= 2
        before, verdict = verdict.value, _rank(family, parameters, size, seed)
        saturation.append((size, verdict.value))
        if saturated := verdict.value == before:
            break
    return DimensionResult(
        value=verdict.value,
        status=Status.NUMERICAL,
        parameters=family.space.size,
        nullity=family.space.size - verdict.value,
        spectrum=verdict.singular_values,
        gap=verdict.gap,
        tolerance=verdict.tolerance,
        decided=verdict.decided,
        saturation=tuple(saturation),
        saturated=saturated,
        evidence=_evidence(verdict, saturation, saturated),
    )


def _rank(family: Family, parameters: Parameters, size: int, seed: int) -> RankVerdict:
    design = family.design(size, np.random.default_rng([seed, 1]))
    return rank_of(family.jacobian(parameters, design))


def _evidence(
    verdict: RankVerdict, saturation: list[tuple[int, int]], saturated: bool
) -> tuple[Evidence, ...]:
    if not verdict.decided:
        cut = f"No gap of {CLEAR_GAP:.0e} separates the singular values from rounding"
    elif verdict.nullity == 0 or not np.isfinite(verdict.gap):
        cut = f"{verdict.value} singular values stand clear of rounding and nothing is below them"
    else:
        cut = f"The singular values drop by a factor {verdict.gap:.1e} after number {verdict.value}"
    (before, after) = saturation[-2:]
    growth = (
        f"Growing the design from {before[0]} to {after[0]} observations "
        f"{'adds nothing' if saturated else f'raises the rank from {before[1]} to {after[1]}'}"
    )
    return (
        Evidence(
            cut + ".",
            Status.NUMERICAL,
            statistics={"gap": verdict.gap, "tolerance": verdict.tolerance},
        ),
        Evidence(
            growth + ("." if saturated else ", so the value is a lower bound."),
            Status.NUMERICAL,
            statistics={"saturation": tuple(saturation)},
        ),
    )
