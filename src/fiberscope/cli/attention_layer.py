"""A layer of a checkpoint as an oracle, for `fiberscope recover attention --layer`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic

if TYPE_CHECKING:
    from fiberscope.queries.layer_oracle import LayerOracle


def layer_oracle(
    source: str, layer: int, readout: str | None, arithmetic: Arithmetic | None
) -> LayerOracle:
    """The oracle of one layer, read out as ``readout`` says.

    Parameters
    ----------
    source
        A directory, safetensors or GGUF file.
    layer
        Its number, from 0.
    readout
        The seed of a random direction (default 0), or an ``.npy`` file with one number for each
        output of the layer.
    arithmetic
        float64 (default) or float32.

    Raises
    ------
    InputError
        If the layer or the readout cannot be used.
    """
    from fiberscope.checkpoints.attention_layer import read_attention_layer
    from fiberscope.queries.layer_oracle import AttentionLayer, LayerOracle, readout_vector

    if source.startswith(("python:", "http://", "https://")) or source.endswith((".npz", ".onnx")):
        raise InputError(
            f"--layer is for a checkpoint, which {source} is not: leave it out, or give a "
            "directory, a safetensors or a GGUF file"
        )
    weights = AttentionLayer.from_arrays(read_attention_layer(Path(source), layer))
    vector = readout_vector(readout or "0", weights.outputs)
    return LayerOracle(weights, vector, arithmetic or Arithmetic.FLOAT64)
