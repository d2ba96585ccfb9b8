"""Questions about the fibers of a parameter map, one per file."""

from fiberscope.analysis.contract import check_family
from fiberscope.analysis.dimension import DimensionResult, dimension
from fiberscope.analysis.rank import RankVerdict, rank_of
from fiberscope.analysis.report import Check, CheckOutcome, ContractError, ContractReport
from fiberscope.analysis.symmetries import Overlap, SymmetryShare, UnionRank, symmetry_rank

__all__ = [
    "Check",
    "CheckOutcome",
    "ContractError",
    "ContractReport",
    "DimensionResult",
    "Overlap",
    "RankVerdict",
    "SymmetryShare",
    "UnionRank",
    "check_family",
    "dimension",
    "rank_of",
    "symmetry_rank",
]
