"""The inputs of a twin, as a probe."""

from __future__ import annotations

from typing import Any

import numpy as np

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.forward import Probe


def patches(images: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Patches from left to right and from top to bottom, each flattened (channel, row, column)."""
    count, channels, height, width = images.shape
    blocks = images.reshape(count, channels, height // rows, rows, width // columns, columns)
    return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * rows * columns)


def probe_of(bank: dict[str, np.ndarray], laid_out: Architecture, config: Any) -> Probe:
    """The same inputs for the evaluation as the bank holds for the class."""
    if "pixel_values" in bank:
        size = config.get("patch_size", 16)
        rows, columns = size if isinstance(size, list) else (size, size)
        return Probe({}, vectors=patches(bank["pixel_values"], rows, columns))
    labels = [stream.label for stream in laid_out.streams]
    names = ("input_ids", "decoder_input_ids")
    tokens = {label: bank[name] for label, name in zip(labels, names, strict=False)}
    return Probe(tokens, bank.get("token_type_ids"))
