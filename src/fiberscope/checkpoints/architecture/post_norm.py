"""The post-norm encoder that BERT, RoBERTa and DistilBERT share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import Heads, attention, mlp
from fiberscope.checkpoints.architecture.program import (
    Activation,
    Branch,
    Embedding,
    Normalize,
    Residual,
    Stream,
)


@dataclass(frozen=True)
class LayerNames:
    """What a class calls the modules of one layer."""

    query: str
    key: str
    value: str
    output: str
    first_norm: str
    up: str
    down: str
    second_norm: str


def post_norm_stream(
    book: TensorBook,
    embedding: Embedding,
    *,
    base: str,
    layer_prefix: str,
    names: LayerNames,
    layers: int,
    width: int,
    heads: Heads,
    neurons: int,
    activation: tuple[Activation, str],
    epsilon: float,
) -> Stream:
    """Embedding norm, then per layer: add attention, normalise, add MLP, normalise."""
    norm = book.layer_norm("embedding norm", f"{base}embeddings.LayerNorm", width, epsilon)
    steps: list[Residual | Normalize] = [Normalize(norm)]
    for layer in range(layers):
        at = f"{base}{layer_prefix}.{layer}"
        sublayer = attention(
            book,
            f"layer {layer} attention",
            layer,
            f"{at}.{names.query}",
            f"{at}.{names.key}",
            f"{at}.{names.value}",
            f"{at}.{names.output}",
            width=width,
            heads=heads,
            input_bias=True,
            output_bias=True,
            causal=False,
        )
        first = book.layer_norm(
            f"layer {layer} first norm", f"{at}.{names.first_norm}", width, epsilon
        )
        perceptron = mlp(
            book,
            f"layer {layer} MLP",
            layer,
            up=f"{at}.{names.up}",
            down=f"{at}.{names.down}",
            width=width,
            neurons=neurons,
            bias=True,
            activation=activation,
        )
        second = book.layer_norm(
            f"layer {layer} second norm", f"{at}.{names.second_norm}", width, epsilon
        )
        steps.append(Residual(layer, (Branch(None, (sublayer,)),)))
        steps.append(Normalize(first))
        steps.append(Residual(layer, (Branch(None, (perceptron,)),)))
        steps.append(Normalize(second))
    return Stream("residual stream", width, embedding, tuple(steps), None)


def label_count(config: ConfigReader) -> int:
    """Number of labels of a classifier: those named in id2label, else num_labels, else two.

    Raises
    ------
    InputError
        If there is no label, id2label is no object, or num_labels is another number.
    """
    named = config.raw("id2label")
    if named is None:
        return config.integer("num_labels", 2)
    if not isinstance(named, Mapping) or not named:
        raise config.fail("'id2label' must be an object that names at least one label")
    if config.has("num_labels") and config.integer("num_labels", 2) != len(named):
        raise config.fail(
            f"'id2label' names {len(named)} labels, but 'num_labels' is "
            f"{config.raw('num_labels')}; correct one of them"
        )
    config.sizes["id2label"] = len(named)
    return len(named)
