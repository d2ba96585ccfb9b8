"""Shrinking a full-size configuration to a toy of the same class and flags."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

from fiberscope.checkpoints.twins.architectures import (
    ARCHITECTURES,
    class_name_of,
    first_position,
    model_type_of,
)

# Classes with rotary positions; their head width must hold a rotated plane.
_ROTARY = ("gpt_neox", "phi", "llama", "mistral", "qwen2", "qwen3", "gemma")
# Classes whose key and value heads may be fewer than their query heads.
_GROUPED = ("phi", "llama", "mistral", "qwen2", "qwen3", "gemma")
# Classes whose head width is a constant, not width over heads, when the configuration is silent.
_OWN_HEAD_WIDTH = ("qwen3", "gemma")
_POSITION_ROWS = 5
# A rotary base of this size turns every plane of a toy head visibly within a few tokens.
_ROTARY_BASE = 10.0


def toy_config(config: Mapping[str, object], *, layers: int = 2) -> dict[str, object]:
    """A toy configuration of the same class with the same flags.

    Kept: class, tying, biases, activation, normalised queries and keys, grouped or not, rotary
    fraction (in whole pairs) and scaling, parallel residual, type tables. Changed: sizes, so that
    the conditions hold under which the counts are generic:

    - width d = 8 with rotary positions, 6 without; head width r below d;
    - vocabulary at least 2d + 6, with a parallel residual also 2f + d + 2 + f/(d - 1), with
      normalised queries also r(d + 1)/(r - 1);
    - the default sequence length reads every learned position and every relative-position bucket,
      save the one of a bidirectional table that no distance reaches (half the table's length).

    Parameters
    ----------
    config : mapping
        Raw configuration.
    layers : int
        Layers of the toy (of each stack, for T5).

    Returns
    -------
    dict
        Raw configuration of the toy; the input is left as it was.

    Raises
    ------
    InputError
        If the class has no twins.
    """
    toy = copy.deepcopy(dict(config))
    model_type = model_type_of(toy)
    class_name_of(toy)
    names = ARCHITECTURES[model_type]
    rotary = model_type in _ROTARY
    full_width = _integer(toy, names.width, 768)
    width, inner = (8, 5) if rotary else (6, 7)
    heads, head_width = 2, width // 2

    if model_type in _GROUPED:
        full_heads = _integer(toy, names.heads, 32)
        groups = _integer(toy, "num_key_value_heads", full_heads)
        own_width = toy.get("head_dim") is not None or model_type in _OWN_HEAD_WIDTH
        if 1 < groups < full_heads:
            heads, toy["num_key_value_heads"] = 4, 2
            head_width = 4 if own_width else width // heads
        else:
            toy["num_key_value_heads"] = 1 if groups < full_heads else heads
        if own_width:
            toy["head_dim"] = head_width
    toy.update({names.width: width, names.heads: heads, names.layers: layers, names.inner: inner})
    if rotary:
        _shrink_rotary(toy, model_type)
    if model_type == "phi":
        _rotate_pairs(toy, width // heads)
    if isinstance(toy.get("layer_types"), list):
        toy["layer_types"] = toy["layer_types"][:layers]  # type: ignore[index]

    if model_type == "t5":
        toy["d_kv"] = head_width
        if class_name_of(toy) != "T5EncoderModel":
            toy["num_decoder_layers"] = layers
        toy.update(relative_attention_num_buckets=4, relative_attention_max_distance=8)
    if model_type == "opt" and toy.get("word_embed_proj_dim") is not None:
        projected = _integer(toy, "word_embed_proj_dim", full_width) != full_width
        toy["word_embed_proj_dim"] = width - 2 if projected else width
    if model_type == "vit":
        toy.update(image_size=4, patch_size=2)
    else:
        vocabulary = max(
            2 * width + 6,
            math.ceil(2 * inner + width + 2 + inner / (width - 1)) if rotary else 0,
            math.ceil(head_width * (width + 1) / (head_width - 1)),
        )
        toy["vocab_size"] = vocabulary
        padding = toy.get("pad_token_id")
        if isinstance(padding, int) and padding >= vocabulary:
            toy["pad_token_id"] = 0
    if names.positions is not None:
        toy[names.positions] = _POSITION_ROWS + first_position(toy)
    if model_type == "vit" or class_name_of(toy).endswith("ForSequenceClassification"):
        _shrink_labels(toy, full_width, width)
    return toy


def _integer(config: Mapping[str, object], name: str, default: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else default


def _shrink_rotary(toy: dict[str, object], model_type: str) -> None:
    """Replace the rotary base where the configuration may state it."""
    parameters = toy.get("rope_parameters")
    if isinstance(parameters, dict) and "rope_theta" in parameters:
        parameters["rope_theta"] = _ROTARY_BASE
    elif model_type == "gpt_neox":
        toy["rotary_emb_base"] = _ROTARY_BASE
    else:
        toy["rope_theta"] = _ROTARY_BASE


def _rotate_pairs(toy: dict[str, object], head_width: int) -> None:
    """Phi rotates a fraction of a head's rows; in a narrow head that may be no whole pair."""
    parameters = toy.get("rope_parameters")
    key = "partial_rotary_factor"
    place = parameters if isinstance(parameters, dict) and key in parameters else toy
    fraction = place.get(key, 0.5)
    if isinstance(fraction, int | float):
        rotated = int(head_width * fraction)
        if rotated < 2 or rotated % 2:
            place[key] = 2 / head_width


def _shrink_labels(toy: dict[str, object], full_width: int, width: int) -> None:
    """More labels than the width stay more; few labels stay few."""
    labels = toy.pop("id2label", None)
    toy.pop("label2id", None)
    count = len(labels) if isinstance(labels, dict) else _integer(toy, "num_labels", 2)
    toy.pop("num_labels", None)
    count = width + 2 if count > full_width else min(count, 3)
    toy["id2label"] = {str(index): f"LABEL_{index}" for index in range(count)}
    toy["label2id"] = {f"LABEL_{index}": index for index in range(count)}
