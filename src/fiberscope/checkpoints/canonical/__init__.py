"""Canonical representatives of checkpoints: one point of every orbit of the symmetry group."""

from fiberscope.checkpoints.canonical.sections import (
    ORDER,
    coordinate,
    has_coordinate,
    in_order,
    neutral,
    step_to,
)

__all__ = ["ORDER", "coordinate", "has_coordinate", "in_order", "neutral", "step_to"]
