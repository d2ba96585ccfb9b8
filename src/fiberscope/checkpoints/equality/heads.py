"""Heads of two models: who is whose, the change of basis inside, and what is left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.equality.factors import (
    BasisChange,
    fit_basis,
    row_squares,
    weighed_columns,
)
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
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import (
    Piece,
    Statistic,
    allowance,
    measured,
    statistic,
    statistic_of_pieces,
    together,
)
from fiberscope.checkpoints.equality.tiles import FAINTEST, STRONGEST, Factor, factors
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index

BATCH = 1 << 20
"""Numbers of a factor pair that are worked on at a time: they stay in the cache."""
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
    found = _compared(a, b, rotated)
    if merged is not None:
        found.merged = _renumbered(merged, found.groups, found.heads)
        found.is_split = any(split.values())
    return found


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
    count, inside, width, features = b.query.shape
    matrices = []
    for groups in _few(count, (inside + 1) * width * features):
        plain, dual = [], []
        asked = factors(a.query.part(groups), b.query.part(groups))
        offered = factors(a.key.part(groups), b.key.part(groups))
        for f, query, key in zip((a, b), asked, offered, strict=True):
            constants = [
                None if c is None else c.part(groups) for c in (f.query_constant, f.key_constant)
            ]
            plain.append(query.with_constant(constants[0]).side_by_side())
            dual.append(key.with_constant(constants[1]))
        matrices.append(_fit_query_key(plain, dual, b.attention, found, groups, count, rotated))
    return np.concatenate(matrices)


def _few(count: int, size: int) -> Iterator[slice]:
    """Groups that are worked on at a time, ``size`` numbers each."""
    step = max(1, BATCH // max(1, size))
    for start in range(0, count, step):
        yield np.s_[start : min(start + step, count)]


def _fit_query_key(
    plain: list[Factor],
    dual: list[Factor],
    attention: Attention,
    found: HeadMatch,
    groups: slice,
    total: int,
    rotated: bool,
) -> Array:
    """The bases of some groups, and their statistics."""
    count, width = plain[1].value.shape[:2]
    whole = False
    matrix = np.zeros((count, width, width))
    back = np.zeros((count, width, width))
    for first, second in blocks(attention):
        if second is None:
            whole = len(first) == width
            change = _fit(plain, dual, None if whole else partial(_plain_rows, first))
            matrix[:, first[:, None], first] = change.matrix
            back[:, first[:, None], first] = change.dual
            continue
        number, size = first.shape
        whole = False
        change = _fit(plain, dual, partial(_planes, (first, second)))
        for target, complex_matrix in ((matrix, change.matrix), (back, change.dual)):
            z = complex_matrix.reshape(count, number, size, size)
            for i in range(size):
                for j in range(size):
                    target[:, first[:, i], first[:, j]] = z[:, :, i, j].real
                    target[:, second[:, i], second[:, j]] = z[:, :, i, j].real
                    target[:, second[:, i], first[:, j]] = z[:, :, i, j].imag
                    target[:, first[:, i], second[:, j]] = -z[:, :, i, j].imag
    free = 1 if attention.rotary is not None else width
    leverage = 2 * free / (plain[1].value.shape[-1] + dual[1].value.shape[-1])
    names = _names(found, "QK", groups, total)
    if not whole:
        change = BasisChange(matrix, back)
    _measure(found, names, plain, dual, change, leverage, rotated)
    return matrix


def _names(found: HeadMatch, circuit: str, groups: slice, total: int) -> list[str]:
    name = f"{found.label} {circuit}"
    if total == 1:
        return [name]
    return [f"{name}, group {group}" for group in range(groups.start, groups.stop)]


def _plain_rows(rows: NDArray[Any], array: NDArray[Any], _: complex) -> NDArray[Any]:
    return np.asarray(array[:, rows])


def _planes(
    pair: tuple[NDArray[Any], NDArray[Any]], array: NDArray[Any], unit: complex
) -> NDArray[Any]:
    """Rows of planes as complex numbers (or their sums), one batch entry a group and block."""
    whole = array[:, pair[0]] + unit * array[:, pair[1]]
    return np.asarray(whole.reshape(-1, whole.shape[2], whole.shape[3]))


def _fit(
    plain: list[Factor],
    dual: list[Factor],
    rows: Callable[[NDArray[Any], complex], NDArray[Any]] | None = None,
) -> BasisChange:
    """Fit all rows, or some: ``rows`` takes them, given the factor of the second rows of planes."""
    scaled, noises = [], []
    for pair in (plain, dual):
        values, noise = weighed_columns(
            [x.value if rows is None else rows(x.value, 1j) for x in pair],
            [x.variance if rows is None else rows(x.variance, 1.0) for x in pair],
        )
        scaled += values
        noises.append(noise / pair[0].unit ** 2)
    change = fit_basis(*scaled, *noises)
    given = plain[0].value, plain[1].value, dual[0].value, dual[1].value
    if any(x is not y for x, y in zip(scaled, given, strict=True)):
        change = replace(change, apart=None)  # of other numbers
    return change


def _value_output(a: FoldedAttention, b: FoldedAttention, found: HeadMatch, rotated: bool) -> Array:
    count, inside, width, features = b.output.shape
    matrices = []
    for groups in _few(count, (inside + 1) * width * features):
        plain = factors(a.value.part(groups), b.value.part(groups))
        written = factors(a.output.part(groups), b.output.part(groups))
        dual = [x.side_by_side() for x in written]
        change = _fit(plain, dual)
        leverage = 2 * width / (plain[1].value.shape[-1] + dual[1].value.shape[-1])
        names = _names(found, "VO", groups, count)
        _measure(found, names, plain, dual, change, leverage, rotated)
        matrices.append(change.matrix)
    return np.concatenate(matrices)


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
    names: list[str],
    plain: list[Factor],
    dual: list[Factor],
    change: BasisChange,
    leverage: float,
    rotated: bool,
) -> None:
    """Residuals of both factors, group by group, in the second model's coordinates."""
    allowed = allowance(change.condition)
    pieces = [
        _residuals(matrix, first, second, allowed, leverage, rotated, apart)
        for matrix, (first, second), apart in zip(
            (change.matrix, change.dual), (plain, dual), change.apart or (None, None), strict=True
        )
    ]
    width = change.matrix.shape[-1]
    for group, name in enumerate(names):
        rows = np.s_[group * width : (group + 1) * width]
        parts = [statistic_of_pieces(name, [piece.some(rows)]) for piece in pieces]
        found.statistics.append(together(name, parts))
    # Of either model: agreement with a blurred product says nothing, whichever is blurred.
    share = uncertainty(plain, dual)
    worst = int(share.argmax())
    if share[worst] > found.uncertainty[0]:
        found.uncertainty = (float(share[worst]), names[worst])


