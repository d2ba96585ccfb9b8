"""Who is whose: neurons of two models matched by numbers that no rescaling alters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from fiberscope.checkpoints.equality.folded_parts import FoldedMlp
from fiberscope.checkpoints.equality.noisy import Array, Noisy, whitened
from fiberscope.checkpoints.equality.rows import SKETCH, Rows, sketch_matrix

LARGEST_ASSIGNMENT = 6000
"""Neurons that an optimal assignment is asked to sort out when neighbours are not unique."""


@dataclass(frozen=True)
class Scales:
    """Which rescalings a layer allows: of up against down, and of the activation's argument."""

    gated: bool
    homogeneous: bool
    power: int
    odd: bool


def assign_neurons(
    a: FoldedMlp, b: FoldedMlp, scales: Scales, *, quick: bool = False
) -> NDArray[np.int64]:
    """Neuron of ``a`` for every neuron of ``b``: nearest neighbours, or the best assignment."""
    x, y = _signatures(a, scales, quick), _signatures(b, scales, quick)
    first, second = whitened(x, y)
    _, nearest = cKDTree(first).query(second)
    order = np.asarray(nearest, dtype=np.int64)
    counts = np.bincount(order, minlength=len(first))
    clash = np.flatnonzero(counts[order] != 1)
    if not len(clash):
        return order
    free = np.flatnonzero(counts != 1)
    if len(clash) > LARGEST_ASSIGNMENT:
        order[clash] = free
        return order
    square = (second[clash] ** 2).sum(1)[:, None] + (first[free] ** 2).sum(1)[None]
    cost = np.maximum(square - 2 * second[clash] @ first[free].T, 0.0)
    rows, columns = linear_sum_assignment(cost)
    order[clash[rows]] = free[columns]
    return order


def _signatures(f: FoldedMlp, scales: Scales, quick: bool) -> list[Noisy]:
    """Numbers of every neuron that its rescalings leave alone."""
    if f.gate is not None:
        gate = _sketch(f.gate, quick, f.gate_constant)
        weight, gate = _argument(f.gate, f.gate_constant, gate, scales)
        up, down = (
            sketch.part(np.s_[:, :4])
            for sketch in (_sketch(f.up, quick, f.up_constant), _sketch(f.down, quick))
        )
        return [gate, _products(up, down.scaled(weight))]
    up, down = _sketch(f.up, quick, f.up_constant), _sketch(f.down, quick)
    if scales.odd:
        products = _products(up.part(np.s_[:, :4]), down.part(np.s_[:, :4]))
        return [_size(up), _size(down), products]
    weight, up = _argument(f.up, f.up_constant, up, scales)
    return [up, down.scaled(weight)]


def _sketch(rows: Noisy | Rows, quick: bool, constant: Noisy | None = None) -> Noisy:
    """Projections of the rows with their constants, shape ``(n, SKETCH)``; or some columns.

    The same ones for every layer of one width, whatever its number of neurons.
    """
    matrix = sketch_matrix(rows.shape[1])
    if quick and isinstance(rows, Rows) and rows.glance is not None:
        seen = rows.glance
    elif isinstance(rows, Rows):
        seen = Noisy(rows.survey[0], rows.typical_spread(rows.shape[0]))
    else:
        seen = rows.turned(matrix, -1)
    if constant is None:
        return seen
    last = np.random.default_rng(1).standard_normal(SKETCH)
    return seen + constant.reshaped(-1, 1).scaled(last)


def _products(first: Noisy, second: Noisy) -> Noisy:
    """All products of the entries of two vectors, neuron by neuron."""
    count = len(first.value)
    left, right = first.reshaped(count, -1, 1), second.reshaped(count, 1, -1)
    return left.times(right).reshaped(count, -1)


def _size(noisy: Noisy) -> Noisy:
    return Noisy(np.abs(noisy.value), noisy.variance)


def _argument(
    rows: Noisy | Rows, constant: Noisy | None, sketch: Noisy, scales: Scales
) -> tuple[Array, Noisy]:
    """The argument's size, where the activation passes it on, and its sketch without it."""
    if scales.odd:
        return np.ones((rows.shape[0], 1)), _size(sketch)
    if not scales.homogeneous:
        return np.ones((rows.shape[0], 1)), sketch
    square = rows.survey[1] if isinstance(rows, Rows) else rows.size
    if constant is not None:
        square = square + np.square(constant.value)
    size = np.sqrt(np.maximum(square, np.finfo(np.float64).tiny))[:, None]
    return size**scales.power, sketch.scaled(1.0 / size)


def sizes(rows: Noisy, constant: Noisy | None) -> tuple[Array, Array]:
    """Squared norms and summed variances of the rows with their constants."""
    size, spread = rows.size, rows.variance.sum(axis=-1)
    if constant is None:
        return size, spread
    return size + np.square(constant.value), spread + constant.variance
