"""The two spaces that meet near collapse: the last layer's image, and the weakest directions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from fiberscope.families.deep_attention.ball_jacobian import ball_jacobian
from fiberscope.families.deep_attention.banks import theorem_orders
from fiberscope.families.deep_attention.family import InputBank
from fiberscope.families.deep_attention.orders import contact_orders
from fiberscope.families.deep_attention.paths import ContactPath
from fiberscope.numbers.balls import Balls


def divided_columns(path: ContactPath, bank: InputBank, t: Fraction, system: Balls) -> list[Any]:
    """Columns of the Jacobian by group, each divided by its predicted power of ``t``.

    The value product (columns of ``V_D``, with earlier values fixed), then every layer's queries
    and keys on a complement of the factor kernel ``(U B, -W B^T)``: all key entries and the query
    rows outside the first ``r``, which must hold an invertible block of ``U``.

    Returns
    -------
    list of arb_mat
        ``D + 1`` blocks with ``d^2`` and ``r_i (2 d - r_i)`` columns.
    """
    architecture = path.architecture
    theorem_orders(architecture)
    windows = dict(architecture.space.slices())
    with system.precision():
        point = {name: system.array(value) for name, value in path.at(t).items()}
        table = ball_jacobian(architecture, point, system.array(bank.inputs), system).tolist()
        last = windows[f"V{architecture.depth}"]
        groups = [list(range(last.start, last.stop))]
        for layer, rank in enumerate(architecture.ranks, start=1):
            query, key = windows[f"Q{layer}"], windows[f"K{layer}"]
            free = range(query.start + rank * rank, query.stop)
            groups.append([*free, *range(key.start, key.stop)])
        assert architecture.normalizers is not None
        degrees = [phi.contact_degree for phi in architecture.normalizers]
        scale = [system.number(t) ** beta for beta in (0, *contact_orders(degrees))]
        return [
            system.flint.arb_mat([[row[c] / power for c in group] for row in table])
            for group, power in zip(groups, scale, strict=True)
        ]


def joined(blocks: list[Any], system: Balls) -> Any:
    """One ``arb_mat`` with the columns of all blocks."""
    arrays = [system.from_matrix(block) for block in blocks]
    return system.matrix(np.concatenate(arrays, axis=1))
