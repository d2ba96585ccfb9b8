"""Groups that act on named parameters, one per file."""

from fiberscope.symmetry.base import Element, Kind, Slot, Symmetry
from fiberscope.symmetry.general_linear import GeneralLinear
from fiberscope.symmetry.orthogonal import NormReaders, ResidualRotation, ones_complement
from fiberscope.symmetry.orthogonal_commutant import OrthogonalCommutant
from fiberscope.symmetry.permutation import Permutation
from fiberscope.symmetry.quarter_turn import QuarterTurn
from fiberscope.symmetry.rotary import RotaryCommutant
from fiberscope.symmetry.scaling import ScaledSlot, Scaling
from fiberscope.symmetry.sign import SignFlip
from fiberscope.symmetry.tangent_map import TangentMap, Term
from fiberscope.symmetry.translation import Translation

__all__ = [
    "Element",
    "GeneralLinear",
    "Kind",
    "NormReaders",
    "OrthogonalCommutant",
    "Permutation",
    "QuarterTurn",
    "ResidualRotation",
    "RotaryCommutant",
    "ScaledSlot",
    "Scaling",
    "SignFlip",
    "Slot",
    "Symmetry",
    "TangentMap",
    "Term",
    "Translation",
    "ones_complement",
]
