"""Proved lower bounds of a Jacobian's rank in ball arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.ball_jacobian import ball_jacobian
from fiberscope.families.deep_attention.family import DeepAttention, InputBank
from fiberscope.numbers.balls import Balls

MOST_BITS = 1024
"""Precision at which a determinant that still contains zero is given up."""

ELIMINATION_BITS = 512
"""Precision of an elimination in balls without a determinant to try first."""


def certified_rank(
    family: DeepAttention,
    parameters: Mapping[str, NDArray[Any]],
    bank: InputBank,
    *,
    columns: list[int] | None = None,
    seed: int = 0,
) -> tuple[int, int]:
    """Proved lower bound of the Jacobian's rank at a point, and the precision in bits.

    With ``columns``, which should span a complement of the kernel, one determinant: random integer
    combinations of the rows restricted to them, at 64, 128, ... bits until the ball excludes zero;
    the rank 0 is returned where it never does. Without, elimination with complete pivoting counts
    the pivots that exclude zero.

    Parameters
    ----------
    family
        Its ball Jacobian is used.
    parameters
        Float64 or exact (integer, fraction) arrays.
    bank
        Inputs.
    columns
        Columns of the determinant.
    seed
        Seeds the combinations.
    """
    architecture = family.architecture
    bits = 64 if columns is not None else ELIMINATION_BITS
    rng = np.random.default_rng([seed, 2])
    while bits <= MOST_BITS:
        system = Balls(bits)
        with system.precision():
            point = {name: system.array(value) for name, value in parameters.items()}
            inputs = system.array(bank.inputs)
            full = ball_jacobian(architecture, point, inputs, system)
            size = min(full.nrows(), full.ncols() if columns is None else len(columns))
            mix = system.matrix(system.array(rng.integers(-9, 10, (size, full.nrows()))))
            mixed = mix * full
            if columns is None:
                return pivots_away_from_zero(mixed), bits
            if size < len(columns):
                return 0, bits
            minor = system.flint.arb_mat([[row[c] for c in columns] for row in mixed.tolist()])
            if not minor.det().contains(0):
                return size, bits
        bits *= 2
    return 0, MOST_BITS


def pivots_away_from_zero(matrix: Any) -> int:
    """Proved lower bound of the rank of an ``arb_mat``: elimination with complete pivoting.

    Works at the current precision and stops where every remaining ball contains zero.
    """
    work = np.empty((matrix.nrows(), matrix.ncols()), dtype=object)
    work[:] = np.array(matrix.tolist(), dtype=object)
    rank = 0
    while rank < min(work.shape):
        rest = work[rank:, rank:]
        sizes = np.array(
            [float(x.abs_lower().log()) if not x.contains(0) else -np.inf for x in rest.reshape(-1)]
        )
        best = int(np.argmax(sizes))
        if sizes[best] == -np.inf:
            break
        row, column = (rank + int(k) for k in divmod(best, rest.shape[1]))
        work[[rank, row]] = work[[row, rank]]
        work[:, [rank, column]] = work[:, [column, rank]]
        factors = work[rank + 1 :, rank] / work[rank, rank]
        work[rank + 1 :, rank:] = work[rank + 1 :, rank:] - factors[:, None] * work[rank, rank:]
        rank += 1
    return rank
