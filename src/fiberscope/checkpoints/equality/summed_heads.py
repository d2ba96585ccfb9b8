"""Heads that attend alike, added up whatever their groups: one sum for every way to attend.

A layer adds ``sum_h softmax(scores_h) X S_h`` with ``S_h = V_h^T O_h`` of every query head. Only
scores and, for heads with the same scores, the sum of their ``S_h`` are seen, so groups that attend
alike may have been merged into fewer, split into more, or taken apart. Each sum is a product of
stacked factors whose rank may be smaller than their height, which may differ between models. Both
models' factors are therefore brought to one rank, by rotations of rows in units of their rounding;
then the sums are compared like the factors of any head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.circuits import Circuits
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.mixed_heads import has_near_readings, readings_of
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.silence import reordered
from fiberscope.checkpoints.equality.statistic import (
    CORRELATED,
    EPSILON,
    FLOOR,
    SAME_MAX,
    SAME_RMS,
    Statistic,
    statistic,
)

Head = tuple[int, int]
"""Group, and query head in it."""
Scores = Callable[[FoldedAttention, FoldedAttention, str], Circuits]
"""Compares the scores of two single heads, under a name."""
Values = Callable[[FoldedAttention, FoldedAttention], Circuits]
"""Compares the values and outputs of two single heads."""


@dataclass
class SummedHeads:
    """What a comparison of sums found.

    Attributes
    ----------
    statistics
        Scores of every way to attend, then sums of values and outputs.
    uncertainty
        Largest relative uncertainty of a sum or of scores, with its name.
    reason
        Why nothing can be said, if so.
    """

    statistics: list[Statistic] = field(default_factory=list)
    uncertainty: tuple[float, str] = (0.0, "")
    reason: str = ""

    def take(self, circuits: Circuits) -> None:
        """Enter the statistics of circuits."""
        self.statistics += circuits.statistics
        self.enter(circuits.uncertainty)

    def enter(self, uncertainty: tuple[float, str]) -> None:
        """Keep the larger uncertainty."""
        if uncertainty[0] > self.uncertainty[0]:
            self.uncertainty = uncertainty


class _UnclearError(Exception):
    """Rounding does not tell whether two heads attend alike."""


def compare_sums(
    a: FoldedAttention, b: FoldedAttention, scores: Scores, values: Values
) -> SummedHeads | None:
    """Compare the sums of heads that attend alike; None where that says nothing new.

    Parameters
    ----------
    a, b
        Heads of one layer of both models in one frame, silent ones zeroed; the numbers of groups
        and of heads may differ.

    Returns
    -------
    SummedHeads or None
        None if no two heads of a model attend alike, or the models attend in different ways.
    """
    label, result = b.attention.label, SummedHeads()
    heads = [_speaking(f) for f in (a, b)]
    readings = [readings_of(f) for f in (a, b)]
    if not any(
        has_near_readings(reading[tuple(zip(*some, strict=True))])
        for reading, some in zip(readings, heads, strict=True)
        if some
    ):
        return None
    try:
        ways = [
            _gathered(f, some, reading, scores)
            for f, some, reading in zip((a, b), heads, readings, strict=True)
        ]
        if all(len(members) == 1 for model in ways for members in model):
            return None
        pairs = _paired(a, b, ways[0], ways[1], readings, scores)
    except _UnclearError:
        result.reason = f"{label}: the rounding hides whether some heads attend alike"
        return result
    if pairs is None:
        return None
    for ours, theirs in pairs:
        name = _named(b, "QK", ours[:1], theirs[:1])
        result.take(scores(_single(a, ours[0]), _single(b, theirs[0]), name))
    for ours, theirs in pairs:
        name = _named(b, "VO", ours, theirs)
        _compare_sum(_stacked(a, ours), _stacked(b, theirs), name, values, result)
    _weigh_the_rest(a, b, ways, pairs, result)
    return result


def _weigh_the_rest(
    a: FoldedAttention,
    b: FoldedAttention,
    ways: Sequence[list[list[Head]]],
    pairs: Sequence[tuple[list[Head], list[Head]]],
    result: SummedHeads,
) -> None:
    """Enter how far rounding hides sums that cancel, relative to all that a layer adds."""
    for f, model, side in ((a, ways[0], 0), (b, ways[1], 1)):
        kept = [pair[side] for pair in pairs]
        size = sum(_stacked(f, members).size for members in kept)
        for members in model:
            if members not in kept:
                spread = _stacked(f, members).spread
                share = float(np.sqrt(spread / size)) if size else float("inf")
                result.enter((share if spread else 0.0, _named(b, "VO", members, members)))


def _speaking(f: FoldedAttention) -> list[Head]:
    """Query heads that add something."""
    groups, heads = np.nonzero(f.output.value.any(axis=(2, 3)))
    return list(zip(groups.tolist(), heads.tolist(), strict=True))


def _single(f: FoldedAttention, head: Head) -> FoldedAttention:
    return reordered(f, np.array([head[0]]), np.array([[head[1]]]))


def _attend_alike(
    one: tuple[FoldedAttention, Head, NDArray[np.complex128]],
    other: tuple[FoldedAttention, Head, NDArray[np.complex128]],
    scores: Scores,
) -> bool:
    """Whether two heads have the same scores; raises where rounding leaves it open."""
    if not has_near_readings(np.array([one[2][one[1]], other[2][other[1]]])):
        return False
    first, second = (_single(f, head) for f, head, _ in (one, other))
    # In the coordinates of either: only one of the two need show independent rounding.
    both = [scores(first, second, "").statistics, scores(second, first, "").statistics]
    if any(all(part.is_same for part in found) for found in both):
        return True
    if all(any(part.is_different for part in found) for found in both):
        return False
    raise _UnclearError


def _gathered(
    f: FoldedAttention,
    heads: Sequence[Head],
    readings: NDArray[np.complex128],
    scores: Scores,
) -> list[list[Head]]:
    """Heads by how they attend."""
    ways: list[list[Head]] = []
    for head in heads:
        for members in ways:
            if _attend_alike((f, head, readings), (f, members[0], readings), scores):
                members.append(head)
                break
        else:
            ways.append([head])
    return ways


def _paired(
    a: FoldedAttention,
    b: FoldedAttention,
    ours: list[list[Head]],
    theirs: list[list[Head]],
    readings: Sequence[NDArray[np.complex128]],
    scores: Scores,
) -> list[tuple[list[Head], list[Head]]] | None:
    """The same way to attend in both models; None if one has some that the other has not."""
    free = [members for members in ours if not _cancels(_stacked(a, members))]
    pairs = []
    for members in theirs:
        if _cancels(_stacked(b, members)):
            continue
        for candidate in free:
            here, there = (a, candidate[0], readings[0]), (b, members[0], readings[1])
            if _attend_alike(here, there, scores):
                pairs.append((candidate, members))
                free.remove(candidate)
                break
        else:
            return None
    return None if free else pairs


def _named(b: FoldedAttention, circuit: str, ours: Sequence[Head], theirs: Sequence[Head]) -> str:
    inside = b.query.shape[1]
    numbers = ", ".join(str(group * inside + head) for group, head in theirs)
    name = f"{b.attention.label} {circuit}, query head{'s' * (len(theirs) > 1)} {numbers}"
    if len(ours) == len(theirs):
        return name + " together" * (len(theirs) > 1)
    return f"{name} against {len(ours)} that {'attends' if len(ours) == 1 else 'attend'} alike"


# --- sums ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """``value^T output`` of stacked heads, shapes ``(K, d)``, in a layer's frame."""

    layer: FoldedAttention
    value: Noisy
    output: Noisy

    @property
    def height(self) -> int:
        return self.value.shape[0]

    def as_heads(self) -> FoldedAttention:
        """One wide head."""
        return replace(
            self.layer,
            value=self.value.reshaped(1, *self.value.shape),
            output=self.output.reshaped(1, 1, *self.output.shape),
        )

    @property
    def spread(self) -> float:
        """Variance that rounding gives the product, summed over its entries."""
        p, d = self.value, self.output
        return float(d.size @ p.variance.sum(axis=-1) + p.size @ d.variance.sum(axis=-1))

    @property
    def size(self) -> float:
        """Squared norm of the product; zero where everything cancels."""
        p, d = self.value, self.output
        size = float(((p.value @ p.value.T) * (d.value @ d.value.T)).sum())
        return size if size > 1e-24 * float(p.size @ d.size) else 0.0

    @property
    def uncertainty(self) -> float:
        """Relative rounding uncertainty of the product."""
        return float(np.sqrt(self.spread / self.size)) if self.size else float("inf")


