"""Twins: toy models of the published classes, whose Jacobians count what a ledger must predict.

A twin is a randomly initialised toy of an architecture's own class from the `transformers` package,
evaluated truly in float64. The nullity of its Jacobian in all stored parameters is measured, not
derived, and so tests the symmetry count of the architecture.
"""

from fiberscope.checkpoints.twins.measure import (
    Saturation,
    TwinMeasurement,
    measure,
    saturation,
)
from fiberscope.checkpoints.twins.precision import float64_evaluation
from fiberscope.checkpoints.twins.spectrum import TwinSpectrum, rank_by_gap, spectrum
from fiberscope.checkpoints.twins.toy import toy_config
from fiberscope.checkpoints.twins.twin import Twin, build_twin

__all__ = [
    "Saturation",
    "Twin",
    "TwinMeasurement",
    "TwinSpectrum",
    "build_twin",
    "float64_evaluation",
    "measure",
    "rank_by_gap",
    "saturation",
    "spectrum",
    "toy_config",
]
