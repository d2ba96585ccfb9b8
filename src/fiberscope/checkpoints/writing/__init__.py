"""Writing checkpoints: streamed, rounded once, verified, and in place whole or not at all."""

from fiberscope.checkpoints.writing.checkpoint import (
    RECORD,
    Written,
    check_output,
    copy_checkpoint,
    norm_gains,
    write_checkpoint,
)
from fiberscope.checkpoints.writing.storage import FORMATS, round_into, rounded, to_storage

__all__ = [
    "FORMATS",
    "RECORD",
    "Written",
    "check_output",
    "copy_checkpoint",
    "norm_gains",
    "round_into",
    "rounded",
    "to_storage",
    "write_checkpoint",
]
