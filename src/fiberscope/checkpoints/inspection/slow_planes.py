"""Rotary planes that hardly turn: nearly unrotated, so that nearly a whole GL acts on them."""

from __future__ import annotations

from dataclasses import dataclass

from fiberscope.checkpoints.ledger.wiring import Wiring

SLOW_TURN = 0.1
"""Radians over the longest input below which a plane counts as slow."""


@dataclass(frozen=True)
class SlowPlanes:
    """Planes that turn less than :data:`SLOW_TURN` radians over ``tokens`` positions."""

    planes: int
    of: int
    tokens: int


def slow_planes(wiring: Wiring, tokens: int | None) -> SlowPlanes | None:
    """Count them; None without rotary encoding, a known longest input, or slow planes."""
    rotary = next((a.rotary for a in wiring.attentions if a.rotary is not None), None)
    if rotary is None or tokens is None:
        return None
    slow = sum(frequency * tokens < SLOW_TURN for frequency in rotary.frequencies)
    return SlowPlanes(slow, len(rotary.frequencies), tokens) if slow else None
