"""Training and symmetry: which part of an update does nothing, and how to do without it."""

from fiberscope.training.record import (
    Balance,
    Direction,
    ItemRecord,
    Measurement,
    Start,
    read_records,
)

__all__ = [
    "Balance",
    "Direction",
    "ItemRecord",
    "Measurement",
    "Start",
    "read_records",
]
