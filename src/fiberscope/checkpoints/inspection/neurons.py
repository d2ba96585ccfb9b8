"""Dead and duplicate neurons of an MLP, with the freedom they add."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Mlp
from fiberscope.checkpoints.inspection.finding import Exceptional
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.ledger.wiring import Point, Wiring
from fiberscope.parameters import View

VANISH_AT_ZERO = frozenset(
    """gelu gelu_10 gelu_fast gelu_new gelu_python gelu_pytorch_tanh gelu_python_tanh gelu_accurate
    quick_gelu silu swish mish relu relu2 leaky_relu tanh hardswish relu6""".split()
)
"""Activations with value 0 at 0, so that a zero row silences its neuron."""


def inspect_neurons(wiring: Wiring, mlp: Mlp, reader: RoleReader) -> list[Exceptional]:
    """Neurons that write nothing, read nothing, or read the same as another."""
    down = reader.narrow(mlp.down)
    segment = next(s for s in wiring.segments if any(w.view == mlp.down for w in s.writers))
    point = next(p for p in wiring.points if any(r.weight == mlp.up for r in p.readers))
    written = segment.width - segment.blind
    least, most = down.min(axis=0), down.max(axis=0)
    # Behind LayerNorms a column along the ones vector writes nothing that is seen.
    no_write = (least == most) if segment.blind else (least == 0) & (most == 0)
    rows = [_Rows(reader, mlp.up, mlp.up_bias)]
    if mlp.gate is not None:
        rows.append(_Rows(reader, mlp.gate, mlp.gate_bias))
    inputs = [point.width - point.blind + int(_constant(point, bias)) for bias in _biases(mlp)]
    found = []
    if count := int(no_write.sum()):
        # Nothing that a silent neuron reads is seen; its down column still is.
        unseen = count * (sum(inputs) - _scalings(mlp))
        found.append(
            _finding("dead neurons (zero down column)", mlp, np.flatnonzero(no_write), unseen)
        )
    silent = np.zeros(mlp.neurons, dtype=bool)
    for position, row in enumerate(rows):
        # A plain neuron that reads nothing is a constant, whatever its bias.
        plain = mlp.gate is None and mlp.down_bias is not None
        zero = row.vanish(with_bias=not plain) & ~no_write & ~silent
        if not zero.any() or mlp.activation_name not in VANISH_AT_ZERO:
            continue
        silent |= zero
        extra = _silent_row(mlp, position, inputs, written)
        name = "gate" if position == 1 else "up"
        total = None if extra is None else int(zero.sum()) * extra
        found.append(_finding(f"dead neurons (zero {name} row)", mlp, np.flatnonzero(zero), total))
    live = np.flatnonzero(~no_write & ~silent)
    # In a gated MLP neurons with one gate row already mix; else they need the same up row.
    found += _duplicates(mlp, down, rows, live, inputs, written)
    return found


class _Rows:
    """Rows that read a point, with their biases."""

    def __init__(self, reader: RoleReader, weight: View, bias: View | None) -> None:
        self.weights = reader.narrow(weight)
        self.biases = None if bias is None else reader.narrow(bias)

    def vanish(self, *, with_bias: bool) -> NDArray[np.bool_]:
        """Rows that are zero."""
        zero = ~np.any(self.weights, axis=1)
        if with_bias and self.biases is not None:
            zero &= self.biases == 0
        return np.asarray(zero)

    def alike(self, live: NDArray[np.int64], activation: Activation) -> list[NDArray[np.int64]]:
        """Sets of rows among ``live`` whose neurons compute one function, up to a factor.

        Equal rows; positive multiples in front of a positively homogeneous activation; opposite
        rows in front of an odd one.
        """
        probe: NDArray[np.float64] = np.random.default_rng(0).standard_normal(
            (self.weights.shape[1],)
        )
        # In float64 even for narrow weights: few rows then fall together that are not equal.
        sketch = (self.weights.astype(np.float64) @ probe)[live]
        size = np.sqrt(np.sum(np.square(self.weights, dtype=np.float64), axis=1))[live]
        if activation is Activation.HOMOGENEOUS:
            sketch, size = sketch / np.where(size > 0, size, 1.0), np.ones(len(live))
        elif activation is Activation.ODD:
            sketch = np.abs(sketch)
        tolerance = 4 * np.sqrt(probe.size) * np.finfo(float).eps * np.linalg.norm(probe) * size
        sets = []
        for run in close_runs(sketch, tolerance):
            rows = self.weights[live[run]].astype(np.float64)
            if self.biases is not None:
                rows = np.concatenate([rows, self.biases[live[run]][:, None]], axis=1)
            sets += [live[run[members]] for members in _same_direction(rows, activation)]
        return sets


def _same_direction(rows: NDArray[np.float64], activation: Activation) -> list[NDArray[np.int64]]:
    """Sets of two or more rows that agree after the activation's own normalisation."""
    if activation is Activation.ODD:
        first = rows[np.arange(len(rows)), np.argmax(rows != 0, axis=1)]
        rows = rows * np.where(first < 0, -1.0, 1.0)[:, None]
    if activation is not Activation.HOMOGENEOUS:
        inverse = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        sets = [np.flatnonzero(inverse == k) for k in range(int(inverse.max()) + 1)]
        return [members for members in sets if len(members) > 1]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    left, sets = list(range(len(rows))), []
    while left:
        distance = np.abs(rows[left] - rows[left[0]]).max(axis=1)
        members = [left[k] for k in np.flatnonzero(distance <= 8 * np.finfo(float).eps)]
        left = [k for k in left if k not in members]
        if len(members) > 1:
            sets.append(np.array(members))
    return sets


