"""Canonical representatives of checkpoints: one point of every orbit of the symmetry group."""

from fiberscope.checkpoints.canonical.canonicalize import (
    Canonicalization,
    canonical_parameters,
    canonicalize,
)
from fiberscope.checkpoints.canonical.points import Style
from fiberscope.checkpoints.canonical.sections import (
    ORDER,
    coordinate,
    has_coordinate,
    in_order,
    neutral,
    step_to,
)
from fiberscope.checkpoints.canonical.styles import STYLES, style_named

__all__ = [
    "ORDER",
    "STYLES",
    "Canonicalization",
    "Style",
    "canonical_parameters",
    "canonicalize",
    "coordinate",
    "has_coordinate",
    "in_order",
    "neutral",
    "step_to",
    "style_named",
]
