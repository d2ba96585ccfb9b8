"""Which classes have twins, and what a configuration calls the things a twin must know.

The names are those of configuration files; nothing here states a symmetry or a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fiberscope.errors import InputError


@dataclass(frozen=True)
class ConfigNames:
    """What one model type's configuration calls its sizes.

    Attributes
    ----------
    classes : tuple of str
        The classes that have twins; the first is the base class, which a configuration that names
        no class gets.
    width, heads, layers, inner : str
        Keys of the model width, the number of query heads, layers and MLP neurons.
    positions : str or None
        Key of the number of learned position rows; None when there is no such table.
    counted_from : str or None
        Key of the padding token, where positions are counted from one after it.
    """

    classes: tuple[str, ...]
    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    inner: str = "intermediate_size"
    positions: str | None = None
    counted_from: str | None = None


def _decoder(stem: str) -> ConfigNames:
    return ConfigNames((f"{stem}Model", f"{stem}ForCausalLM"))


_POSITIONS = "max_position_embeddings"

ARCHITECTURES: Mapping[str, ConfigNames] = {
    "gpt2": ConfigNames(
        ("GPT2Model", "GPT2LMHeadModel"),
        "n_embd",
        "n_head",
        "n_layer",
        "n_inner",
        "n_positions",
    ),
    "opt": ConfigNames(("OPTModel", "OPTForCausalLM"), inner="ffn_dim", positions=_POSITIONS),
    "gpt_neox": _decoder("GPTNeoX"),
    "phi": _decoder("Phi"),
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral"),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3"),
    "gemma": _decoder("Gemma"),
    "bert": ConfigNames(
        ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
        positions=_POSITIONS,
    ),
    "roberta": ConfigNames(
        ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
        positions=_POSITIONS,
        counted_from="pad_token_id",
    ),
    "distilbert": ConfigNames(
        ("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
        "dim",
        "n_heads",
        "n_layers",
        "hidden_dim",
        _POSITIONS,
    ),
    "vit": ConfigNames(("ViTModel", "ViTForImageClassification")),
    "t5": ConfigNames(
        ("T5Model", "T5ForConditionalGeneration", "T5EncoderModel"),
        "d_model",
        "num_heads",
        "num_layers",
        "d_ff",
    ),
}


def model_type_of(config: Mapping[str, object]) -> str:
    """The configuration's model type.

    Raises
    ------
    InputError
        If it is missing or has no twins.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise InputError(
            f"No twin can be built for model_type {model_type!r}: use one of "
            f"{', '.join(sorted(ARCHITECTURES))}."
        )
    return model_type


def first_position(config: Mapping[str, object]) -> int:
    """Row of the position table that the first token reads."""
    key = ARCHITECTURES[model_type_of(config)].counted_from
    if key is None:
        return 0
    padding = config.get(key)
    return (padding if isinstance(padding, int) else 1) + 1


def class_name_of(config: Mapping[str, object]) -> str:
    """The class a configuration asks for: ``architectures[0]``, or the base class if none is named.

    Raises
    ------
    InputError
        If the class has no twins, or is not a class of the configuration's model type.
    """
    model_type = model_type_of(config)
    names = ARCHITECTURES[model_type].classes
    listed = config.get("architectures")
    if listed is None:
        return names[0]
    if not isinstance(listed, list | tuple) or not listed or listed[0] not in names:
        raise InputError(
            f"No twin can be built for architectures {listed!r} of model_type {model_type!r}: "
            f"name one of {', '.join(names)}."
        )
    return str(listed[0])
