"""Few threads for small matrices: a measurement must not fight with the training for the cores."""

from __future__ import annotations

from fiberscope.checkpoints.threads import _limiter, limited

__all__ = ["SMALL", "_limiter", "limited", "threads_for"]

SMALL = 10_000_000
"""Trained parameters up to which the matrices are too small for several threads to pay."""


def threads_for(parameters: int) -> int | None:
    """Threads of a measurement that the caller did not choose: one for small models, else all."""
    return 1 if parameters <= SMALL else None
