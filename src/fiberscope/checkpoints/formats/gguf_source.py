"""Tensors of a GGUF file, dequantised one at a time under their Hugging Face names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.files import read_array
from fiberscope.checkpoints.formats.gguf_header import GgufTensor, read_header
from fiberscope.checkpoints.formats.gguf_llama import (
    FREQUENCY_FACTORS,
    LlamaLayout,
    frequency_scaling,
    layout,
    restored_rows,
)
from fiberscope.checkpoints.formats.source import Checkpoint, TensorInfo, WeightSource
from fiberscope.errors import InputError

_PLAIN: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class GgufSource(WeightSource):
    """The parameters in a GGUF file of the Llama family; it is open only while it is read."""

    format = "gguf"

    def __init__(self, path: Path, tensors: tuple[GgufTensor, ...], described: LlamaLayout) -> None:
        self.path = path
        self.aliases = {}
        self._heads = described.heads
        self._stored: dict[str, GgufTensor] = {}
        infos: dict[str, TensorInfo] = {}
        for tensor in tensors:
            name = described.names.get(tensor.name)
            if name is None:  # the buffer of frequency factors
                continue
            plain = _PLAIN.get(tensor.type_name)
            dtype = plain.name if plain is not None else tensor.type_name
            infos[name] = TensorInfo(name, tensor.shape, dtype, path)
            self._stored[name] = tensor
        self.tensors = infos

    def _read_stored(self, info: TensorInfo) -> NDArray[Any]:
        tensor = self._stored[info.name]
        values = read_values(self.path, tensor)
        heads = self._heads.get(tensor.name)
        return values if heads is None else restored_rows(values, heads)


def read_values(path: Path, tensor: GgufTensor) -> NDArray[Any]:
    """Read one tensor as stored, dequantised to float32 where it is quantised in blocks."""
    plain = _PLAIN.get(tensor.type_name)
    if plain is not None:
        return read_array(path, tensor.offset, plain, tensor.shape, tensor.name)
    import gguf

    row_bytes = tensor.shape[-1] // tensor.block_size * tensor.block_bytes
    shape = (*tensor.shape[:-1], row_bytes)
    blocks = read_array(path, tensor.offset, np.dtype("u1"), shape, tensor.name)
    # Corrupt scales overflow; the values are checked for being finite when they are used.
    with np.errstate(all="ignore"):
        values: NDArray[Any] = gguf.quants.dequantize(
            blocks, gguf.GGMLQuantizationType[tensor.type_name]
        )
    return values


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of the Llama family.

    Raises
    ------
    InputError
        If the gguf package is missing, the file is corrupt, or its model is not understood.
    """
    header = read_header(path, _understood_types(path))
    described = layout(path, header)
    kinds = Counter(tensor.type_name for tensor in header.tensors)
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [
        f"The weights are the values that {path.name} stores ({summary} tensors), dequantised "
        f"where they are quantised."
    ]
    if "llama.rope.freq_base" not in header.metadata:
        notes.append(f"{path.name} names no rotary base; the format's default of 10000 is used.")
    for tensor in header.tensors:
        if tensor.name == FREQUENCY_FACTORS:
            with np.errstate(invalid="ignore"):  # a signalling NaN; refused just below
                factors = read_values(path, tensor).astype(np.float64)
            described.config["rope_scaling"] = frequency_scaling(path, factors, described.config)
            notes.append(
                f"{path.name} stores the buffer {FREQUENCY_FACTORS}, which is no parameter: it "
                f"divides the rotary frequencies by {factors.min():g} to {factors.max():g}."
            )
    return Checkpoint(
        path, described.config, GgufSource(path, header.tensors, described), tuple(notes)
    )


def _understood_types(path: Path) -> dict[int, tuple[str, int, int]]:
    """Number, name, values and bytes per block of every type that can become floating point."""
    try:
        import gguf
    except ImportError as error:
        raise InputError(
            f"{path} is a GGUF file, which needs the gguf package; run "
            f"`pip install 'fiberscope[gguf]'`."
        ) from error
    types: dict[int, tuple[str, int, int]] = {}
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        if kind.name not in _PLAIN and not _can_dequantise(kind, block_bytes):
            continue
        types[int(kind)] = (kind.name, block_size, block_bytes)
    return types


def _can_dequantise(kind: Any, block_bytes: int) -> bool:
    import gguf

    try:
        gguf.quants.dequantize(np.zeros((1, block_bytes), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True
