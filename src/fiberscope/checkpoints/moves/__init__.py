"""Moves of a checkpoint by its symmetries: drawn, stored, applied tensor by tensor, inverted."""

from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.witness import (
    MechanismDescription,
    StepDescription,
    Witness,
)
from fiberscope.checkpoints.moves.witness_file import load_witness, save_witness

__all__ = [
    "Catalogue",
    "Key",
    "MechanismDescription",
    "Step",
    "StepDescription",
    "Witness",
    "load_witness",
    "save_witness",
]
