"""What training left in directions that do not matter: dead biases and unbalanced factors.

Gradient flow conserves ``Q Q^T - K K^T`` (rows of a head, bias as one more column), its
value/output twin and the per-neuron difference of a gated MLP, so their size tells how far weight
decay or initialisation has balanced the factors (Morrow, arXiv 2609.01231, section on invariants).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.inspection.finding import Leftover
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index


def _size(array: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(array**2))) if array.size else 0.0


def _imbalance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """``||A - B|| / (||A|| + ||B||)`` of stacked Gram matrices: 0 balanced, 1 one side only."""
    total = float(np.linalg.norm(first) + np.linalg.norm(second))
    return float(np.linalg.norm(first - second)) / total if total else 0.0


def _gram(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gram matrices of the rows, summed over the heads of a group: ``(G, r, r)``."""
    if rows.ndim == 4:
        return (rows @ rows.swapaxes(-1, -2)).sum(axis=1)
    return rows @ rows.swapaxes(-1, -2)


def _squares(array: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Sums of squares along an axis, in float64."""
    return np.asarray(np.sum(np.square(array, dtype=np.float64), axis=axis))


def attention_leftovers(a: Attention, reader: RoleReader) -> Leftover:
    """Dead key bias against query bias, and the imbalance of both factor pairs."""
    statistics: dict[str, float] = {}
    if a.key_bias is not None:
        dead = reader.read(a.key_bias)[:, unrotated_index(a)]
        if dead.size and a.key_norm is None:
            statistics["key_bias_rms"] = _size(dead)
        if a.query_bias is not None:
            statistics["query_bias_rms"] = _size(reader.read(a.query_bias))
    if a.query_norm is None:
        query, key = _gram(reader.read(a.query)), _gram(reader.read(a.key))
        if a.rotary is not None:
            # Only plane norms (and the unrotated block) can be balanced by commuting matrices.
            planes = np.array(a.rotary.planes)
            rest = unrotated_index(a)
            query, key = (
                np.concatenate(
                    [
                        np.diagonal(gram, axis1=1, axis2=2)[:, planes].sum(axis=-1).reshape(-1),
                        gram[:, rest][:, :, rest].reshape(-1),
                    ]
                )
                for gram in (query, key)
            )
        statistics["query_key_imbalance"] = _imbalance(query, key)
    value, output = _gram(reader.read(a.value)), _gram(reader.read(a.output))
    statistics["value_output_imbalance"] = _imbalance(value, output)
    return Leftover(a.label, a.layer, statistics)


def mlp_leftovers(mlp: Mlp, reader: RoleReader) -> Leftover | None:
    """Imbalance of up against down, where a scaling connects them."""
    if mlp.gate is None and mlp.activation.name != "HOMOGENEOUS":
        return None
    up = _squares(reader.narrow(mlp.up), 1)
    if mlp.up_bias is not None:
        up = up + reader.read(mlp.up_bias) ** 2
    down = _squares(reader.narrow(mlp.down), 0)
    return Leftover(mlp.label, mlp.layer, {"up_down_imbalance": _imbalance(up, down)})