def _residuals(
    matrix: Array,
    first: Factor,
    second: Factor,
    allowed: Array,
    leverage: float,
    rotated: bool,
    apart: Array | None,
) -> Piece:
    """Rows of all groups after a change of basis, ``matrix @ first`` against ``second``."""
    width, length = second.value.shape[1:]
    size = second.size.reshape(-1)
    sizes = size, size
    if apart is None:
        apart = matrix @ first.value
        sizes = size, row_squares(apart).reshape(-1)
        np.subtract(second.value, apart, out=apart)
    floor = np.repeat(allowed, width) ** 2 / length * np.maximum(*sizes)
    weights, unit = np.square(matrix), second.unit
    kind = second.variance.dtype
    # Squares of three digits do, unless their range is that of float64.
    reach = float(weights.max(initial=0.0))
    if not (reach < STRONGEST**0.5 and float(floor.min(initial=1.0)) * unit**2 > FAINTEST):
        kind = np.dtype(np.float64)
    piece = _piece(apart, weights, (first, second), sizes, floor, leverage, rotated, kind)
    if not np.isfinite(piece.total).all():
        kind = np.dtype(np.float64)
        piece = _piece(apart, weights, (first, second), sizes, floor, leverage, rotated, kind)
    return replace(piece, apart=piece.apart / unit**2, share=piece.share / unit**2)


def _piece(
    apart: Array,
    weights: Array,
    factors: tuple[Factor, Factor],
    sizes: tuple[Array, Array],
    floor: Array,
    leverage: float,
    rotated: bool,
    kind: np.dtype[Any],
) -> Piece:
    """Measure residuals in float32 or float64, in units."""
    first, second = factors
    length, unit = apart.shape[-1], second.unit
    passed = weights.astype(kind) @ first.variance.astype(kind, copy=False)
    own = second.variance.astype(kind, copy=False)
    ones = np.ones(length, dtype=kind)
    spreads = [(x @ ones).reshape(-1).astype(np.float64) for x in (own, passed)]
    passed += own
    residual = np.empty(apart.shape, dtype=kind)
    with np.errstate(over="ignore"):
        np.multiply(apart, unit, out=residual, casting="same_kind")
        return measured(
            residual.reshape(-1, length),
            passed.reshape(-1, length),
            sizes,
            (spreads[0], spreads[1]),
            floor * unit**2,
            rotated=rotated,
            leverage=leverage,
        )


def uncertainty(plain: list[Factor], dual: list[Factor]) -> Array:
    """Relative rounding uncertainty of the products ``dual^T plain``, of the worse model; ``(G,)``.

    The products of both models are one, or the models differ: their size is that of the second.
    """
    spreads = []
    for p, d in zip(plain, dual, strict=True):
        sums = [
            (x.variance @ np.ones(x.variance.shape[-1], x.variance.dtype)) / x.unit**2
            for x in (p, d)
        ]
        spreads.append((d.size * sums[0] + p.size * sums[1]).sum(axis=-1))
    bound = plain[1].size.sum(-1) * dual[1].size.sum(-1)
    size = _product_size(plain[1].value, dual[1].value, bound)
    live = size > 1e-12 * bound
    spread = np.maximum(*spreads)
    return np.sqrt(np.where(live, spread / np.where(live, size, 1.0), 0.0))


def _product_size(plain: Array, dual: Array, bound: Array) -> Array:
    """Squared norms of ``dual^T plain``: float32 does, but where nearly everything cancels."""
    size = np.empty(len(plain))
    for group, limit in enumerate(bound):
        if 1e-25 < limit < 1e25:
            p, d = (x[group].astype(np.float32) for x in (plain, dual))
            size[group] = float(np.vdot(p @ p.T, d @ d.T))
            if size[group] > 1e-4 * limit:
                continue
        p, d = plain[group], dual[group]
        size[group] = np.vdot(p @ p.T, d @ d.T)
    return size


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
