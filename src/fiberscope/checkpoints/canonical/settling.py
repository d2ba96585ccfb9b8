"""Blocks brought to canonical form until what is written is settled.

One pass brings a block to its form up to the rounding of its arithmetic. That can be more than what
a form is allowed to be off in float64 storage, behind an ill-conditioned change of basis: the same
steps once more are well-conditioned. In coarse formats rounding itself can make rows equal that
were only nearly so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.attention import Heads, canonical_heads
from fiberscope.checkpoints.canonical.neurons import Neurons, canonical_neurons
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.points import Folded, Style, as_stored, centre_read
from fiberscope.checkpoints.canonical.stream import centre_written
from fiberscope.checkpoints.canonical.workspace import ARITHMETIC, Workspace
from fiberscope.checkpoints.ledger.wiring import Segment
from fiberscope.parameters import View

ROUNDS = 4
"""Times that rows which rounding has made equal are looked for."""


def settle_heads(
    heads: Heads,
    segment: Segment,
    style: Style,
    places: Places,
    fixed_order: NDArray[np.int64] | None,
) -> None:
    """:func:`canonical_heads`, twice where float64 storage would show that once is not enough."""
    canonical_heads(heads, segment, style, places, fixed_order)
    if heads.output_changed:
        centre_written(heads.output, segment, style)
    parts = (heads.query, heads.key, heads.value)
    if heads.spacing <= ARITHMETIC and any(part.changed for part in parts):
        for part in parts:
            centre_read(part)
        kept = None if fixed_order is None else np.arange(len(fixed_order))
        canonical_heads(heads, segment, style, Places(), kept)
        centre_written(heads.output, segment, style)


def settle_neurons(
    neurons: Neurons,
    segment: Segment,
    style: Style,
    places: Places,
    work: Workspace,
    down: View,
) -> None:
    """:func:`canonical_neurons`, again for float64 storage and where rows nearly agree."""
    near = canonical_neurons(neurons, style, places)
    parts = _parts(neurons)
    if neurons.spacing <= ARITHMETIC and neurons.down_changed:
        for part in parts:
            centre_read(part)
        centre_written(neurons.down, segment, style)
        canonical_neurons(neurons, style, Places())
        centre_written(neurons.down, segment, style)
    if not near or not _changed(neurons):
        return
    for _ in range(ROUNDS):
        for part in parts:
            as_stored(part, work)
            part.changed = False
        neurons.down = work.rounded_as(down, neurons.down.T).T
        neurons.down_changed = False
        again = Places()
        canonical_neurons(neurons, style, again)
        done = not _changed(neurons)
        for part in parts:
            part.changed, part.rounded = True, done
        neurons.down_changed = True
        if done:
            return
        for what, count in again.dead.items():
            places.note_dead(what, count)


def _parts(neurons: Neurons) -> list[Folded]:
    return [part for part in (neurons.gate, neurons.up) if part is not None]


def _changed(neurons: Neurons) -> bool:
    return neurons.down_changed or any(part.changed for part in _parts(neurons))
