"""Neurons of two models: who is whose, their scales, and what is left over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation
from fiberscope.checkpoints.equality.folded_parts import FoldedMlp
from fiberscope.checkpoints.equality.frame import Frame
from fiberscope.checkpoints.equality.merged_neurons import compare_merged
from fiberscope.checkpoints.equality.neuron_assignment import Scales, assign_neurons, sizes
from fiberscope.checkpoints.equality.neuron_fit import NeuronMatch, fit_in_parts
from fiberscope.checkpoints.equality.noisy import FAINT, Noisy
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.statistic import Statistic, together


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
    x, y = a.chosen(numbers[0]), b.chosen(numbers[1])
    if x.up.shape[0] != y.up.shape[0]:
        compare_merged(x, y, scales, found, rotated, numbers)
        return found
    if not y.up.shape[0]:
        return found
    whole = _assigned(x, y, scales, found, rotated, numbers=numbers)
    if not whole.is_same:
        found.statistics.clear()
        order = found.order[numbers[1]]
        numbers = order, numbers[1]
        compare_merged(a.chosen(order), y, scales, found, rotated, numbers, whole)
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
    up_scale, gate_scale, parts = fit_in_parts(x, y, order, scales, rotated, found.label)
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
