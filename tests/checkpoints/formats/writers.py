"""Small checkpoints for the tests, written by the formats' own libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.errors import InputError

CONFIG: dict[str, Any] = {"architectures": ["BertModel"], "model_type": "bert"}

# A Llama small enough to enumerate, with more query heads than key heads.
LAYERS, HEADS, GROUPS, HEAD_WIDTH, WIDTH, INNER, VOCABULARY = 2, 4, 2, 8, 32, 64, 11


def tensors(seed: int = 0) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        "a.weight": generator.normal(size=(3, 5)).astype(np.float32),
        "a.bias": generator.normal(size=3).astype(np.float16),
        "b.weight": generator.normal(size=(2, 2, 2)),
        "scalar": np.array(3, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "mask": np.array([True, False, True]),
    }


def write_directory(
    path: Path, values: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    safetensors.numpy.save_file(dict(values), path / "model.safetensors", metadata)
    return path


def write_sharded(path: Path, shards: list[Mapping[str, NDArray[Any]]]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors.numpy.save_file(dict(shard), path / name)
        weight_map.update(dict.fromkeys(shard, name))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def raw_safetensors(path: Path, header: object, data: bytes) -> Path:
    """A safetensors file with any header at all."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + data)
    return path


def llama_tensors(tied: bool = False, bias: bool = False) -> dict[str, NDArray[np.float32]]:
    """Random weights under Hugging Face names, with the values of quantised blocks in mind."""
    generator = np.random.default_rng(5)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return generator.normal(size=shape).astype(np.float32)

    values = {"model.embed_tokens.weight": drawn(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        values[f"{at}.input_layernorm.weight"] = drawn(WIDTH)
        values[f"{at}.self_attn.q_proj.weight"] = drawn(HEADS * HEAD_WIDTH, WIDTH)
        values[f"{at}.self_attn.k_proj.weight"] = drawn(GROUPS * HEAD_WIDTH, WIDTH)
        values[f"{at}.self_attn.v_proj.weight"] = drawn(GROUPS * HEAD_WIDTH, WIDTH)
        values[f"{at}.self_attn.o_proj.weight"] = drawn(WIDTH, HEADS * HEAD_WIDTH)
        if bias:
            values[f"{at}.self_attn.q_proj.bias"] = drawn(HEADS * HEAD_WIDTH)
            values[f"{at}.self_attn.k_proj.bias"] = drawn(GROUPS * HEAD_WIDTH)
            values[f"{at}.self_attn.v_proj.bias"] = drawn(GROUPS * HEAD_WIDTH)
            values[f"{at}.self_attn.o_proj.bias"] = drawn(WIDTH)
        values[f"{at}.post_attention_layernorm.weight"] = drawn(WIDTH)
        values[f"{at}.mlp.gate_proj.weight"] = drawn(INNER, WIDTH)
        values[f"{at}.mlp.up_proj.weight"] = drawn(INNER, WIDTH)
        values[f"{at}.mlp.down_proj.weight"] = drawn(WIDTH, INNER)
    values["model.norm.weight"] = drawn(WIDTH)
    if not tied:
        values["lm_head.weight"] = drawn(VOCABULARY, WIDTH)
    return values


def interleaved(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """The converter's reordering as what it means: rows i and r/2 + i become neighbours."""
    width = weight.shape[0] // heads
    order = [
        head * width + half * (width // 2) + plane
        for head in range(heads)
        for plane in range(width // 2)
        for half in range(2)
    ]
    return weight[order]


def gguf_name(name: str) -> str:
    """The gguf package's own name for a tensor of a Llama model."""
    mapping = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    result = mapping.get_name(name, try_suffixes=(".weight", ".bias"))
    assert result is not None
    return result


def write_llama(
    path: Path,
    values: Mapping[str, NDArray[np.float32]],
    quantisation: gguf.GGMLQuantizationType | None = None,
    changed: Mapping[str, int | float | str | bool] | None = None,
    omitted: tuple[str, ...] = (),
    extra: Mapping[str, NDArray[Any]] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write as the converter does; matrices are quantised if a type is given."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("model")
    entries: dict[str, int | float | str | bool] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": GROUPS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "llama.rope.dimension_count": HEAD_WIDTH,
        "llama.vocab_size": VOCABULARY,
    }
    entries.update(changed or {})
    for key, value in entries.items():
        if key in omitted:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    writer.add_token_list([f"token {number}" for number in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    for name, value in values.items():
        stored = value
        if ".q_proj." in name:
            stored = interleaved(value, HEADS)
        elif ".k_proj." in name:
            stored = interleaved(value, GROUPS)
        if quantisation is not None and stored.ndim == 2:
            writer.add_tensor(
                gguf_name(name), gguf.quants.quantize(stored, quantisation), raw_dtype=quantisation
            )
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(location: str | Path) -> str:
    """The message of the InputError that opening raises, checked to be one sentence."""
    try:
        open_checkpoint(location)
    except InputError as error:
        return one_sentence(error)
    raise AssertionError(f"{location} was opened")


def one_sentence(error: InputError) -> str:
    message = str(error)
    assert message.endswith("."), message
    assert "\n" not in message, message
    without_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", message)
    assert ". " not in without_quotes, message
    return message
