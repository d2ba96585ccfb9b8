"""The end of a model in canonical form: a dense layer of the head, and an untied unembedding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fiberscope.checkpoints.architecture.program import Activation, Head, Norm
from fiberscope.checkpoints.canonical.frame import IDENTITY, Frame
from fiberscope.checkpoints.canonical.neurons import Neurons, canonical_neurons, degree_of
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.points import Folded, PointForm, Style, fold, unfold
from fiberscope.checkpoints.canonical.stream import settle_unembedding
from fiberscope.checkpoints.canonical.workspace import Workspace
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, Wiring
from fiberscope.parameters import View

Fold = Callable[[Reader, Point], Folded]


def head_tensors(wiring: Wiring) -> tuple[str, ...]:
    """Tensors that only the head reads, one for each of its roles."""
    head = wiring.head
    assert head is not None
    views: list[View | None] = []
    if not wiring.tied:
        views += [head.output, head.output_bias]
    if head.dense is not None:
        views += [head.dense.weight, head.dense.bias]
    return tuple(view.tensor for view in views if view is not None)


def settle_head(
    wiring: Wiring, folded: Fold, outer: Frame, style: Style, places: Places, work: Workspace
) -> None:
    """Dense layer and unembedding; a tied unembedding is done with the tables.

    ``outer`` is the frame of the stream whose coordinates name the dense layer's units.
    """
    head = wiring.head
    assert head is not None
    dense = _folded(wiring, Role.DENSE, folded)
    output = None
    if not wiring.tied:
        output = _folded(wiring, Role.OUTPUT, folded) or _plain_output(wiring, head, work)
        settle_unembedding(output, wiring, style)
    if dense is not None and head.dense is not None:
        if wiring.tied:
            _follow(dense, outer)
        elif output is not None:
            inner = head.norm is None
            activation, name = head.dense.activation, head.dense.activation_name
            neurons = Neurons(
                head.dense.label,
                None,
                dense,
                None,
                np.ascontiguousarray(output.rows.T),
                False,
                degree_of(activation, name) if inner else None,
                inner and activation is Activation.ODD,
                name,
                max(dense.spacing, output.spacing),
                inner,
            )
            canonical_neurons(neurons, style, places)
            if neurons.down_changed:
                output.rows = np.ascontiguousarray(neurons.down.T)
                output.changed = True
        unfold(dense, work, places)
    if output is not None:
        unfold(output, work, places)


def _folded(wiring: Wiring, role: Role, folded: Fold) -> Folded | None:
    for point in wiring.points:
        for reader in point.readers:
            if reader.role is role:
                return folded(reader, point)
    return None


def _plain_output(wiring: Wiring, head: Head, work: Workspace) -> Folded:
    """Behind a dense layer without a norm: no norm reads it, so nothing is folded in."""
    reader = Reader(Role.OUTPUT, head.label, None, head.output, head.output_bias)
    plain = Norm("", wiring.points[0].norm.kind, None, None, 0.0)
    form = PointForm(Point(plain, None), None, None, None, None, IDENTITY, False)
    return fold(reader, form, work)


def _follow(dense: Folded, outer: Frame) -> None:
    if outer.order is None:
        return
    dense.rows = dense.rows[outer.order]
    if dense.constant is not None:
        dense.constant = dense.constant[outer.order]
    dense.changed = True
