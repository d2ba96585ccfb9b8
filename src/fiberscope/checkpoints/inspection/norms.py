"""Zero and vanishing gains, and equal final gains that let a tied model's stream turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.inspection.finding import Exceptional, Leftover
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.ledger.conditions import Condition
from fiberscope.checkpoints.ledger.wiring import Role, Wiring

VANISHING = 2.0**-23
"""Relative to the median, a gain below this is lost in the rounding of float32."""


def zero_gains(wiring: Wiring, reader: RoleReader) -> tuple[list[Exceptional], Condition]:
    """Features that a zero, or practically zero, gain hides from every reader of a norm."""
    found, total = [], 0
    for point in wiring.points:
        if point.norm.gain is None:
            continue
        gains = reader.read(point.norm.gain)
        if count := int(np.sum(gains == 0)):
            total += count
            found.append(
                Exceptional(
                    "zero gains",
                    point.norm.label,
                    None,
                    f"{count:,} of {gains.size:,} gains are zero: their readers see less",
                    {"features": np.flatnonzero(gains == 0)[:64].tolist()},
                )
            )
        typical = float(np.median(np.abs(gains)))
        vanishing = np.flatnonzero((gains != 0) & (np.abs(gains) < VANISHING * typical))
        if len(vanishing):
            found.append(
                Exceptional(
                    "vanishing gains",
                    point.norm.label,
                    0,
                    f"{len(vanishing):,} of {gains.size:,} gains are below the rounding of float32 "
                    f"(smallest {np.min(np.abs(gains[vanishing])):.1e}, median {typical:.2g}): "
                    "in practice zero",
                    {"features": vanishing[:64].tolist()},
                )
            )
    text = "all norm gains are nonzero" + (f": {total:,} are zero" if total else "")
    return found, Condition(text, total == 0)


WIDE_RANGE = 1e6
"""Ratio of gains beyond which ranks of their products are not decided in float64."""


def equal_final_gains(wiring: Wiring, reader: RoleReader) -> list[Exceptional]:
    """Blocks of equal final gains in a tied pre-norm model: rotations that commute with them.

    ``m (m - 1) / 2`` for every block of ``m`` equal gains behind RMSNorm; behind LayerNorm the
    rotations that fix the ones vector of each block, ``(m - 1)(m - 2) / 2``, and what
    :func:`sheared_directions` adds.
    """
    if not wiring.tied or not all(group.pre_norm for group in wiring.stream_groups):
        return []
    point = next(p for p in wiring.points if any(r.role is Role.OUTPUT for r in p.readers))
    gains = reader.gain(point.norm, point.width)
    values, counts = np.unique(gains, return_counts=True)
    extra = int(sum((m - point.blind) * (m - point.blind - 1) // 2 for m in counts.tolist()))
    if point.blind:
        extra += sheared_directions(values, counts)
    if extra <= 0:
        return []
    return [
        Exceptional(
            "equal final gains",
            point.norm.label,
            extra,
            f"{len(counts):,} distinct gains of {gains.size:,} in a tied model: the stream turns "
            f"inside blocks of equal gains (largest block {int(counts.max())})",
            {"distinct": len(counts), "largest_block": int(counts.max())},
        )
    ]


def sheared_directions(values: NDArray[np.float64], counts: NDArray[np.int64]) -> int:
    """Tied directions behind a LayerNorm that turn the stream and shear it along the ones vector.

    Rows ``e`` of a tied table may move to ``(R + 1 a^T) e``: as embeddings nobody sees the shear.
    As an unembedding the table needs ``[G, A] + D = -alpha gains^T + delta 1^T`` on vectors that
    sum to zero, with ``G = diag(gains)``, ``A`` skew with ``A 1 = 0`` and ``D`` the change of the
    gains. The right side is symmetric only for
    ``p(g_i, g_j) = -x g_i g_j - y (g_i + g_j) + z``, so that ``A_ij = p(g_i, g_j) / (g_i - g_j)``:
    what is left are linear conditions on ``(x, y, z)``. With all gains equal ``alpha`` is free.

    Parameters
    ----------
    values
        Distinct gains, shape ``(k,)``.
    counts
        How often each occurs.
    """
    if len(values) == 1:
        return int(counts[0])
    size = np.abs(values)
    if len(values) > 3 and size.max() > WIDE_RANGE * size[size > 0].min():
        # The conditions are independent for generic gains; float64 cannot tell over such a range.
        return 0
    scaled = values / np.abs(values).max()
    first, second = scaled[:, None], scaled[None, :]
    coefficients = np.stack(
        [-first * second, -(first + second), np.ones((len(values),) * 2)], axis=-1
    )
    gaps = first - second
    np.fill_diagonal(gaps, np.inf)
    balance = np.sum(counts[None, :, None] * coefficients / gaps[..., None], axis=1)
    inside = coefficients[np.arange(len(values)), np.arange(len(values))][counts > 1]
    conditions = np.concatenate([balance, inside])
    size = np.linalg.norm(conditions, axis=1)
    conditions = conditions[size > 0] / size[size > 0][:, None]
    return 3 - int(np.linalg.matrix_rank(conditions))


def gain_spread(wiring: Wiring, reader: RoleReader) -> list[Leftover]:
    """Smallest, largest and relative spread of the gains of every norm."""
    found = []
    for point in wiring.points:
        if point.norm.gain is None:
            continue
        gains = reader.read(point.norm.gain)
        size = float(np.mean(np.abs(gains)))
        found.append(
            Leftover(
                point.norm.label,
                -1 if point.layer is None else point.layer,
                {
                    "smallest": float(np.min(np.abs(gains))),
                    "largest": float(np.max(np.abs(gains))),
                    "relative_spread": float(np.std(gains)) / size if size else 0.0,
                },
            )
        )
    return found