def _stacked(f: FoldedAttention, members: Sequence[Head]) -> _Sum:
    """Values and outputs of some heads on top of each other, rows of zeros left out."""
    groups, heads = np.array(members).T
    value, output = f.value.part(groups), f.output.part((groups, heads))
    value, output = (x.reshaped(-1, x.shape[-1]) for x in (value, output))
    rows = np.flatnonzero(value.value.any(axis=1) & output.value.any(axis=1))
    return _Sum(_single(f, members[0]), value.part(rows), output.part(rows))


def _cancels(whole: _Sum) -> bool:
    """Whether nothing is left of a sum but rounding."""
    return _cut(whole, None)[0].height == 0


def _compare_sum(first: _Sum, second: _Sum, name: str, values: Values, result: SummedHeads) -> None:
    """Enter the statistic of two sums, at the rank at which they differ least."""
    for whole in (first, second):
        result.enter((whole.uncertainty, name))
    ranks = [_cut(whole, None)[0].height for whole in (first, second)]
    most = min(first.height, second.height)
    best: list[Statistic] = []
    for rank in range(min(*ranks, most), min(max(ranks), most) + 1):
        found = _at_rank(first, second, rank, name, values)
        if not best or _worst(found) < _worst(best):
            best = found
        if all(part.is_same for part in best):
            break
    result.statistics += best


