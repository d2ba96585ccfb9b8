"""Circuits of heads: the changes of basis between two models, and what they leave over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.equality.factors import (
    BasisChange,
    fit_basis,
    weighed_columns,
)
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.likelihood import row_squares
from fiberscope.checkpoints.equality.loops import loops
from fiberscope.checkpoints.equality.noisy import Array
from fiberscope.checkpoints.equality.settled_heads import NEGLIGIBLE, Settled, settled_heads
from fiberscope.checkpoints.equality.statistic import (
    Piece,
    Statistic,
    allowance,
    measured,
    statistic_of_pieces,
    together,
)
from fiberscope.checkpoints.equality.tiles import FAINTEST, STRONGEST, Factor, factors
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index

VACUOUS = 0.1
"""Relative uncertainty of a circuit's product above which agreement would say nothing."""
BATCH = 1 << 20
"""Numbers of a factor pair that are worked on at a time: they stay in the cache."""


@dataclass
class Circuits:
    """One circuit of every group.

    Attributes
    ----------
    label
        The attention.
    matrix
        Changes of basis ``(G, r, r)``.
    statistics
        One a group.
    uncertainty
        Largest relative uncertainty of a live product, with its name.
    """

    label: str
    matrix: Array = field(default_factory=lambda: np.zeros(0))
    statistics: list[Statistic] = field(default_factory=list)
    uncertainty: tuple[float, str] = (0.0, "")


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


def query_key(a: FoldedAttention, b: FoldedAttention, rotated: bool) -> Circuits:
    """Fit the query/key bases of all groups, and measure what is left."""
    found = Circuits(b.attention.label)
    count, inside, width, features = b.query.shape
    free = blocks(b.attention)
    rows, second = next(free)
    quick = None
    if second is None and len(rows) == width:
        quick = settled_heads(
            (a.query, b.query),
            (a.key, b.key),
            ((a.query_constant, b.query_constant), (a.key_constant, b.key_constant)),
            rotated=rotated,
        )

    def fit(groups: slice) -> Array:
        plain, dual = [], []
        asked = factors(a.query.part(groups), b.query.part(groups))
        offered = factors(a.key.part(groups), b.key.part(groups))
        for f, query, key in zip((a, b), asked, offered, strict=True):
            constants = [
                None if c is None else c.part(groups) for c in (f.query_constant, f.key_constant)
            ]
            plain.append(query.with_constant(constants[0]).side_by_side())
            dual.append(key.with_constant(constants[1]))
        return _fit_query_key(plain, dual, b.attention, found, groups, count, rotated)

    _collect(found, "QK", quick, fit, count, (inside + 1) * width * features)
    return found


def _collect(
    found: Circuits,
    circuit: str,
    quick: Settled | None,
    fit: Callable[[slice], Array],
    count: int,
    size: int,
) -> None:
    """Enter circuits that are settled, and fit the others, in order; ``size`` numbers a group."""
    matrices = []
    names = _names(found, circuit, np.s_[0:count], count)
    done = np.zeros(count, dtype=np.bool_) if quick is None else quick.done
    for settled, groups in _runs(done):
        if settled and quick is not None:
            for group in range(groups.start, groups.stop):
                _enter(found, names[group], quick.pieces[group], quick.uncertainty[group])
            matrices.append(quick.matrix[groups])
        else:
            matrices += [
                fit(np.s_[groups.start + some.start : groups.start + some.stop])
                for some in _few(groups.stop - groups.start, size)
            ]
    found.matrix = np.concatenate(matrices)


def _runs(done: NDArray[np.bool_]) -> Iterator[tuple[bool, slice]]:
    """Consecutive groups that are settled or not."""
    for settled, members in groupby(range(len(done)), key=lambda group: bool(done[group])):
        every = list(members)
        yield settled, np.s_[every[0] : every[-1] + 1]


def _enter(found: Circuits, name: str, pieces: Sequence[Piece], share: float) -> None:
    """Enter what is left of both factors of a circuit, and the uncertainty of its product."""
    parts = [statistic_of_pieces(name, [piece]) for piece in pieces]
    found.statistics.append(together(name, parts))
    # Of either model: agreement with a blurred product says nothing, whichever is blurred.
    if share > found.uncertainty[0]:
        found.uncertainty = (float(share), name)


