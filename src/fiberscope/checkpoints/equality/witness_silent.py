"""Last steps of a witness: what adds nothing is given the second model's numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.equality.witness_steps import Steps
from fiberscope.checkpoints.moves import silent
from fiberscope.checkpoints.moves.catalogue import Key
from fiberscope.checkpoints.moves.exceptional import SILENT_HEADS, SILENT_NEURONS
from fiberscope.checkpoints.moves.silent import Part

ZERO = 1e-9
"""Size, relative to the largest of a layer, below which a factor is zero up to arithmetic."""


def _free(steps: Steps, parts: Sequence[Part]) -> NDArray[np.float64]:
    """What is missing to the second model's numbers."""
    return silent.gathered(parts, steps.target) - silent.gathered(parts, steps.moved)


def free_neurons(steps: Steps, block: Mlp, places: NDArray[np.int64]) -> None:
    """Give neurons that add nothing in both models the second's factors.

    With one factor zero all others are free, so the factor that is zero in the second can be made
    so, and then the first one is free as well.
    """
    if not len(places):
        return
    sizes = silent.neuron_sizes(block, steps.catalogue.wiring)
    names = [name for name in silent.NEURON_FACTORS if name in sizes]
    now, wanted = (
        np.array([sizes[name](arrays)[places] for name in names])
        for arrays in (steps.moved, steps.target)
    )
    zero_now, zero_wanted = now.argmin(axis=0), wanted.argmin(axis=0)
    usable = (now.min(axis=0) <= ZERO) & (wanted.min(axis=0) <= ZERO)
    for zero in (zero_now, zero_wanted):
        for number, name in enumerate(names):
            index = places[usable & (zero == number)]
            if not len(index):
                continue
            parts = silent.neuron_parts(block, index)
            free = [part for other, found in parts.items() if other != name for part in found]
            code = np.array(silent.NEURON_FACTORS.index(name))
            data = {"neurons": index, "zero": code}
            shift = _free(steps, free)
            if np.any(shift):
                key = Key(SILENT_NEURONS, block.layer, block.label, int(index[0]))
                steps.take(key, shift, data)


def free_heads(steps: Steps, attention: Attention) -> None:
    """The same for groups and heads whose output, values, queries or keys are zero."""
    for _ in range(2):  # what is made zero first frees others afterwards
        sizes = silent.head_sizes(attention, steps.catalogue.wiring, steps.moved)
        for number, name in enumerate(silent.HEAD_FACTORS):
            for group, head in np.argwhere(sizes[name] <= ZERO).tolist():
                if name != silent.ONE_OUTPUT and head:
                    continue
                parts = silent.head_parts(attention, group, head)
                free = [part for other in parts[name][1] for part in parts[other][0]]
                shift = _free(steps, free)
                if not np.any(shift):
                    continue
                code = {"group": group, "head": head, "zero": number}
                data = {key: np.array(value) for key, value in code.items()}
                place = (SILENT_HEADS, attention.layer, attention.label)
                steps.take(Key(*place, 1000 * group + head), shift, data)
