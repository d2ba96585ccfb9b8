"""Training and symmetry: which part of an update does nothing, and how to do without it."""

from fiberscope.training.attention_roles import AttentionRoles
from fiberscope.training.balance import Balanced, balanced
from fiberscope.training.monitor import SymmetryMonitor
from fiberscope.training.projection import Projection, TangentSpan
from fiberscope.training.rebalance import Rebalanced, rebalance_
from fiberscope.training.record import (
    Balance,
    Direction,
    ItemRecord,
    Measurement,
    Start,
    read_records,
)
from fiberscope.training.trainer_callback import trainer_callback

__all__ = [
    "AttentionRoles",
    "Balance",
    "Balanced",
    "Direction",
    "ItemRecord",
    "Measurement",
    "Projection",
    "Rebalanced",
    "Start",
    "SymmetryMonitor",
    "TangentSpan",
    "balanced",
    "read_records",
    "rebalance_",
    "trainer_callback",
]