def _few(count: int, size: int) -> Iterator[slice]:
    """Groups that are worked on at a time, ``size`` numbers each."""
    step = max(1, BATCH // max(1, size))
    for start in range(0, count, step):
        yield np.s_[start : min(start + step, count)]


def _fit_query_key(
    plain: list[Factor],
    dual: list[Factor],
    attention: Attention,
    found: Circuits,
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


def _names(found: Circuits, circuit: str, groups: slice, total: int) -> list[str]:
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
    scaled: list[NDArray[Any]] = []
    noises: list[list[Array]] = []
    for pair in (plain, dual):
        values, noise = weighed_columns(
            [x.value if rows is None else rows(x.value, 1j) for x in pair],
            [x.variance if rows is None else rows(x.variance, 1.0) for x in pair],
        )
        scaled += values
        noises.append([x / pair[0].unit ** 2 for x in noise])
    (plain_carried, plain_noise), (dual_carried, dual_noise) = noises
    (one, moved), (back, back_moved) = scaled[:2], scaled[2:]
    change = fit_basis(
        one, moved, back, back_moved, plain_noise, dual_noise, plain_carried, dual_carried
    )
    given = plain[0].value, plain[1].value, dual[0].value, dual[1].value
    if any(x is not y for x, y in zip(scaled, given, strict=True)):
        change = replace(change, apart=None)  # of other numbers
    return change


def value_output(a: FoldedAttention, b: FoldedAttention, rotated: bool) -> Circuits:
    """Fit the value/output bases of all groups, and measure what is left."""
    found = Circuits(b.attention.label)
    count, inside, width, features = b.output.shape
    quick = settled_heads((a.value, b.value), (a.output, b.output), rotated=rotated)

    def fit(groups: slice) -> Array:
        plain = factors(a.value.part(groups), b.value.part(groups))
        written = factors(a.output.part(groups), b.output.part(groups))
        dual = [x.side_by_side() for x in written]
        change = _fit(plain, dual)
        leverage = 2 * width / (plain[1].value.shape[-1] + dual[1].value.shape[-1])
        names = _names(found, "VO", groups, count)
        _measure(found, names, plain, dual, change, leverage, rotated)
        return change.matrix

    _collect(found, "VO", quick, fit, count, (inside + 1) * width * features)
    return found


def _measure(
    found: Circuits,
    names: list[str],
    plain: list[Factor],
    dual: list[Factor],
    change: BasisChange,
    leverage: float,
    rotated: bool,
) -> None:
    """Residuals of both factors, group by group, in the second model's coordinates."""
    allowed = allowance(_condition(plain + dual, change))
    pieces = [
        _residuals(matrix, first, second, allowed, leverage, rotated, apart)
        for matrix, (first, second), apart in zip(
            (change.matrix, change.dual), (plain, dual), change.apart or (None, None), strict=True
        )
    ]
    width = change.matrix.shape[-1]
    share = uncertainty(plain, dual)
    for group, name in enumerate(names):
        rows = np.s_[group * width : (group + 1) * width]
        _enter(found, name, [piece.some(rows) for piece in pieces], share[group])


def _condition(factors: list[Factor], change: BasisChange) -> Array:
    """Conditions of changes of basis, or bounds on them where they cannot matter.

    They multiply the roundings of float64 that are allowed, which are a few thousandths of a
    rounding of float32 then. Variances in float32 belong to that format or a coarser one.
    """
    if all(factor.variance.dtype == np.float32 for factor in factors):
        bound = change.condition_bound
        if (bound < NEGLIGIBLE).all():
            return bound
    return change.condition


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
    allowed = np.repeat(allowed, width)
    floor = allowed**2 / length * np.maximum(*sizes)
    weights, unit = np.square(matrix), second.unit
    kind = second.variance.dtype
    # Squares of three digits do, unless their range is that of float64.
    reach = float(weights.max(initial=0.0))
    if not (reach < STRONGEST**0.5 and float(floor.min(initial=1.0)) * unit**2 > FAINTEST):
        kind = np.dtype(np.float64)
    piece = _piece(apart, weights, (first, second), sizes, allowed, leverage, rotated, kind)
    if not np.isfinite(piece.total).all():
        kind = np.dtype(np.float64)
        piece = _piece(apart, weights, (first, second), sizes, allowed, leverage, rotated, kind)
    return replace(piece, apart=piece.apart / unit**2, share=piece.share / unit**2)


def _piece(
    apart: Array,
    weights: Array,
    factors: tuple[Factor, Factor],
    sizes: tuple[Array, Array],
    allowed: Array,
    leverage: float,
    rotated: bool,
    kind: np.dtype[Any],
) -> Piece:
    """Measure residuals in float32 or float64, in units."""
    first, second = factors
    length, unit = apart.shape[-1], second.unit
    passed = weights.astype(kind) @ first.variance.astype(kind, copy=False)
    own = second.variance.astype(kind, copy=False)
    compiled = loops(apart.size) if kind == np.float32 else None
    if compiled is not None:
        found = np.empty((len(sizes[0]), 6))
        rows = [np.ascontiguousarray(x.reshape(-1, length)) for x in (apart, own, passed)]
        compiled.fitted(
            rows[0],
            rows[1],
            rows[2],
            np.stack(sizes),
            allowed,
            unit,
            leverage,
            rotated,
            found,
        )
        return Piece(length, *found.T)
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
            allowed**2 / length * np.maximum(*sizes) * unit**2,
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
