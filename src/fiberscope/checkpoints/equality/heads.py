"""Heads of two models: who is whose, the change of basis inside, and what is left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.equality.factors import BasisChange, fit_basis, weighed_columns
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.frame import Frame
from fiberscope.checkpoints.equality.head_assignment import assign_heads
from fiberscope.checkpoints.equality.mixed_heads import (
    Alike,
    MixedHeads,
    added_up,
    compare_wholes,
    has_equal_groups,
    speaking,
)
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.normalised_heads import (
    turned_to,
    with_positive_gains,
)
from fiberscope.checkpoints.equality.silence import (
    hides_silence,
    reordered,
    silenced,
    with_constant,
    without_silent_groups,
)
from fiberscope.checkpoints.equality.statistic import Statistic, statistic, together
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index

VACUOUS = 0.1
"""Relative uncertainty of a circuit's product above which agreement would say nothing."""


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
    label = b.attention.label
    if hides_silence(a, b):
        none = np.zeros(0, dtype=np.int64)
        reason = f"{label}: the storage rounding hides whether some heads are silent"
        return HeadMatch(label, none, none, None, np.zeros(0), reason=reason)
    a, b = silenced(a), silenced(b)
    if b.query_gain is not None:
        a, b = with_positive_gains(a), with_positive_gains(b)
    if a.query.shape[:2] != b.query.shape[:2]:
        a, b = without_silent_groups(a), without_silent_groups(b)
        if a.query.shape[:2] != b.query.shape[:2]:
            none = np.zeros(0, dtype=np.int64)
            counts = " against ".join(f"{f.query.shape[0]} x {f.query.shape[1]}" for f in (a, b))
            return HeadMatch(label, none, none, None, np.zeros(0), mismatch=f"{label}: {counts}")
    if not b.query.shape[0]:
        return HeadMatch(
            label, np.zeros(0, np.int64), np.zeros((0, 0), np.int64), None, np.zeros(0)
        )
    merged = None
    if (speaking(a) != speaking(b)).any():
        (a, merged), (b, split) = (added_up(f, _alike(rotated)) for f in (a, b))
        a, b = silenced(a), silenced(b)
        if (speaking(a) != speaking(b)).any() and any(
            has_equal_groups(f, _alike(rotated)) for f in (a, b)
        ):
            none = np.zeros(0, dtype=np.int64)
            reason = f"{label}: groups that attend alike may have been merged into fewer"
            return HeadMatch(label, none, none, None, np.zeros(0), reason=reason)
    groups, heads = assign_heads(a, b)
    a, turn = reordered(a, groups, heads), None
    if b.query_gain is not None:
        a, turn = turned_to(a, b)
    found = HeadMatch(label, groups, heads, None, np.zeros(0))
    if merged is not None:
        found.merged = _renumbered(merged, groups, heads)
        found.is_split = any(split.values())
    if b.query_gain is None:
        found.query_key = _query_key(a, b, found, rotated)
    else:
        found.turn = turn
        _normalised(a, b, found, rotated)
    first = len(found.statistics)
    found.value_output = _value_output(a, b, found, rotated)
    if any(not one.is_same for one in found.statistics[first:]):
        _wholes(a, b, found, first, rotated)
    if b.table is not None and a.table is not None:
        found.statistics.append(statistic(f"{label} position table", b.table, a.table))
    return found


def blocks(attention: Attention) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64] | None]]:
    """Rows on which a query/key basis change acts: planes of one frequency, and the rest.

    Yields ``(rows, None)`` for real blocks and ``(first rows, second rows)`` for planes.
    """
    rest = unrotated_index(attention)
    if len(rest):
        yield rest, None
    if attention.rotary is None:
        return
    planes: dict[float, list[tuple[int, int]]] = defaultdict(list)
    for plane, frequency in zip(attention.rotary.planes, attention.rotary.frequencies, strict=True):
        oriented = plane if frequency > 0 else (plane[1], plane[0])
        planes[abs(frequency)].append(oriented)
    sizes: dict[int, list[list[tuple[int, int]]]] = defaultdict(list)
    for block in planes.values():
        sizes[len(block)].append(block)
    for same in sizes.values():
        rows = np.array(same)  # (blocks, planes in a block, 2)
        yield rows[..., 0], rows[..., 1]


def _query_key(a: FoldedAttention, b: FoldedAttention, found: HeadMatch, rotated: bool) -> Array:
    """Fit the query/key bases, and add one statistic per group."""
    count, _, width = b.query.shape[:3]
    plain = [with_constant(f.query, f.query_constant) for f in (a, b)]
    plain = [
        Noisy(
            p.value.transpose(0, 2, 1, 3).reshape(count, width, -1),
            p.variance.transpose(0, 2, 1, 3).reshape(count, width, -1),
        )
        for p in plain
    ]
    dual = [with_constant(f.key, f.key_constant) for f in (a, b)]
    matrix = np.zeros((count, width, width))
    back = np.zeros((count, width, width))
    for first, second in blocks(b.attention):
        if second is None:
            change = _fit(
                [p.value[:, first] for p in plain],
                [d.value[:, first] for d in dual],
                [p.variance[:, first] for p in plain],
                [d.variance[:, first] for d in dual],
            )
            matrix[:, first[:, None], first] = change.matrix
            back[:, first[:, None], first] = change.dual
            continue
        number, size = first.shape

        pair = (first, second)
        change = _fit(
            [_planes(p.value, pair, 1j) for p in plain],
            [_planes(d.value, pair, 1j) for d in dual],
            [_planes(p.variance, pair, 1.0) for p in plain],
            [_planes(d.variance, pair, 1.0) for d in dual],
        )
        for target, complex_matrix in ((matrix, change.matrix), (back, change.dual)):
            z = complex_matrix.reshape(count, number, size, size)
            for i in range(size):
                for j in range(size):
                    target[:, first[:, i], first[:, j]] = z[:, :, i, j].real
                    target[:, second[:, i], second[:, j]] = z[:, :, i, j].real
                    target[:, second[:, i], first[:, j]] = z[:, :, i, j].imag
                    target[:, first[:, i], second[:, j]] = -z[:, :, i, j].imag
    free = 1 if b.attention.rotary is not None else width
    leverage = 2 * free / (plain[1].shape[-1] + dual[1].shape[-1])
    _measure(found, "QK", plain, dual, BasisChange(matrix, back), leverage, rotated)
    return matrix


