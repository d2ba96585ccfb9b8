"""Dead and duplicate neurons of an MLP, with the freedom they add."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Mlp
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
    down = reader.read(mlp.down)
    segment = next(s for s in wiring.segments if any(w.view == mlp.down for w in s.writers))
    point = next(p for p in wiring.points if any(r.weight == mlp.up for r in p.readers))
    written = segment.width - segment.blind
    if segment.blind:
        down = down - down.mean(axis=0)
    no_write = ~np.any(down, axis=0)
    rows = [_rows(reader, point, mlp.up, mlp.up_bias)]
    if mlp.gate is not None:
        rows.append(_rows(reader, point, mlp.gate, mlp.gate_bias))
    inputs = [point.width - point.blind + int(_constant(point, bias)) for bias in _biases(mlp)]
    found = []
    if count := int(no_write.sum()):
        # Nothing that a silent neuron reads is seen; its down column still is.
        extra = count * (sum(inputs) - _scalings(mlp))
        found.append(
            _finding("dead neurons (zero down column)", mlp, np.flatnonzero(no_write), extra)
        )
    silent = np.zeros(mlp.neurons, dtype=bool)
    for position, row in enumerate(rows):
        zero = ~np.any(row, axis=1) & ~no_write & ~silent
        if not zero.any() or mlp.activation_name not in VANISH_AT_ZERO:
            continue
        silent |= zero
        extra = int(zero.sum()) * _silent_row(mlp, position, inputs, written)
        name = "gate" if position == 1 else "up"
        found.append(_finding(f"dead neurons (zero {name} row)", mlp, np.flatnonzero(zero), extra))
    live = np.flatnonzero(~no_write & ~silent)
    # In a gated MLP neurons with one gate row already mix; else they need the same up row.
    found += _duplicates(mlp, rows[-1], live, written)
    return found


def _rows(reader: RoleReader, point: Point, weight: View, bias: View | None) -> NDArray[np.float64]:
    rows = reader.read(weight)
    if bias is not None:
        rows = np.concatenate([rows, reader.read(bias)[:, None]], axis=1)
    return rows


def _biases(mlp: Mlp) -> list[View | None]:
    return [mlp.up_bias] if mlp.gate is None else [mlp.up_bias, mlp.gate_bias]


def _constant(point: Point, bias: View | None) -> bool:
    return bias is not None or point.norm.bias is not None


def _scalings(mlp: Mlp) -> int:
    """Continuous directions of one neuron that are undetermined at generic weights."""
    return int(mlp.gate is not None) + int(mlp.activation.name == "HOMOGENEOUS")


def _silent_row(mlp: Mlp, position: int, inputs: list[int], written: int) -> int:
    """Extra freedom of a neuron with one zero row: only that row's own derivative is seen."""
    if mlp.gate is None:
        # The derivative of relu-like activations at 0 is not defined; count it as seen.
        return written - _scalings(mlp)
    other = inputs[1 - position]
    return other + written - _scalings(mlp)


def _finding(kind: str, mlp: Mlp, neurons: NDArray[np.int64], extra: int) -> Exceptional:
    shown = ", ".join(map(str, neurons[:8].tolist())) + (", ..." if len(neurons) > 8 else "")
    return Exceptional(
        kind,
        f"{mlp.label}, neurons {shown}",
        extra,
        f"{len(neurons):,} of {mlp.neurons:,} neurons",
        {"count": len(neurons), "neurons": neurons[:64].tolist()},
    )


def equal_rows(rows: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Sets of exactly equal rows, found by a fixed random projection and then verified."""
    if len(rows) < 2:
        return []
    probe = np.random.default_rng(0).standard_normal(rows.shape[1])
    sketch = rows @ probe
    order = np.argsort(sketch, kind="stable")
    # Equal rows may round differently in the product; anything this close is compared exactly.
    size = np.linalg.norm(probe) * np.linalg.norm(rows, axis=1)[order][1:]
    close = np.diff(sketch[order]) <= 4 * np.finfo(float).eps * size
    sets = []
    ends = np.flatnonzero(np.diff(np.concatenate([[False], close, [False]]).astype(np.int8)))
    for start, stop in ends.reshape(-1, 2):
        run = order[start : stop + 1]
        _, inverse = np.unique(rows[run], axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        sets += [
            run[inverse == k] for k in range(int(inverse.max()) + 1) if np.sum(inverse == k) > 1
        ]
    return sets


def _duplicates(
    mlp: Mlp, rows: NDArray[np.float64], live: NDArray[np.int64], written: int
) -> list[Exceptional]:
    sets = equal_rows(rows[live])
    if not sets:
        return []
    if mlp.gate is not None:
        extra = sum(len(s) ** 2 - len(s) for s in sets)
        why = "neurons with one gate row mix by any invertible matrix"
    else:
        extra = sum((len(s) - 1) * written for s in sets)
        why = "only the sum of their down columns is seen"
    count = sum(len(s) for s in sets)
    return [
        Exceptional(
            "duplicate neurons",
            mlp.label,
            extra,
            f"{count:,} neurons in {len(sets):,} sets of equal rows: {why}",
            {"sets": [live[s].tolist() for s in sets[:16]]},
        )
    ]