def _biases(mlp: Mlp) -> list[View | None]:
    return [mlp.up_bias] if mlp.gate is None else [mlp.up_bias, mlp.gate_bias]


def _constant(point: Point, bias: View | None) -> bool:
    return bias is not None or point.norm.bias is not None


def _scalings(mlp: Mlp) -> int:
    """Continuous directions of one neuron that are undetermined at generic weights."""
    return int(mlp.gate is not None) + int(mlp.activation is Activation.HOMOGENEOUS)


def _silent_row(mlp: Mlp, position: int, inputs: list[int], written: int) -> int | None:
    """Extra freedom of a neuron with one zero row; None where it has no derivative (ReLU)."""
    if mlp.activation is Activation.HOMOGENEOUS and position == len(inputs) - 1:
        return None
    if mlp.gate is None:
        # Its output is a constant: down column and bias are seen only with the output bias.
        return written + int(mlp.down_bias is not None and mlp.up_bias is not None)
    # Only the zero row's own derivative is seen.
    return inputs[1 - position] + written - _scalings(mlp)


def _finding(kind: str, mlp: Mlp, neurons: NDArray[np.int64], extra: int | None) -> Exceptional:
    shown = ", ".join(map(str, neurons[:8].tolist())) + (", ..." if len(neurons) > 8 else "")
    return Exceptional(
        kind,
        f"{mlp.label}, neurons {shown}",
        extra,
        f"{len(neurons):,} of {mlp.neurons:,} neurons",
        {"count": len(neurons), "neurons": neurons[:64].tolist()},
    )


def close_runs(
    sketch: NDArray[np.float64], tolerance: NDArray[np.float64]
) -> list[NDArray[np.int64]]:
    """Runs of entries whose sorted neighbours differ by no more than their tolerance.

    Equal rows have equal sketches up to rounding, so they fall into one run; what else does is
    sorted out by comparing the rows themselves.
    """
    order = np.argsort(sketch, kind="stable")
    if len(order) < 2:
        return []
    close = np.diff(sketch[order]) <= np.maximum(tolerance[order][1:], tolerance[order][:-1])
    ends = np.flatnonzero(np.diff(np.concatenate([[False], close, [False]]).astype(np.int8)))
    return [order[start : stop + 1] for start, stop in ends.reshape(-1, 2)]


def _duplicates(
    mlp: Mlp,
    down: NDArray[Any],
    rows: list[_Rows],
    live: NDArray[np.int64],
    inputs: list[int],
    written: int,
) -> list[Exceptional]:
    """Neurons that read alike: how they write can move from one to the other."""
    sets = rows[-1].alike(live, mlp.activation)
    if not sets:
        return []
    extras = [_shared_freedom(mlp, down[:, s], rows, s, inputs, written) for s in sets]
    known = [extra for extra in extras if extra is not None]
    count = sum(len(s) for s in sets)
    why = (
        "neurons with one gate row mix by any invertible matrix"
        if mlp.gate is not None
        else "only the sum of their down columns is seen"
    )
    return [
        Exceptional(
            "duplicate neurons",
            mlp.label,
            sum(known) if len(known) == len(extras) else None,
            f"{count:,} neurons in {len(sets):,} sets that read alike: {why}",
            {"sets": [s.tolist() for s in sets[:16]]},
        )
    ]


def _shared_freedom(
    mlp: Mlp,
    down: NDArray[Any],
    rows: list[_Rows],
    members: NDArray[np.int64],
    inputs: list[int],
    written: int,
) -> int | None:
    """Generic coordinates of these neurons less the directions still seen.

    With down columns of rank ``q`` the derivatives of the shared row are seen ``q`` times. A gated
    set sees the product of its down columns and up rows (ranks ``q`` and ``p``), and the gate's
    derivatives through ``sum_i (dg_i x)(u_i x) d_i``, known in closed form for independent columns
    and for parallel ones.
    """
    count = len(members)
    columns = down.astype(np.float64)
    rank = _rank(columns - columns.mean(axis=0) if written < len(columns) else columns)
    homogeneous = int(mlp.activation is Activation.HOMOGENEOUS)
    if mlp.gate is None:
        generic = count * (inputs[0] + written - homogeneous)
        return generic - (written + rank * inputs[0] - homogeneous * rank)
    up = rows[0].weights[members].astype(np.float64)
    if rows[0].biases is not None:
        up = np.concatenate([up, rows[0].biases[members][:, None]], axis=1)
    up_rank = _rank(up)
    generic = count * (inputs[0] + inputs[1] + written - 1 - homogeneous)
    product = inputs[0] * rank + written * up_rank - rank * up_rank
    if rank == count:
        gate = count * (inputs[1] - homogeneous)
    elif rank == 1 and inputs[0] == inputs[1]:
        # Symmetric products of the gate's derivative with the span of the up rows.
        gate = up_rank * inputs[1] - up_rank * (up_rank - 1) // 2 - homogeneous * up_rank
    else:
        return None
    return generic - product - gate


def _rank(matrix: NDArray[np.float64]) -> int:
    return int(np.linalg.matrix_rank(matrix))