def _planes(array: Array, pair: tuple[NDArray[Any], NDArray[Any]], unit: complex) -> NDArray[Any]:
    """Rows of planes as complex numbers (or their sums), one batch entry a group and block."""
    whole = array[:, pair[0]] + unit * array[:, pair[1]]
    return np.asarray(whole.reshape(-1, whole.shape[2], whole.shape[3]))


def _fit(
    plain: list[NDArray[Any]],
    dual: list[NDArray[Any]],
    plain_noise: list[Array],
    dual_noise: list[Array],
) -> BasisChange:
    first, plain_rows = weighed_columns(plain, plain_noise)
    second, dual_rows = weighed_columns(dual, dual_noise)
    return fit_basis(first[0], first[1], second[0], second[1], plain_rows, dual_rows)


def _value_output(a: FoldedAttention, b: FoldedAttention, found: HeadMatch, rotated: bool) -> Array:
    count, _, width = b.output.shape[:3]
    plain = [a.value, b.value]
    dual = [
        Noisy(
            f.output.value.transpose(0, 2, 1, 3).reshape(count, width, -1),
            f.output.variance.transpose(0, 2, 1, 3).reshape(count, width, -1),
        )
        for f in (a, b)
    ]
    change = _fit(
        [p.value for p in plain],
        [d.value for d in dual],
        [p.variance for p in plain],
        [d.variance for d in dual],
    )
    leverage = 2 * width / (plain[1].shape[-1] + dual[1].shape[-1])
    _measure(found, "VO", plain, dual, change, leverage, rotated)
    return change.matrix


def _wholes(
    a: FoldedAttention, b: FoldedAttention, found: HeadMatch, first: int, rotated: bool
) -> None:
    """Compare groups whose values differ one by one as wholes, where their heads attend alike."""

    def fit(x: FoldedAttention, y: FoldedAttention) -> tuple[Array, list[Statistic]]:
        trial = _trial(found.label)
        matrix = _value_output(x, y, trial, rotated)
        return matrix, trial.statistics

    count = b.query.shape[0]
    given = found.statistics[first : first + count]
    mixed, parts = compare_wholes(a, b, given, _alike(rotated), fit)
    found.mixed += mixed
    found.statistics[first : first + count] = parts


def _alike(rotated: bool) -> Alike:
    """Whether two heads have the same scores, up to rounding: the change of basis between them."""

    def alike(one: FoldedAttention, other: FoldedAttention) -> Array | None:
        trial = _trial("")
        if other.query_gain is None:
            matrix = _query_key(one, other, trial, rotated)[0]
        else:
            one, turn = turned_to(one, other)
            matrix = turn[0]
            _normalised(one, other, trial, rotated)
        if one.table is not None and other.table is not None:
            trial.statistics.append(statistic("", other.table, one.table))
        return matrix if all(part.is_same for part in trial.statistics) else None

    return alike


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


def _trial(label: str) -> HeadMatch:
    none = np.zeros(0, dtype=np.int64)
    return HeadMatch(label, none, none, None, np.zeros(0))


def _measure(
    found: HeadMatch,
    circuit: str,
    plain: list[Noisy],
    dual: list[Noisy],
    change: BasisChange,
    leverage: float,
    rotated: bool,
) -> None:
    """Residuals of both factors, group by group, in the second model's coordinates."""
    matrix, back = change.matrix, change.dual
    condition = change.condition
    moved = Noisy(matrix @ plain[0].value, matrix**2 @ plain[0].variance)
    moved_dual = Noisy(back @ dual[0].value, back**2 @ dual[0].variance)
    for group in range(len(matrix)):
        name = f"{found.label} {circuit}"
        name += f", group {group}" if len(matrix) > 1 else ""
        parts = [
            statistic(
                name,
                second.part(group),
                first.part(group),
                rotated=rotated,
                condition=float(condition[group]),
                leverage=leverage,
            )
            for first, second in ((moved, plain[1]), (moved_dual, dual[1]))
        ]
        found.statistics.append(together(name, parts))
    # Of either model: agreement with a blurred product says nothing, whichever is blurred.
    share = np.maximum(uncertainty(plain[0], dual[0]), uncertainty(plain[1], dual[1]))
    worst = int(share.argmax())
    if share[worst] > found.uncertainty[0]:
        found.uncertainty = (float(share[worst]), f"{found.label} {circuit}, group {worst}")


def uncertainty(plain: Noisy, dual: Noisy) -> Array:
    """Relative rounding uncertainty of the products ``dual^T plain``, per group."""
    left, right = plain.size, dual.size
    spread = (right * plain.variance.sum(-1) + left * dual.variance.sum(-1)).sum(-1)
    gram = plain.value @ plain.value.swapaxes(-1, -2)
    gram_dual = dual.value @ dual.value.swapaxes(-1, -2)
    size = np.einsum("gst,gst->g", gram, gram_dual)
    live = size > 1e-12 * (left.sum(-1) * right.sum(-1))
    return np.sqrt(np.where(live, spread / np.where(live, size, 1.0), 0.0))


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
