"""What moves leave the observation unchanged, and whether they explain the whole nullity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.analysis.rank import RankVerdict, rank_of
from fiberscope.parameters import Parameters, ParameterSpace
from fiberscope.symmetry import Kind, Symmetry
from fiberscope.verdict import to_plain

_ROUNDING = 1e-13
"""Tangents shorter than this share of the longest one of their symmetry are rounding noise."""


@dataclass(frozen=True)
class SymmetryShare:
    """What one symmetry contributes.

    Attributes
    ----------
    name, kind, generators
        As the symmetry states them.
    rank
        Dimension of its orbit at the point (below ``generators`` where it has stabilizers).
    adds
        Directions it adds to the symmetries listed before it.
    residual
        Worst ``|J t| / (|J| |t|)`` over its tangents ``t``; None without a Jacobian.
    """

    name: str
    kind: Kind
    generators: int
    rank: int
    adds: int
    residual: float | None


@dataclass(frozen=True)
class Overlap:
    """Two symmetries that share directions: ``dimension`` of the intersection of the tangents."""

    between: tuple[str, str]
    dimension: int


@dataclass(frozen=True)
class UnionRank:
    """Dimension of the union of the exact continuous symmetries at a point.

    Attributes
    ----------
    value
        Rank of all tangents together.
    verdict
        That rank with its spectrum and gap.
    shares
        One entry a symmetry, in the given order; approximate ones add nothing.
    overlaps
        Pairs that share directions.
    nullity
        Nullity of the given Jacobian, None without one.
    unexplained
        ``nullity - value``: directions that no listed symmetry accounts for. None without a
        Jacobian.
    """

    value: int
    verdict: RankVerdict
    shares: tuple[SymmetryShare, ...]
    overlaps: tuple[Overlap, ...]
    nullity: int | None = None
    unexplained: int | None = None

    @property
    def worst_residual(self) -> float | None:
        """Largest residual of the exact symmetries, None without a Jacobian."""
        residuals = [
            share.residual
            for share in self.shares
            if share.residual is not None and share.kind is not Kind.APPROXIMATE
        ]
        if residuals:
            return max(residuals)
        return None if self.nullity is None else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**to_plain(self), "worst_residual": self.worst_residual}


def unit_tangents(
    symmetry: Symmetry, parameters: Parameters, space: ParameterSpace
) -> NDArray[np.float64]:
    """Tangents of one symmetry, each of length one; those that vanish are dropped.

    Shape ``(directions, space.size)``, with at most ``symmetry.generators`` directions.
    """
    rows = symmetry.tangents(parameters, space)
    lengths = np.linalg.norm(rows, axis=1)
    kept = lengths > _ROUNDING * lengths.max(initial=0.0)
    return rows[kept] / lengths[kept, None]


def symmetry_rank(
    symmetries: Sequence[Symmetry],
    parameters: Parameters,
    space: ParameterSpace,
    jacobian: NDArray[np.float64] | None = None,
) -> UnionRank:
    """Rank of the union of the tangents of ``symmetries`` at ``parameters``.

    The dimension of a union is never the sum of the dimensions: directions shared by several
    symmetries count once, and are listed as overlaps.

    Parameters
    ----------
    symmetries
        In the order in which they are to be counted.
    parameters, space
        The point and its layout.
    jacobian
        Jacobian of the observation at the point, shape ``(observations, space.size)``: the
        tangents are then tested against its kernel, and the rest of its nullity is stated.

    Raises
    ------
    InputError
        If a tangent or the Jacobian has NaN or infinite entries.
    """
    observed = None if jacobian is None else rank_of(jacobian)
    largest = 0.0
    if observed is not None and observed.singular_values.size:
        largest = float(observed.singular_values[0])
    shares: list[SymmetryShare] = []
    exact: list[tuple[Symmetry, NDArray[np.float64], int]] = []
    union = np.zeros((0, space.size))
    verdict = rank_of(union)
    for symmetry in symmetries:
        rows = unit_tangents(symmetry, parameters, space)
        own, before = rank_of(rows).value, verdict.value
        if symmetry.kind is not Kind.APPROXIMATE and own:
            union = np.concatenate([union, rows])
            verdict = rank_of(union)
            exact.append((symmetry, rows, own))
        residual = None
        if jacobian is not None:
            moved = np.linalg.norm(rows @ jacobian.T, axis=1).max(initial=0.0)
            residual = float(moved) / largest if largest else 0.0
        shares.append(
            SymmetryShare(
                name=symmetry.name,
                kind=symmetry.kind,
                generators=symmetry.generators,
                rank=own,
                adds=verdict.value - before,
                residual=residual,
            )
        )
    nullity = None if observed is None else observed.nullity
    return UnionRank(
        value=verdict.value,
        verdict=verdict,
        shares=tuple(shares),
        overlaps=_overlaps(exact),
        nullity=nullity,
        unexplained=None if nullity is None else nullity - verdict.value,
    )


def _overlaps(
    exact: Sequence[tuple[Symmetry, NDArray[np.float64], int]],
) -> tuple[Overlap, ...]:
    found = []
    for position, (first, first_rows, first_rank) in enumerate(exact):
        for second, second_rows, second_rank in exact[position + 1 :]:
            if not set(first.touches) & set(second.touches):
                continue
            together = rank_of(np.concatenate([first_rows, second_rows])).value
            if shared := first_rank + second_rank - together:
                found.append(Overlap((first.name, second.name), shared))
    return tuple(found)
