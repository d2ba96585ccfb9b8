"""GGUF files of the Llama family in the terms of Hugging Face's `LlamaForCausalLM`.

Only `general.architecture = llama` is understood. It is the one convention under which the
converter of llama.cpp reorders the rows of the query and key projections: within a head of width r,
the rotation pairs (i, r/2 + i) of Hugging Face become the neighbours (2i, 2i + 1). Other
architectures (qwen2, qwen3, gemma, ...) keep their rows, so that guessing would give wrong weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats.files import quoted
from fiberscope.checkpoints.formats.gguf_header import REMEDY, GgufHeader, GgufTensor, MetadataValue
from fiberscope.errors import InputError

FREQUENCY_FACTORS = "rope_freqs.weight"
"""A stored buffer, not a parameter: divisors of the rotary frequencies (Llama 3.1 and later)."""

_UNLAYERED = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYERED = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)", re.ASCII)

# A key that is not listed may change the function (a window, a scale, experts): it is refused.
_KEYS = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}


@dataclass(frozen=True)
class LlamaLayout:
    """The configuration, and for each stored tensor its Hugging Face name and head count.

    `heads` holds the tensors whose rows were reordered, with the number of heads in them.
    """

    config: dict[str, object]
    names: dict[str, str]
    heads: dict[str, int]


def layout(path: Path, header: GgufHeader) -> LlamaLayout:
    """Read the configuration and the tensors' names from the header.

    Raises
    ------
    InputError
        If the file is not a whole model of the Llama family, its metadata is incomplete or holds an
        entry that is not understood, or the metadata and the tensors contradict each other.
    """
    reader = _Metadata(path, header.metadata)
    reader.check_kind()
    layers = reader.count("block_count")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    names = _names(path, tensors, layers)
    config = _config(reader, tensors, layers)
    heads = _reordered(path, tensors, config)
    return LlamaLayout(config, names, heads)


def restored_rows(stored: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo the converter's reordering of the rows of a query or key projection (or its bias).

    Parameters
    ----------
    stored
        Array of shape (heads * r, ...), rows 2i and 2i + 1 of each head forming a rotation pair.
    heads
        Number of heads in it.

    Returns
    -------
    ndarray
        Array of the same shape, rows i and r/2 + i of each head forming a rotation pair.
    """
    pairs = stored.reshape(heads, stored.shape[0] // heads // 2, 2, *stored.shape[1:])
    return pairs.swapaxes(1, 2).reshape(stored.shape)


class _Metadata:
    """Typed access to the metadata."""

    def __init__(self, path: Path, metadata: dict[str, MetadataValue]) -> None:
        self.path, self.metadata = path, metadata

    def check_kind(self) -> None:
        architecture = self.metadata.get("general.architecture")
        if architecture != "llama":
            raise InputError(
                f"{self.path} holds the GGUF architecture {quoted(architecture)} and only 'llama' "
                f"is understood; pass the model as safetensors."
            )
        kind = self.metadata.get("general.type", "model")
        if kind != "model":
            raise InputError(
                f"{self.path} holds a GGUF file of type {quoted(kind)}, not a model; pass the "
                f"model."
            )
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise InputError(
                f"{self.path} is one part of a split model; join the parts with "
                f"`llama-gguf-split --merge` first."
            )
        for key in self.metadata:
            family, _, rest = key.partition(".")
            if family == "llama" and rest not in _KEYS:
                raise InputError(
                    f"{self.path} has the metadata {quoted(key)}, which is not understood and may "
                    f"change the function; pass the model as safetensors."
                )
        if self.value("tensor_data_layout", "Meta AI original pth") != "Meta AI original pth":
            raise InputError(
                f"{self.path} has an unknown llama.tensor_data_layout, so the order of its rows is "
                f"not known; {REMEDY}."
            )

    def value(self, key: str, default: MetadataValue | None = None) -> MetadataValue | None:
        return self.metadata.get(f"llama.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.value(key, default)
        if type(value) is not int or not 1 <= value < 2**31:
            shown = "is missing" if value is None else "is not a positive count"
            raise InputError(f"{self.path}: the metadata llama.{key} {shown}; {REMEDY}.")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            shown = "is missing" if value is None else "is not a positive number"
            raise InputError(f"{self.path}: the metadata llama.{key} {shown}; {REMEDY}.")
        if value < np.finfo(np.float32).max and float(np.float32(value)) == value:
            # Stored as float32 from a decimal such as 1e-5: the shortest decimal gives it back.
            return float(str(np.float32(value)))
        return float(value)


def _names(path: Path, tensors: dict[str, GgufTensor], layers: int) -> dict[str, str]:
    names: dict[str, str] = {}
    found = set()
    for name in tensors:
        if name == FREQUENCY_FACTORS:
            continue
        match = _LAYER_NAME.fullmatch(name)
        if name in _UNLAYERED:
            names[name] = _UNLAYERED[name]
        elif match and match[2] in _LAYERED and int(match[1]) < layers:
            found.add(int(match[1]))
            names[name] = f"model.layers.{match[1]}.{_LAYERED[match[2]]}.{match[3]}"
        else:
            raise InputError(
                f"{path} stores the tensor {quoted(name)}, which a Llama model of {layers} layers "
                f"does not have; pass the model as safetensors."
            )
    if len(found) != layers:
        raise InputError(
            f"{path} announces {layers} layers and stores tensors of {len(found)}; {REMEDY}."
        )
    return names


def _config(reader: _Metadata, tensors: dict[str, GgufTensor], layers: int) -> dict[str, object]:
    path = reader.path
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise InputError(f"{path} does not store the tensor token_embd.weight; {REMEDY}.")
    if reader.count("vocab_size", embedding.shape[0]) != embedding.shape[0]:
        raise InputError(
            f"{path}: tensor token_embd.weight has {embedding.shape[0]} rows and the metadata "
            f"llama.vocab_size is {reader.value('vocab_size')}; {REMEDY}."
        )
    width, heads = reader.count("embedding_length"), reader.count("attention.head_count")
    head_width = reader.count("attention.key_length", max(width // heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if reader.count(key, head_width) != head_width:
            raise InputError(
                f"{path}: the metadata llama.{key} differs from the head width {head_width}, which "
                f"a Llama model does not have; pass the model as safetensors."
            )
    if head_width % 2:
        raise InputError(f"{path} has heads of odd width {head_width}, so no rotary; {REMEDY}.")
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": reader.count("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": reader.count("attention.head_count_kv", heads),
        "head_dim": head_width,
        "hidden_act": "silu",
        "max_position_embeddings": reader.count("context_length"),
        "rms_norm_eps": reader.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": reader.positive("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(reader),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": any(name.endswith(".bias") and ".attn_" in name for name in tensors),
        "mlp_bias": any(name.endswith(".bias") and ".ffn_" in name for name in tensors),
    }
    return config


def _scaling(reader: _Metadata) -> dict[str, object] | None:
    kind = reader.value("rope.scaling.type", "none")
    if kind == "none":
        factor = reader.positive("rope.scale_linear", 1.0)
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind not in ("linear", "yarn"):
        raise InputError(
            f"{reader.path} scales its rotary frequencies by {quoted(kind)}, which is not "
            f"understood; pass the model as safetensors."
        )
    scaling: dict[str, object] = {
        "rope_type": kind,
        "factor": reader.positive("rope.scaling.factor"),
    }
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = reader.count(
            "rope.scaling.original_context_length"
        )
    return scaling


def frequency_scaling(
    path: Path, factors: NDArray[np.float64], config: dict[str, object]
) -> dict[str, object]:
    """Express stored divisors of the rotary frequencies as a `rope_scaling` entry.

    The converter stores the divisors in place of the four numbers of the `llama3` rule. The numbers
    published with Llama 3.1, 3.2 and 3.3 (low 1, high 4, original context 8,192) are tried; where
    they reproduce the divisors to float32, the rule is returned, else the divisors themselves.

    Parameters
    ----------
    path
        The file, for the error message.
    factors
        Divisors, shape (head_dim / 2,).
    config
        The configuration so far.

    Raises
    ------
    InputError
        If there is not one positive divisor per rotation plane.
    """
    head_width, base = config["head_dim"], config["rope_theta"]
    assert isinstance(head_width, int)
    assert isinstance(base, float)
    # Bounds on the divisors keep their reciprocals finite; those in use go up to 32.
    if factors.shape != (head_width // 2,) or not np.all((factors > 1e-6) & (factors < 1e6)):
        raise InputError(
            f"{path}: tensor {FREQUENCY_FACTORS} must hold {head_width // 2} positive numbers; "
            f"{REMEDY}."
        )
    if config["rope_scaling"] is not None:
        raise InputError(
            f"{path} scales its rotary frequencies both in its metadata and by "
            f"{FREQUENCY_FACTORS}, which is not understood; pass the model as safetensors."
        )
    largest, low, high, context = float(factors.max()), 1.0, 4.0, 8192
    wavelengths = 2 * np.pi * base ** (np.arange(0, head_width, 2) / head_width)
    # Fully scaled beyond context / low, untouched below context / high, blended in between.
    blend = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    if np.allclose(1 / factors, (1 - blend) / largest + blend, rtol=1e-5, atol=0.0):
        return {
            "rope_type": "llama3",
            "factor": largest,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }
    return {"rope_type": "frequency_divisors", "divisors": factors.tolist()}


def _reordered(
    path: Path, tensors: dict[str, GgufTensor], config: dict[str, object]
) -> dict[str, int]:
    counts = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    width = config["head_dim"]
    assert isinstance(width, int)
    heads: dict[str, int] = {}
    for name, tensor in tensors.items():
        match = _LAYER_NAME.fullmatch(name)
        count = counts.get(match[2]) if match else None
        if not isinstance(count, int):
            continue
        if tensor.shape[0] != count * width:
            raise InputError(
                f"{path}: tensor {quoted(name)} has {tensor.shape[0]} rows and the metadata "
                f"announces {count} heads of width {width}; {REMEDY}."
            )
        heads[name] = count
    return heads
