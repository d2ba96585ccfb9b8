"""Neurons that correspond one to one: their scales, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.factors import fit_basis, weighed_columns
from fiberscope.checkpoints.equality.folded_parts import FoldedMlp, held
from fiberscope.checkpoints.equality.neuron_assignment import Scales
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.rows import ENTRIES, Rows
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.statistic import Statistic, statistic
from fiberscope.checkpoints.equality.tiles import statistic_of_rows


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


def fit_in_parts(
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
        found.append(fit_neurons(a.part(part), b.part(part), scales, rotated, label))
    up_scale, gate_scale, parts = zip(*found, strict=True)
    statistics = [one for each in parts for one in each]
    return np.concatenate(up_scale), np.concatenate(gate_scale), statistics


def fit_neurons(
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
        again = fit_neurons(a, b, scales, rotated, label, each=True)
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