def _worst(parts: Sequence[Statistic]) -> float:
    """How far from rounding, in units of what still counts as rounding."""
    return max((max(p.rms / p.same_rms, p.largest / SAME_MAX) for p in parts), default=0.0)


def _at_rank(first: _Sum, second: _Sum, rank: int, name: str, values: Values) -> list[Statistic]:
    """Statistic of two sums in as many rows, and of what these leave of either where it shows."""
    cut = [_cut(whole, rank) for whole in (first, second)]
    # What a basis of too many rows owes to their rounding is common to whole rows.
    owed = [rank * (whole.height - rank) for whole in (first, second) if whole.height > rank]
    parts = []
    if rank:
        for part in values(*(whole.as_heads() for whole, _ in cut)).statistics:
            few = min([part.count / CORRELATED, *(float(number) for number in owed)])
            parts.append(replace(part, name=name, independent=max(1.0, few)))
    rest = [part for _, left in cut for part in left if not part.is_same]
    return parts + [replace(part, name=f"{name}: rank") for part in rest]


def _cut(whole: _Sum, rank: int | None) -> tuple[_Sum, list[Statistic]]:
    """A sum with as few rows as its rounding allows, or with ``rank`` rows, and what that leaves.

    Values that depend on each other are brought to fewer rows first, then outputs. What is left
    out should be rounding.
    """
    layer, value, output = whole.layer, whole.value, whole.output
    if rank is None:
        value, output, _ = _reduced(value, output)
        output, value, _ = _reduced(output, value)
        return _Sum(layer, value, output), []
    ways = []
    for exactly in (False, True):
        p, d, rest = _reduced(value, output, rank, exactly)
        d, p, more = _reduced(d, p, rank, True)
        left = [part for part in (rest, more) if part is not None]
        ways.append((_Sum(layer, p, d), left))
        if all(part.is_same for part in left):
            break
    return min(ways, key=lambda way: _worst(way[1]) if way[1] else 0.0)


def _reduced(
    first: Noisy, second: Noisy, rank: int = 0, exactly: bool = False
) -> tuple[Noisy, Noisy, Statistic | None]:
    """Both factors in a basis in which the first has few rows, and what those leave of it.

    With ``first = B C + noise``, ``B`` orthonormal after rows are brought to units of rounding, the
    product is ``second^T B C``. Rounding turns ``B`` by ``noise / |C_i|`` into what is left out,
    and so adds ``|left-out rows of second|^2 / |C_i|^2`` to the variance of row ``i``.

    Parameters
    ----------
    rank
        Fewest rows that are kept.
    exactly
        Whether to keep no more than that, whatever is left.
    """
    height, width = first.shape
    if height == 0:
        return first, second, None
    own = (FLOOR * EPSILON) ** 2 * first.size / width
    spread = first.variance + own[:, None]
    unit = np.sqrt(spread.mean(axis=1))[:, None]
    size = float(np.exp(np.log(unit).mean()))
    scaled = Noisy(first.value / unit, spread / unit**2)
    dual = second.scaled(unit)
    left, sizes, _ = np.linalg.svd(scaled.value, full_matrices=True)
    sizes = np.concatenate([sizes, np.zeros(height - len(sizes))])
    kept, rest = _fewest_rows(scaled, left, sizes, rank, exactly)
    if kept == height:
        return first, second, None
    basis, other = left[:, :kept].T, left[:, kept:].T
    lost = np.square(other @ dual.value).sum(axis=0)
    reduced = Noisy(basis @ scaled.value, np.square(basis) @ (first.variance / unit**2))
    reduced = reduced.scaled(size)
    passed = np.square(basis) @ dual.variance
    passed += lost / np.maximum(np.square(sizes[:kept, None]), 1.0)
    return reduced, Noisy(basis @ dual.value, passed).scaled(1 / size), rest


def _fewest_rows(
    scaled: Noisy, left: Array, sizes: Array, least: int, exactly: bool
) -> tuple[int, Statistic | None]:
    """How many rows to keep so that the rest is rounding, and the statistic of the rest."""
    height, width = scaled.shape
    tails = np.cumsum(np.square(sizes[::-1]))[::-1]
    for kept in range(min(least, height), height):
        typical = float(np.sqrt(tails[kept] / ((height - kept) * width)))
        if not exactly and typical > 2 * SAME_RMS:
            continue
        other = left[:, kept:].T
        rest = Noisy(other @ scaled.value, np.square(other) @ scaled.variance)
        none = Noisy(np.zeros(rest.shape), np.zeros(rest.shape))
        # Every left-out row was fitted by the others.
        part = statistic("", rest, none, computed=False, leverage=2 * kept / width)
        if exactly or part.is_same:
            return kept, part
    return height, None
