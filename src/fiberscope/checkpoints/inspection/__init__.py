"""What given weights add to the ledger: exceptional points, and what training left behind."""

from fiberscope.checkpoints.inspection.breaking import Breaking
from fiberscope.checkpoints.inspection.finding import Exceptional, HeadConditioning, Leftover
from fiberscope.checkpoints.inspection.inspection import Inspection, WeightFindings, inspect

__all__ = [
    "Breaking",
    "Exceptional",
    "HeadConditioning",
    "Inspection",
    "Leftover",
    "WeightFindings",
    "inspect",
]
