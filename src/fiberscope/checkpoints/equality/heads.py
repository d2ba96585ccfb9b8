"""Heads of two models: who is whose, the change of basis inside, and what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.circuits import Circuits, query_key, value_output
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.frame import Frame
from fiberscope.checkpoints.equality.head_assignment import assign_heads
from fiberscope.checkpoints.equality.mixed_heads import (
    Alike,
    MixedHeads,
    added_up,
    compare_wholes,
    speaking,
)
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.normalised_heads import (
    turned_to,
    with_positive_gains,
)
from fiberscope.checkpoints.equality.silence import (
    hides_silence,
    is_coarse,
    reordered,
    silenced,
    with_constant,
    without_silent_groups,
)
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import (
    Statistic,
    statistic,
    together,
)
from fiberscope.checkpoints.equality.summed_heads import compare_sums
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index


@dataclass
class HeadMatch:
    """What relates the heads of one layer.

    Attributes
    ----------
    groups
        Group of the first model -> position: entry g is the first model's group at group g.
    heads
        The same for query heads, shape ``(G, m)``.
    query_key, value_output
        Changes of basis ``(G, r, r)`` and ``(G, s, s)`` that carry the (reordered) first model's
        queries and values to the second's; None where queries and keys are normalised.
    turn
        There, what turns its queries and keys, once all gains are positive: ``(G, r, r)``.
    mixed
        Sets of heads that agree as wholes only.
    merged
        Sets of heads with one query of which the second model has fewer (group and heads there).
    is_split
        Whether the second model has several where the first has fewer.
    is_summed
        Whether only the sums of what heads that attend alike add are the same.
    statistics
        One per circuit.
    uncertainty
        Largest relative uncertainty of a live circuit's product, with its name.
    """

    label: str
    groups: NDArray[np.int64]
    heads: NDArray[np.int64]
    query_key: Array | None
    value_output: Array
    statistics: list[Statistic] = field(default_factory=list)
    uncertainty: tuple[float, str] = (0.0, "")
    mismatch: str = ""
    reason: str = ""
    turn: Array | None = None
    mixed: list[MixedHeads] = field(default_factory=list)
    merged: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    is_split: bool = False
    is_summed: bool = False

    def take(self, circuits: Circuits) -> Array:
        """Enter the statistics of circuits; gives their changes of basis."""
        self.statistics += circuits.statistics
        if circuits.uncertainty[0] > self.uncertainty[0]:
            self.uncertainty = circuits.uncertainty
        return circuits.matrix


def carried(folded: FoldedAttention, frame: Frame) -> FoldedAttention:
    """The first model's heads in the second's frame."""
    return FoldedAttention(
        folded.attention,
        frame.carry(folded.query),
        frame.carry(folded.key),
        frame.carry(folded.value),
        frame.carry(folded.output),
        folded.query_constant,
        folded.key_constant,
        folded.query_gain,
        folded.key_gain,
        folded.table,
    )


def match_heads(a: FoldedAttention, b: FoldedAttention, *, rotated: bool) -> HeadMatch:
    """Match the heads of one layer (``a`` already in the frame of ``b``) and measure the rest."""
    plain = b.query_gain is None and a.query.shape[:2] == b.query.shape[:2]
    quick = plain and all(
        isinstance(x, Stack) and x.rows.glance is not None
        for f in (a, b)
        for x in (f.query, f.key, f.value, f.output)
    )
    if quick:
        # No head is silent, and a few columns usually tell which is which.
        found = _compared(a, b, rotated, quick=True)
        if all(part.is_same for part in found.statistics):
            return found
    label = b.attention.label
    if b.query_gain is not None:
        a, b = with_positive_gains(a), with_positive_gains(b)
    if hides_silence(a, b):
        found = _unmatched(label)
        reason = f"{label}: the storage rounding hides whether some heads are silent"
        found.reason = reason
        found = _summed(a, b, found, rotated)
        if any(is_coarse(f) for f in (a, b)):
            # What such a head adds may be no more than rounding in one model alone, and visible.
            found.reason = found.reason or reason
        return found
    a, b = silenced(a), silenced(b)
    whole = a, b
    if a.query.shape[:2] != b.query.shape[:2]:
        a, b = without_silent_groups(a), without_silent_groups(b)
        if a.query.shape[:2] != b.query.shape[:2]:
            counts = " against ".join(f"{f.query.shape[0]} x {f.query.shape[1]}" for f in (a, b))
            found = _unmatched(label)
            found.mismatch = f"{label}: {counts}"
            return _summed(*whole, found, rotated)
    if not b.query.shape[0]:
        return _unmatched(label)
    merged = None
    if (speaking(a) != speaking(b)).any():
        (a, merged), (b, split) = (added_up(f, _alike(rotated)) for f in (a, b))
        a, b = silenced(a), silenced(b)
    found = _compared(a, b, rotated)
    if merged is not None:
        found.merged = _renumbered(merged, found.groups, found.heads)
        found.is_split = any(split.values())
    return _summed(*whole, found, rotated)


def _unmatched(label: str) -> HeadMatch:
    none = np.zeros(0, dtype=np.int64)
    return HeadMatch(label, none, np.zeros((0, 0), np.int64), None, np.zeros(0))


def _summed(a: FoldedAttention, b: FoldedAttention, found: HeadMatch, rotated: bool) -> HeadMatch:
    """What was found, or the comparison of sums where groups do not correspond.

    Every exact move keeps the sums, so they decide. Where only rounding leaves groups that do
    correspond open, sums do not make them different.
    """
    differs = bool(found.mismatch) or any(part.is_different for part in found.statistics)
    if not (differs or found.reason) and all(part.is_same for part in found.statistics):
        return found
    sums = compare_sums(a, b, _scores(rotated), lambda x, y: value_output(x, y, rotated))
    if sums is None:
        return found
    sums_differ = any(part.is_different for part in sums.statistics)
    if sums_differ and not (differs or found.reason):
        return found
    result = _unmatched(found.label)
    result.statistics, result.uncertainty = sums.statistics, sums.uncertainty
    result.reason, result.is_summed = sums.reason, True
    if sums_differ:  # for the distance
        result.groups, result.heads = found.groups, found.heads
    elif a.query.shape[:2] == b.query.shape[:2]:
        _leave(result, b)
    return result


def _leave(found: HeadMatch, b: FoldedAttention) -> None:
    """Enter moves that leave all heads as they are."""
    count, inside, width = b.query.shape[:3]
    found.groups = np.arange(count)
    found.heads = np.broadcast_to(np.arange(inside), (count, inside)).copy()
    if b.query_gain is None:
        found.query_key = np.broadcast_to(np.eye(width), (count, width, width)).copy()
    width = b.value.shape[1]
    found.value_output = np.broadcast_to(np.eye(width), (count, width, width)).copy()


def _compared(
    a: FoldedAttention, b: FoldedAttention, rotated: bool, *, quick: bool = False
) -> HeadMatch:
    """Assign the heads, fit their bases, and measure."""
    label = b.attention.label
    groups, heads = assign_heads(a, b, quick=quick)
    a, turn = reordered(a, groups, heads), None
    if b.query_gain is not None:
        a, turn = turned_to(a, b)
    found = HeadMatch(label, groups, heads, None, np.zeros(0))
    if b.query_gain is None:
        found.query_key = found.take(query_key(a, b, rotated))
    else:
        found.turn = turn
        _normalised(a, b, found, rotated)
    first = len(found.statistics)
    found.value_output = found.take(value_output(a, b, rotated))
    if any(not one.is_same for one in found.statistics[first:]):
        _wholes(a, b, found, first, rotated)
    if b.table is not None and a.table is not None:
        found.statistics.append(statistic(f"{label} position table", b.table, a.table))
    return found


def _wholes(
    a: FoldedAttention, b: FoldedAttention, found: HeadMatch, first: int, rotated: bool
) -> None:
    """Compare groups whose values differ one by one as wholes, where their heads attend alike."""

    def fit(x: FoldedAttention, y: FoldedAttention) -> tuple[Array, list[Statistic]]:
        circuits = value_output(x, y, rotated)
        return circuits.matrix, circuits.statistics

    count = b.query.shape[0]
    given = found.statistics[first : first + count]
    mixed, parts = compare_wholes(a, b, given, _alike(rotated), fit)
    found.mixed += mixed
    found.statistics[first : first + count] = parts


def _alike(rotated: bool) -> Alike:
    """Whether two heads have the same scores, up to rounding: the change of basis between them."""
    scores = _scores(rotated)

    def alike(one: FoldedAttention, other: FoldedAttention) -> Array | None:
        found = scores(one, other, "")
        return found.matrix[0] if all(part.is_same for part in found.statistics) else None

    return alike


def _scores(rotated: bool) -> Callable[[FoldedAttention, FoldedAttention, str], Circuits]:
    """Scores of single heads compared, with the change of basis between their queries."""

    def scores(one: FoldedAttention, other: FoldedAttention, name: str) -> Circuits:
        trial = _unmatched("")
        if other.query_gain is None:
            matrix = trial.take(query_key(one, other, rotated))
        else:
            one, matrix = turned_to(one, other)
            _normalised(one, other, trial, rotated)
        if one.table is not None and other.table is not None:
            trial.statistics.append(statistic("", other.table, one.table))
        statistics = [replace(part, name=name) for part in trial.statistics]
        return Circuits(name, matrix, statistics, (trial.uncertainty[0], name))

    return scores


def _renumbered(
    merged: dict[int, tuple[tuple[int, ...], ...]],
    groups: NDArray[np.int64],
    heads: NDArray[np.int64],
) -> list[tuple[int, tuple[int, ...]]]:
    """Sets of heads of the first model, by their places in the second."""
    result = []
    for place, group in enumerate(groups.tolist()):
        position = np.argsort(heads[place])
        for members in merged[group]:
            result.append((place, tuple(position[list(members)].tolist())))
    return result


def _normalised(a: FoldedAttention, b: FoldedAttention, found: HeadMatch, rotated: bool) -> None:
    """Queries and keys behind their own norms: rows as they are, and the products of gains."""
    for group in range(b.query.shape[0]):
        name = f"{found.label} QK"
        name += f", group {group}" if b.query.shape[0] > 1 else ""
        parts = [
            statistic(name, y.part(group), x.part(group), rotated=rotated)
            for x, y in (
                (a.query, b.query),
                (a.key, b.key),
                (a.query_constant, b.query_constant),
                (a.key_constant, b.key_constant),
            )
            if x is not None and y is not None
        ]
        found.statistics.append(together(name, parts))
    products = [_gain_products(f) for f in (a, b)]
    found.statistics.append(
        statistic(f"{found.label} query and key gains", products[1], products[0])
    )


def _gain_products(f: FoldedAttention) -> Noisy:
    """Products ``query gain * key gain``: inside a plane all four, elsewhere one a row."""
    assert f.query_gain is not None and f.key_gain is not None
    rotary = f.attention.rotary
    pairs = [(row, row) for row in unrotated_index(f.attention)]
    for plane in rotary.planes if rotary else ():
        pairs += [(i, j) for i in plane for j in plane]
    rows = np.array(pairs)
    left, right = f.query_gain.part(rows[:, 0]), f.key_gain.part(rows[:, 1])
    # A product that multiplies nothing but zeros can be anything.
    queries = with_constant(f.query, f.query_constant).value
    asked = np.asarray(queries.any(axis=(0, 1, 3)))
    offered = np.asarray(with_constant(f.key, f.key_constant).value.any(axis=(0, 2)))
    seen = asked[rows[:, 0]] & offered[rows[:, 1]]
    product = left.times(right)
    return Noisy(np.where(seen, product.value, 0.0), np.where(seen, product.variance, 0.0))
