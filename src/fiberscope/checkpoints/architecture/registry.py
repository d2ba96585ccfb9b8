"""Which classes have a table, and the way from a raw configuration to its architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.architecture.tables.bert import bert
from fiberscope.checkpoints.architecture.tables.distilbert import distilbert
from fiberscope.checkpoints.architecture.tables.gpt2 import gpt2
from fiberscope.checkpoints.architecture.tables.gpt_neox import gpt_neox
from fiberscope.checkpoints.architecture.tables.llama import VARIANTS, llama
from fiberscope.checkpoints.architecture.tables.opt import opt
from fiberscope.checkpoints.architecture.tables.phi import phi
from fiberscope.checkpoints.architecture.tables.roberta import roberta
from fiberscope.checkpoints.architecture.tables.t5 import t5
from fiberscope.checkpoints.architecture.tables.vit import vit
from fiberscope.errors import InputError

Builder = Callable[[str, ConfigReader], Architecture]

MODEL_TYPES: Mapping[str, tuple[Builder, tuple[str, ...]]] = {
    "gpt2": (gpt2, ("GPT2Model", "GPT2LMHeadModel")),
    "opt": (opt, ("OPTModel", "OPTForCausalLM")),
    "gpt_neox": (gpt_neox, ("GPTNeoXModel", "GPTNeoXForCausalLM")),
    "phi": (phi, ("PhiModel", "PhiForCausalLM")),
    **{stem.lower(): (llama, (f"{stem}Model", f"{stem}ForCausalLM")) for stem in VARIANTS},
    "bert": (
        bert,
        ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
    ),
    "roberta": (
        roberta,
        ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
    ),
    "distilbert": (
        distilbert,
        ("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    ),
    "vit": (vit, ("ViTModel", "ViTForImageClassification")),
    "t5": (t5, ("T5Model", "T5ForConditionalGeneration", "T5EncoderModel")),
}
"""Model type -> its builder and its classes; the first is the base class."""

CLASSES: Mapping[str, Builder] = {
    name: builder for builder, names in MODEL_TYPES.values() for name in names
}
"""Class name -> the function that lays it out."""

_TYPE_OF = {name: kind for kind, (_, names) in MODEL_TYPES.items() for name in names}


EARLIER_NAMES: Mapping[str, str] = {
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "T5WithLMHeadModel": "T5ForConditionalGeneration",
}
"""What earlier releases called a class -> its name today."""


def class_of(config: Mapping[str, Any], where: str = "config.json") -> str:
    """The class a configuration describes: ``architectures[0]``, or the model type's base class.

    Raises
    ------
    InputError
        If the class or the model type has no table, if they contradict each other, or if the
        configuration names neither.
    """
    listed, kind = config.get("architectures"), config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise InputError(f"{where}: 'model_type' is {kind!r}, but a string is needed")
    if listed is not None and not (
        isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    ):
        raise InputError(f"{where}: 'architectures' is {listed!r}, but a list of names is needed")
    if not listed:
        if kind is None:
            raise InputError(
                f"{where}: neither 'architectures' nor 'model_type' says what the model is; "
                "add the one that transformers writes"
            )
        if kind not in MODEL_TYPES:
            raise InputError(
                f"{where}: there is no table for the model type {kind!r} "
                f"(there are tables for {', '.join(MODEL_TYPES)})"
            )
        return MODEL_TYPES[kind][1][0]
    name = EARLIER_NAMES.get(listed[0], str(listed[0]))
    if name not in CLASSES:
        if kind is not None and kind in MODEL_TYPES:
            raise InputError(
                f"{where}: there is no table for the class {name!r} of 'architectures' "
                f"(of model type {kind} there are {', '.join(MODEL_TYPES[kind][1])})"
            )
        raise InputError(
            f"{where}: there is no table for the class {name!r} of 'architectures' "
            f"(supported model types: {', '.join(MODEL_TYPES)})"
        )
    if kind is not None and _TYPE_OF[name] != kind:
        raise InputError(
            f"{where}: 'architectures' names {name}, a class of model type "
            f"{_TYPE_OF[name]!r}, but 'model_type' is {kind!r}; correct one of them"
        )
    return name


def architecture(
    config: Mapping[str, Any],
    where: str = "config.json",
    assumed_harmless: Iterable[str] = (),
    tied: bool | None = None,
) -> Architecture:
    """Lay out the architecture that a raw configuration describes.

    Parameters
    ----------
    config
        The parsed config.json; it is not changed.
    where
        What to call it in messages.
    assumed_harmless
        Keys the tables do not know and the caller vouches for.
    tied
        Whether input and output embeddings are one tensor, where the weights have shown it; None
        leaves it to the configuration.

    Raises
    ------
    InputError
        If the class has no table, or a key is missing, malformed, unknown, or has a value that the
        table does not understand.
    """
    name = class_of(config, where)
    reader = ConfigReader(config, where, assumed_harmless, tied=tied)
    laid_out = CLASSES[name](name, reader)
    reader.finish()
    return replace(laid_out, sizes=reader.sizes, siblings=partial(_siblings, name, config, where))


def _siblings(name: str, config: Mapping[str, Any], where: str) -> tuple[Architecture, ...]:
    """The other classes of a model type at the same sizes; those that the sizes do not fit lack."""
    found = []
    for sibling in MODEL_TYPES[_TYPE_OF[name]][1]:
        if sibling != name:
            with suppress(InputError):
                found.append(CLASSES[sibling](sibling, ConfigReader(config, where)))
    return tuple(found)
