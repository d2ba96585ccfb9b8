"""The weights of one attention layer of a checkpoint, on their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Residual
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.opening import open_model
from fiberscope.errors import InputError


def read_attention_layer(location: str | Path, layer: int) -> dict[str, NDArray[np.float64] | None]:
    """Weights and biases of the self attention of one layer.

    Parameters
    ----------
    location
        A directory, safetensors or GGUF file.
    layer
        Its number, from 0.

    Returns
    -------
    dict
        ``query`` ``(G, m, r, d)``, ``key`` ``(G, r, d)``, ``value`` ``(G, s, d)``, ``output``
        ``(G, m, s, e)`` and their biases (``query_bias``, ..; None without), in float64;
        ``score_scale`` and ``window`` as arrays of one number, the window None for all tokens.
        Rotations by position are left out.

    Raises
    ------
    InputError
        If the file or the layer cannot be read, or scores depend on more than products of queries
        and keys.
    """
    model = open_model(location)
    if model.source is None or model.matching is None:
        raise InputError(f"{location} holds no weights: give a checkpoint with weights")
    blocks = [
        block
        for stream in model.architecture.streams
        for step in stream.steps
        if isinstance(step, Residual)
        for branch in step.branches
        for block in branch.sublayers
        if isinstance(block, Attention) and block.memory is None
    ]
    own = [each for each in blocks if each.layer == layer]
    if len(own) != 1:
        last = max((each.layer for each in blocks), default=-1)
        raise InputError(
            f"{location} has {len(own)} self attentions in a layer {layer} (layers are numbered "
            f"from 0 to {last}): give the number of a layer with one"
        )
    attention = own[0]
    beyond = {
        "norms of queries or keys": attention.query_norm or attention.key_norm,
        "a table of positions": attention.position_table or attention.relative_positions,
    }
    for name, value in beyond.items():
        if value is not None:
            raise InputError(
                f"layer {layer} of {location} has {name} in its scores, which this cannot leave out"
            )
    reader = RoleReader(model.architecture, model.source, model.matching.stored)
    result: dict[str, NDArray[np.float64] | None] = {}
    for name in ("query", "key", "value", "output"):
        result[name] = reader.read(getattr(attention, name))
        view = getattr(attention, f"{name}_bias")
        result[f"{name}_bias"] = None if view is None else reader.read(view)
    scale = attention.score_scale
    result["score_scale"] = np.array(attention.key_width**-0.5 if scale is None else scale)
    result["window"] = None if attention.window is None else np.array(float(attention.window))
    return result
