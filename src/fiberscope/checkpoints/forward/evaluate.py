"""The function of an architecture, evaluated in float64, one sublayer's tensors at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Dense,
    Lookup,
    Mlp,
    Observable,
    Residual,
    Stream,
    Table,
)
from fiberscope.checkpoints.forward.activations import ACTIVATIONS
from fiberscope.checkpoints.forward.attention import attend, normalised
from fiberscope.checkpoints.forward.probe import Probe
from fiberscope.checkpoints.forward.reading import Read, Roles
from fiberscope.errors import InputError
from fiberscope.parameters import View

Array = NDArray[np.float64]


def outputs(
    architecture: Architecture, read: Read, probe: Probe, observable: Observable
) -> NDArray[np.float64]:
    """What is observed of a checkpoint on the probe inputs, in float64.

    Logits, their log-softmax (probabilities), or the end of the last stream after its final norm.
    Where the probe names rows, only these logits are computed, and probabilities are those
    conditional on one of them occurring.

    Parameters
    ----------
    read
        Reads stored tensors; see `Read`.

    Returns
    -------
    ndarray of float64, shape (sequences * positions * outputs,)
        Flattened in this order; classifiers observe one position.

    Raises
    ------
    InputError
        If logits are asked of a class without a head, or a table lacks a row that the probe reads.
    """
    width = output_width(architecture, probe, observable)
    roles = Roles(read)
    evaluation = _Evaluation(architecture, roles, probe, observable)
    ends: dict[str, Array] = {}
    for stream in architecture.streams:
        ends[stream.label] = evaluation.run(stream, ends)
    x = ends[architecture.streams[-1].label]
    if observable is Observable.HIDDEN:
        return x.reshape(-1)
    logits = evaluation.logits(x).reshape(-1, width)
    if observable is Observable.PROBABILITIES:
        logits = logits - logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits.reshape(-1)


def output_width(architecture: Architecture, probe: Probe, observable: Observable) -> int:
    """Number of outputs at a position.

    Raises
    ------
    InputError
        If logits are asked of a class without a head.
    """
    if observable is Observable.HIDDEN:
        return architecture.streams[-1].width
    if architecture.head is None:
        raise InputError(
            f"{architecture.name} has no {observable.value}: observe 'hidden', or use a class with "
            "a head"
        )
    return architecture.head.output.shape[0] if probe.rows is None else probe.rows.size


class _Evaluation:
    """One architecture on one probe."""

    def __init__(
        self, architecture: Architecture, roles: Roles, probe: Probe, observable: Observable
    ) -> None:
        self.architecture, self.roles, self.probe = architecture, roles, probe
        self.head = None if observable is Observable.HIDDEN else architecture.head
        self.output_rows: Array | None = None

    def run(self, stream: Stream, ends: dict[str, Array]) -> Array:
        """The end of a stream, of shape (sequences, positions, d)."""
        x = self.embed(stream)
        table: View | None = None
        for step in stream.steps:
            if isinstance(step, Residual):
                written = np.zeros_like(x)
                for branch in step.branches:
                    y = normalised(branch.norm, self.roles, x)
                    for sublayer in branch.sublayers:
                        if isinstance(sublayer, Attention):
                            table = sublayer.position_table or table
                            memory = y if sublayer.memory is None else ends[sublayer.memory]
                            written = written + attend(sublayer, self.roles, y, memory, table)
                        else:
                            written = written + self.mlp(sublayer, y)
                        self.roles.forget()
                x = x + written
            else:
                x = normalised(step.norm, self.roles, x)
        x = normalised(stream.final, self.roles, x)
        self.roles.forget()
        return x

    def embed(self, stream: Stream) -> Array:
        """The start of a stream."""
        tables: dict[Lookup, list[Table]] = {lookup: [] for lookup in Lookup}
        for table in stream.embedding.tables:
            tables[table.lookup].append(table)
        if self.probe.vectors is None:
            tokens = self.probe.tokens[stream.label]
            x = stream.embedding.token_scale * self.looked_up(tables[Lookup.TOKEN], tokens)
            self.keep_output_rows(tables[Lookup.TOKEN])
        else:
            (projection,) = tables[Lookup.INPUT]
            x = self.roles.product(self.probe.vectors, projection.rows, inputs_first=True)
            for table in tables[Lookup.EVERY_INPUT]:
                x = x + self.roles.vector(table.rows)
            for table in tables[Lookup.FIRST]:
                first = np.broadcast_to(self.roles.vector(table.rows), (len(x), 1, stream.width))
                x = np.concatenate([first, x], axis=1)
        if tables[Lookup.POSITION]:
            x = x + self.looked_up(tables[Lookup.POSITION], np.arange(x.shape[1]))
        if tables[Lookup.TYPE]:
            types = self.probe.types
            if types is None:
                types = np.zeros(x.shape[:2], dtype=np.int64)
            x = x + self.looked_up(tables[Lookup.TYPE], types)
        self.roles.forget()
        return x

    def looked_up(self, tables: list[Table], indices: NDArray[np.int64]) -> Array:
        """Rows of the table that holds each index."""
        found = np.zeros((*indices.shape, tables[0].rows.shape[1]))
        missing = np.ones(indices.shape, dtype=bool)
        for table in tables:
            held = (indices >= table.first) & (indices < table.first + table.rows.shape[0])
            found[held] = self.roles.rows(table.rows, indices[held] - table.first)
            missing &= ~held
        if missing.any():
            raise InputError(
                f"{tables[0].label} of {self.architecture.name} has no row for index "
                f"{indices[missing][0]}; use inputs that probe_inputs draws for it"
            )
        return found

    def keep_output_rows(self, tables: list[Table]) -> None:
        """A tied table is large and in memory now: take the observed rows of the unembedding."""
        if self.head is None or self.probe.rows is None:
            return
        if any(table.rows.tensor == self.head.output.tensor for table in tables):
            self.output_rows = self.roles.rows(self.head.output, self.probe.rows)

    def mlp(self, mlp: Mlp, x: Array) -> Array:
        """What a multilayer perceptron adds."""
        act = ACTIVATIONS[mlp.activation_name]
        inner = self.roles.product(x, mlp.up) + self.roles.bias(mlp.up_bias)
        if mlp.gate is None:
            inner = act(inner)
        else:
            inner *= act(self.roles.product(x, mlp.gate) + self.roles.bias(mlp.gate_bias))
        return self.roles.product(inner, mlp.down) + self.roles.bias(mlp.down_bias)

    def dense(self, dense: Dense, x: Array) -> Array:
        """A dense layer of the head."""
        inner = self.roles.product(x, dense.weight) + self.roles.bias(dense.bias)
        return ACTIVATIONS[dense.activation_name](inner)

    def logits(self, x: Array) -> Array:
        """The head's outputs, of shape (positions of all sequences, outputs)."""
        head = self.head
        assert head is not None
        x = (x[:, 0] if head.first_position else x).reshape(-1, x.shape[-1])
        x = head.scale * x
        if head.dense is not None:
            x = self.dense(head.dense, x)
        x = normalised(head.norm, self.roles, x)
        self.roles.forget()
        if self.probe.rows is not None:
            rows = self.output_rows
            if rows is None:
                rows = self.roles.rows(head.output, self.probe.rows)
            logits = x @ rows.T
            if head.output_bias is not None:
                logits = logits + self.roles.rows(head.output_bias, self.probe.rows)
            return logits
        return self.roles.product(x, head.output) + self.roles.bias(head.output_bias)
