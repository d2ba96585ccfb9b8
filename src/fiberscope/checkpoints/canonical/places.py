"""Places where a canonical form is not unique: ties, degenerate alignments, dead parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

EQUAL = 2.0**-40
"""Keys that differ by no more, relatively, count as equal: copies of one row, computed twice."""
LISTED = 64
"""Units of one place that are listed; the count is always complete."""


@dataclass(frozen=True)
class NotUnique:
    """A place where rounding, or exact freedom, decides between representatives.

    Attributes
    ----------
    mechanism
        What leaves the freedom.
    layer, where
        The place.
    count
        How many pairs of units (or directions).
    units
        The first of them, as positions in the canonical order: ``(i, i + 1)`` starts at ``i``.
    """

    mechanism: str
    layer: int | None
    where: str
    count: int
    units: tuple[int, ...] = ()


@dataclass
class Places:
    """Collects what was found while a form is computed."""

    found: list[NotUnique] = field(default_factory=list)
    dead: dict[str, int] = field(default_factory=dict)

    def add(
        self, mechanism: str, layer: int | None, where: str, units: Sequence[int], count: int = 0
    ) -> None:
        """Note a place; nothing happens when there is nothing to note."""
        count = count or len(units)
        if count:
            listed = tuple(int(unit) for unit in units[:LISTED])
            self.found.append(NotUnique(mechanism, layer, where, count, listed))

    def note_dead(self, what: str, count: int) -> None:
        """Count dead parameters of one kind."""
        if count:
            self.dead[what] = self.dead.get(what, 0) + count

    def extend(self, other: Places) -> None:
        """Add what was found elsewhere."""
        self.found += other.found
        for what, count in other.dead.items():
            self.note_dead(what, count)


def descending(
    keys: NDArray[np.float64],
    tolerance: float,
    rounding: Callable[[], NDArray[np.float64]] | float,
    second: Callable[[], NDArray[np.float64]] | None = None,
    uncertain: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int64], list[int], bool]:
    """Order of units by falling key, equal ones by a second key where there are any.

    Parameters
    ----------
    keys
        One number a unit.
    tolerance
        Relative difference up to which neighbours are called a tie.
    rounding
        Relative rounding of the keys: an order is settled that falls up to it.
    second
        Keys of units that are equal otherwise.
    uncertain
        How far rounding can have moved each key, where that is more than the two above say: an
        order within it is settled, and a tie.

    Returns
    -------
    order : ndarray of int64
        ``keys[order]`` falls; equal keys keep their order.
    ties : list of int
        Positions ``i`` in the new order whose key is within ``tolerance`` of the next one's.
    settled : bool
        Whether the present order falls already, up to the rounding.
    """
    settled = True
    order = np.argsort(-keys, kind="stable")
    ordered = keys[order]
    apart = ordered[:-1] - ordered[1:] > EQUAL * np.abs(ordered[:-1])
    if second is not None and not apart.all():
        cluster = np.zeros(len(keys), dtype=np.int64)
        cluster[order[1:]] = np.cumsum(apart)
        other = second()
        order = np.lexsort((-other, cluster))
        rising = other[1:] - other[:-1] > tolerance * np.abs(other[:-1])
        twins = cluster[1:] == cluster[:-1]
        settled = not (rising & twins).any()
    reach = tolerance * np.abs(ordered[:-1])
    if uncertain is not None:
        moved = uncertain[order]
        reach = np.maximum(reach, np.hypot(moved[:-1], moved[1:]))
    near = ordered[:-1] - ordered[1:] <= reach
    rise = keys[1:] - keys[:-1]
    known = np.zeros(len(keys)) if uncertain is None else uncertain
    both = np.hypot(known[1:], known[:-1])
    settled &= bool((rise <= np.maximum(tolerance * np.abs(keys[:-1]), both)).all())
    if settled:
        noise = rounding() if callable(rounding) else np.full(len(keys), rounding)
        size = np.maximum(noise * np.abs(keys), known)
        settled = bool((rise <= np.hypot(size[1:], size[:-1])).all())
    return order, [int(i) for i in np.flatnonzero(near)], settled
