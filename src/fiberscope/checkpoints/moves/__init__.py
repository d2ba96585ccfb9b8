"""Moves of a checkpoint by its symmetries: drawn, stored, applied tensor by tensor, inverted."""

from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.random_move import RandomMove
from fiberscope.checkpoints.moves.streaming import MovedReader, moved_tensors
from fiberscope.checkpoints.moves.transform import Transformation, transform
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
    "MovedReader",
    "RandomMove",
    "Step",
    "StepDescription",
    "Transformation",
    "Witness",
    "load_witness",
    "moved_tensors",
    "save_witness",
    "transform",
]
