"""Neurons that share their argument: only sums over them are visible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fiberscope.checkpoints.equality.circuits import VACUOUS
from fiberscope.checkpoints.equality.folded_parts import FoldedMlp
from fiberscope.checkpoints.equality.neuron_assignment import Scales
from fiberscope.checkpoints.equality.neuron_fit import NeuronMatch, fit_neurons
from fiberscope.checkpoints.equality.noisy import Noisy, joined
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.statistic import Statistic, statistic, together

REACH = 6.0
"""Standard deviations within which two arguments count as equal."""


def compare_merged(
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
        left, right = a.chosen(rows[:, 0]), b.chosen(rows[:, 1])
        up_scale, gate_scale, alike = fit_neurons(left, right, scales, rotated, found.label)
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
    part = f.chosen(members)
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
