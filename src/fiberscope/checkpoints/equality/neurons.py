"""Neurons of two models: who is whose, their scales, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fiberscope.checkpoints.architecture.program import Activation
from fiberscope.checkpoints.equality.circuits import VACUOUS
from fiberscope.checkpoints.equality.factors import fit_basis, weighed_columns
from fiberscope.checkpoints.equality.folded_parts import FoldedMlp, held
from fiberscope.checkpoints.equality.frame import Frame
from fiberscope.checkpoints.equality.neuron_assignment import Scales, assign_neurons, sizes
from fiberscope.checkpoints.equality.noisy import FAINT, Array, Noisy, joined
from fiberscope.checkpoints.equality.rows import ENTRIES, Rows
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.statistic import Statistic, statistic, together
from fiberscope.checkpoints.equality.tiles import statistic_of_rows

REACH = 6.0
"""Standard deviations within which two arguments count as equal."""


@dataclass
class NeuronMatch:
    """What relates the neurons of one layer.

    Attributes
    ----------
    order
        Neuron of the first model at every neuron of the second; -1 where the second's is dead.
    up_scale, gate_scale
        Factors that carry the first model's rows to the second's, per neuron of the second.
    dead
        Neurons left out because they never reach the output: in the first and second model.
    uncertainty
        Largest relative uncertainty of a neuron's argument or output under the storage rounding.
    mixed
        Sets of neurons with one gate (or one argument), compared as a whole: the neurons of the
        first model and of the second.
    """

    label: str
    order: NDArray[np.int64]
    up_scale: Array
    gate_scale: Array
    statistics: list[Statistic] = field(default_factory=list)
    dead: tuple[int, int] = (0, 0)
    mixed: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    uncertainty: float = 0.0
    reason: str = ""
    mismatch: str = ""


def carried_mlp(folded: FoldedMlp, frame: Frame, *, down_moves: bool = True) -> FoldedMlp:
    """The first model's neurons in the second's frame."""
    return FoldedMlp(
        folded.label,
        folded.layer,
        folded.mlp,
        frame.carry(folded.up),
        frame.carry(folded.down) if down_moves else folded.down,
        folded.up_constant,
        None if folded.gate is None else frame.carry(folded.gate),
        folded.gate_constant,
    )


def scales_of(folded: FoldedMlp, activation: Activation, name: str, free: bool) -> Scales:
    """Rescalings of a layer; ``free`` is False where a norm behind it forbids them."""
    return Scales(
        folded.gate is not None,
        free and activation is Activation.HOMOGENEOUS,
        2 if name == "relu2" else 1,
        free and activation is Activation.ODD,
    )


def match_neurons(a: FoldedMlp, b: FoldedMlp, scales: Scales, *, rotated: bool) -> NeuronMatch:
    """Match the neurons of one layer (``a`` already in the frame of ``b``) and measure the rest."""
    if a.up.shape[0] == b.up.shape[0] and all(
        part is None or (isinstance(part, Rows) and part.glance is not None)
        for f in (a, b)
        for part in (f.up, f.down, f.gate)
    ):
        # No neuron is dead, and a few columns usually tell which is which.
        found = _start(a, b)
        if _assigned(a, b, scales, found, rotated, quick=True).is_same:
            return found
    live_a, live_b = _live(a), _live(b)
    if live_a.sum() != live_b.sum() and _doubtful(a.held(), b.held(), live_a, live_b):
        hidden = f"{b.label}: the storage rounding hides whether some neurons are dead"
        return NeuronMatch(b.label, np.zeros(0, np.int64), np.ones(0), np.ones(0), reason=hidden)
    found = _start(a, b)
    found.dead = int((~live_a).sum()), int((~live_b).sum())
    numbers = np.flatnonzero(live_a), np.flatnonzero(live_b)
    x, y = chosen(a, numbers[0]), chosen(b, numbers[1])
    if x.up.shape[0] != y.up.shape[0]:
        _compare_merged(x, y, scales, found, rotated, numbers)
        return found
    if not y.up.shape[0]:
        return found
    whole = _assigned(x, y, scales, found, rotated, numbers=numbers)
    if not whole.is_same:
        found.statistics.clear()
        order = found.order[numbers[1]]
        numbers = order, numbers[1]
        _compare_merged(chosen(a, order), y, scales, found, rotated, numbers, whole)
    return found


def _start(a: FoldedMlp, b: FoldedMlp) -> NeuronMatch:
    count = b.up.shape[0]
    return NeuronMatch(b.label, np.full(count, -1, dtype=np.int64), np.ones(count), np.ones(count))


def _assigned(
    x: FoldedMlp,
    y: FoldedMlp,
    scales: Scales,
    found: NeuronMatch,
    rotated: bool,
    *,
    quick: bool = False,
    numbers: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> Statistic:
    """Match neurons one to one, and enter what is found; ``numbers`` are theirs in the layer."""
    first, second = numbers or (np.arange(x.up.shape[0]), np.arange(y.up.shape[0]))
    order = assign_neurons(x, y, scales, quick=quick)
    up_scale, gate_scale, parts = _fit_in_parts(x, y, order, scales, rotated, found.label)
    whole = together(f"{found.label} neurons", parts)
    found.uncertainty = whole.uncertainty
    found.order[second] = first[order]
    found.up_scale[second], found.gate_scale[second] = up_scale, gate_scale
    found.statistics.append(whole)
    return whole


def _live(f: FoldedMlp) -> NDArray[np.bool_]:
    """Neurons whose input and output are not zero (their partner vectors are free).

    Zero as far as rounding tells: behind a LayerNorm a zero row may carry a multiple of ``1/gain``
    that cancels.
    """
    live = ~_is_faint(f.down, None)
    # Every table's activation but the sigmoid vanishes at zero; none is a sigmoid.
    live &= ~_is_faint(*f.argument)
    if f.gate is not None:
        live &= ~_is_faint(f.up, f.up_constant)
    return live


def _is_faint(rows: Noisy | Rows, constant: Noisy | None) -> NDArray[np.bool_]:
    """:attr:`Noisy.is_faint` of the rows with their constants."""
    count = rows.shape[0]
    doubtful = np.arange(count)
    if isinstance(rows, Rows):
        doubtful = np.flatnonzero(~rows.survey[2])
        if not doubtful.size:
            return np.zeros(count, dtype=np.bool_)
        rows = rows.chosen(doubtful).whole()
        constant = None if constant is None else constant.part(doubtful)
    size, spread = sizes(rows, constant)
    faint = np.zeros(count, dtype=np.bool_)
    faint[doubtful] = size <= FAINT**2 * spread
    return faint


def _doubtful(
    a: FoldedMlp, b: FoldedMlp, live_a: NDArray[np.bool_], live_b: NDArray[np.bool_]
) -> bool:
    """Whether rounding hides which neurons are dead."""
    return _hidden(a, live_a) or _hidden(b, live_b) or _flushed(a, b) or _flushed(b, a)


def _hidden(f: FoldedMlp, live: NDArray[np.bool_]) -> bool:
    """Whether a neuron counts as dead although its numbers are large: something cancels in it."""
    argument, constant = (f.up, f.up_constant) if f.gate is None else (f.gate, f.gate_constant)
    rows = [f.down, with_constant(argument, constant)]
    if f.gate is not None:
        rows.append(with_constant(f.up, f.up_constant))
    dead = np.flatnonzero(~live)
    shown = np.ones(len(dead), dtype=bool)
    for noisy in rows:
        shown &= np.asarray(noisy.value[dead].any(axis=1))
    return bool(shown.any())


def _flushed(a: FoldedMlp, b: FoldedMlp) -> bool:
    """Whether a vector that is zero in ``a`` may be one of ``b``, too small for its storage."""
    for zero, other in ((a.up, b.up), (a.down, b.down), (a.gate, b.gate)):
        if zero is None or other is None:
            continue
        dead = ~zero.value.any(axis=1)
        if dead.any():
            spread = FAINT**2 * zero.variance[dead].sum(axis=1).max()
            size = np.square(other.value).sum(axis=1)
            if ((size > 0) & (size <= spread)).any():
                return True
    return False


def chosen(f: FoldedMlp, index: NDArray[np.int64]) -> FoldedMlp:
    """Some neurons, in the given order."""
    return f.chosen(index)


def _fit_in_parts(
    a: FoldedMlp,
    b: FoldedMlp,
    order: NDArray[np.int64],
    scales: Scales,
    rotated: bool,
    label: str,
) -> tuple[Array, Array, list[Statistic]]:
    """Factors and residuals of neuron ``order[k]`` of the first and k of the second.

    Neurons do not depend on each other, so a few are fitted at a time.
    """
    a = a.chosen(order)
    if not (scales.gated or scales.homogeneous or scales.odd):
        pairs = (a.up, b.up, a.up_constant, b.up_constant), (a.down, b.down, None, None)
        lazy = [
            statistic_of_rows(label, right, left, (second, first), rotated=rotated)
            for left, right, first, second in pairs
            if isinstance(left, Rows) and isinstance(right, Rows)
        ]
        if len(lazy) == len(pairs):
            ones = np.ones(len(order))
            return ones, ones, lazy
    found = []
    step = max(16, ENTRIES // 2 // b.up.shape[1])
    for start in range(0, len(order), step):
        part = np.s_[start : start + step]
        found.append(_fit(a.part(part), b.part(part), scales, rotated, label))
    up_scale, gate_scale, parts = zip(*found, strict=True)
    statistics = [one for each in parts for one in each]
    return np.concatenate(up_scale), np.concatenate(gate_scale), statistics


def _fit(
    a: FoldedMlp,
    b: FoldedMlp,
    scales: Scales,
    rotated: bool,
    label: str,
    *,
    each: bool = False,
) -> tuple[Array, Array, list[Statistic]]:
    """Factors of matched neurons, and the residuals of their vectors.

    Columns are weighed alike for all neurons, or for ``each`` by itself where that does not do.
    """
    up = [with_constant(f.up, f.up_constant) for f in (a, b)]
    down = [held(a.down), held(b.down)]
    number, width = up[1].shape
    ones = np.ones(number)
    up_scale, gate_scale, parts = ones, ones, []
    leverage = 0.0
    if a.gate is not None and b.gate is not None:
        gate = [with_constant(f.gate, f.gate_constant) for f in (a, b) if f.gate is not None]
        if scales.homogeneous or scales.odd:
            gate_scale = _ratio(gate[0].value, gate[1].value)
            gate_scale = np.abs(gate_scale) if scales.homogeneous else np.sign(gate_scale)
            leverage = 2.0 / width
        if scales.homogeneous or scales.odd:
            gate[0] = gate[0].scaled(gate_scale[:, None])
            down[0] = down[0].scaled(gate_scale[:, None] ** -float(scales.power))
        parts.append(statistic(label, gate[1], gate[0], rotated=rotated, leverage=leverage))
    if scales.gated or scales.homogeneous:
        leverage += 2.0 / width
        if scales.gated or scales.power == 1:
            rows, up_noise = _weighed(up, each)
            columns, down_noise = _weighed(down, each)
            noises = up_noise[1], down_noise[1], up_noise[0], down_noise[0]
            change = fit_basis(rows[0], rows[1], columns[0], columns[1], *noises)
            up_scale = change.matrix[:, 0, 0].real
        else:
            up_scale = _ratio(up[0].value, up[1].value)
        if not scales.gated:
            up_scale = np.abs(up_scale)
        power = 1.0 if scales.gated else float(scales.power)
        safe = np.where(up_scale == 0, 1.0, up_scale)
        down[0] = down[0].scaled(safe[:, None] ** -power)
    elif scales.odd:
        up_scale = np.sign(_ratio(up[0].value, up[1].value))
        up_scale[up_scale == 0] = 1.0
        down[0] = down[0].scaled(up_scale[:, None])
    if up_scale is not ones:
        up[0] = up[0].scaled(up_scale[:, None])
    weighed = statistic(label, up[1], up[0], rotated=rotated, leverage=leverage)
    if a.gate is not None:
        weighed = replace(weighed, uncertainty=0.0)  # up is no argument: its product counts
    parts += [
        weighed,
        statistic(label, down[1], down[0], rotated=rotated, leverage=leverage),
    ]
    fitted = scales.gated or (scales.homogeneous and scales.power == 1)
    if fitted and not each and not all(part.is_same for part in parts):
        again = _fit(a, b, scales, rotated, label, each=True)
        if max(part.rms for part in again[2]) < max(part.rms for part in parts):
            return again
    return up_scale, gate_scale, parts


def _weighed(pair: list[Noisy], each: bool) -> tuple[list[Array], list[Array]]:
    """Vectors ``(f, 1, n)`` with columns in units of their rounding, and their noise ``(f, 1)``."""
    if each:
        # The algebra of the comparison rounds relative to a row, whatever a single number is.
        floor = (16 * np.finfo(np.float64).eps) ** 2 / pair[0].shape[-1]
        spread = [x.variance + floor * x.size[:, None] for x in pair]
        return weighed_columns([x.value[:, None] for x in pair], [x[:, None] for x in spread])
    values = [noisy.value[None] for noisy in pair]
    variances = [np.asarray(noisy.variance)[None] for noisy in pair]
    scaled, noises = weighed_columns(values, variances)
    return [value[0][:, None] for value in scaled], [noise[0][:, None] for noise in noises]


def _ratio(first: Array, second: Array) -> Array:
    """Least-squares factor of every row."""
    under = (first**2).sum(axis=1)
    over = (first * second).sum(axis=1)
    return np.where(under > 0, over / np.where(under > 0, under, 1.0), 1.0)


# --- neurons that share their argument --------------------------------------------------------


def _compare_merged(
    a: FoldedMlp,
    b: FoldedMlp,
    scales: Scales,
    found: NeuronMatch,
    rotated: bool,
    numbers: tuple[NDArray[np.int64], NDArray[np.int64]],
    whole: Statistic | None = None,
) -> None:
    """Compare layers in which neurons with one argument may have been merged, split or mixed.

    Equal arguments make only the sum of ``down up^T`` (gated) or of ``down`` visible, so clusters
    are compared by that sum. Everything that is alone in both models is compared as before.
    """
    a, b = a.held(), b.held()
    x, y = _arguments(a, scales), _arguments(b, scales)
    clusters = _clusters(x, y)
    if clusters is None:
        if whole is not None:
            found.statistics.append(whole)
        else:
            found.mismatch = (
                f"{found.label}: {a.up.shape[0]} live neurons against {b.up.shape[0]}, whose "
                "arguments do not correspond"
            )
        return
    alone = [(i[0], j[0]) for i, j in clusters if len(i) == len(j) == 1]
    parts: list[Statistic] = []
    if alone:
        rows = np.array(alone)
        left, right = chosen(a, rows[:, 0]), chosen(b, rows[:, 1])
        up_scale, gate_scale, alike = _fit(left, right, scales, rotated, found.label)
        parts += alike
        places = numbers[1][rows[:, 1]]
        found.order[places] = numbers[0][rows[:, 0]]
        found.up_scale[places], found.gate_scale[places] = up_scale, gate_scale
    vacuous = 0.0
    for i, j in clusters:
        if len(i) == len(j) == 1:
            continue
        total_a, total_b = _sum(a, i, scales), _sum(b, j, scales)
        parts.append(statistic(found.label, total_b, total_a, rotated=rotated))
        size = float(np.sqrt((total_b.value**2).sum() + (total_a.value**2).sum()))
        spread = float(np.sqrt((total_b.variance + total_a.variance).sum()))
        vacuous = max(vacuous, spread / size if size else 0.0)
        found.mixed.append((numbers[0][i], numbers[1][j]))
        pairs = min(len(i), len(j))
        found.order[numbers[1][j]] = -1
        found.order[numbers[1][j[:pairs]]] = numbers[0][i[:pairs]]
    merged = together(f"{found.label} neurons", parts)
    if whole is not None and not merged.is_same and merged.rms > whole.rms:
        merged = whole
    if vacuous > VACUOUS and merged.is_same:
        found.reason = f"{found.label}: the sum over neurons with one gate is known to 10 % only"
    found.statistics.append(merged)


def _arguments(f: FoldedMlp, scales: Scales) -> Noisy:
    """What the activation sees of every neuron, freed of its scale and sign."""
    rows = (
        with_constant(f.up, f.up_constant)
        if f.gate is None
        else with_constant(f.gate, f.gate_constant)
    )
    if scales.homogeneous:
        return rows.scaled(1.0 / np.sqrt((rows.value**2).sum(axis=1, keepdims=True)))
    if scales.odd:
        lead = np.abs(rows.value).argmax(axis=1)
        return rows.scaled(np.sign(rows.value[np.arange(len(lead)), lead])[:, None])
    return rows


def _clusters(x: Noisy, y: Noisy) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]] | None:
    """Sets of equal arguments in both models, paired; None when they do not correspond."""
    both = joined([x, y], 0)
    floor = (64 * np.finfo(np.float64).eps) ** 2 * (both.value**2).sum(axis=1)
    variance = both.variance.sum(axis=1) + floor
    # Rows with exceptionally large rounding find no partner here rather than all of them.
    reach = REACH * np.sqrt(2 * np.quantile(variance, 0.99))
    pairs = cKDTree(both.value).query_pairs(reach, output_type="ndarray")
    apart = np.square(both.value[pairs[:, 0]] - both.value[pairs[:, 1]]).sum(axis=1)
    pairs = pairs[apart <= REACH**2 * (variance[pairs[:, 0]] + variance[pairs[:, 1]])]
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    total = len(both.value)
    graph = coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(total, total))
    _, labels = connected_components(graph, directed=False)
    clusters = []
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        first, second = members[members < len(x.value)], members[members >= len(x.value)]
        if not len(first) or not len(second):
            return None
        clusters.append((first, second - len(x.value)))
    if all(len(i) == len(j) == 1 for i, j in clusters):
        return None
    return clusters


def _sum(f: FoldedMlp, members: NDArray[np.int64], scales: Scales) -> Noisy:
    """What a cluster adds for a unit activation: ``sum down up^T`` or ``sum down``."""
    part = chosen(f, members)
    down = part.down
    argument = part.up if part.gate is None else part.gate
    constant = part.up_constant if part.gate is None else part.gate_constant
    if scales.homogeneous:
        rows = with_constant(argument, constant).value
        down = down.scaled(np.sqrt((rows**2).sum(axis=1, keepdims=True)) ** scales.power)
    if scales.odd:
        rows = with_constant(argument, constant).value
        lead = np.abs(rows).argmax(axis=1)
        down = down.scaled(np.sign(rows[np.arange(len(lead)), lead])[:, None])
    if part.gate is None:
        return Noisy(
            down.value.sum(axis=0, keepdims=True), down.variance.sum(axis=0, keepdims=True)
        )
    up = with_constant(part.up, part.up_constant)
    return Noisy(
        down.value.T @ up.value,
        down.value.T**2 @ up.variance + down.variance.T @ up.value**2,
    )
