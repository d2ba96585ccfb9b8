"""Weights and configurations as stored: safetensors, sharded safetensors, GGUF, and hub ids.

Only headers are read when a checkpoint is opened; tensors are read one at a time when asked for.
Everything that is wrong with a file is an `InputError` of one sentence.
"""

from fiberscope.checkpoints.formats.location import open_checkpoint
from fiberscope.checkpoints.formats.source import Checkpoint, TensorInfo, WeightSource

__all__ = ["Checkpoint", "TensorInfo", "WeightSource", "open_checkpoint"]
