"""DistilBERT: BERT's encoder without token types and pooler."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import even_heads
from fiberscope.checkpoints.architecture.post_norm import (
    LayerNames,
    label_count,
    post_norm_stream,
)
from fiberscope.checkpoints.architecture.program import (
    Activation,
    Architecture,
    Dense,
    Embedding,
    Head,
    Lookup,
    Observable,
    Table,
)
from fiberscope.checkpoints.architecture.tables.bert import ALIASES, BUFFERS

EPSILON = 1e-12
"""The class has no key for it."""

LAYER_NAMES = LayerNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    first_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    second_norm="output_layer_norm",
)


def distilbert(name: str, config: ConfigReader) -> Architecture:
    """Lay out DistilBertModel, DistilBertForMaskedLM or DistilBertForSequenceClassification."""
    d = config.integer("dim", 768)
    heads = even_heads(config, d, config.integer("n_heads", 12), "dim", "n_heads")
    f = config.integer("hidden_dim", 3072)
    layers = config.layers("n_layers", 6)
    vocabulary = config.integer("vocab_size", 30522)
    positions = config.integer("max_position_embeddings", 512)
    activation = config.activation("activation", "gelu")
    sinusoidal = config.flag("sinusoidal_pos_embds", False)
    config.only("tie_weights_", True)  # a leftover that the class never reads
    tie = config.tied(True)
    base = "" if name == "DistilBertModel" else "distilbert."

    book = TensorBook()
    token = book.tensor(f"{base}embeddings.word_embeddings.weight", vocabulary, d)
    position = book.tensor(f"{base}embeddings.position_embeddings.weight", positions, d)
    embedding = Embedding(
        (
            Table("token embedding", token, Lookup.TOKEN),
            Table("position embedding", position, Lookup.POSITION),
        ),
        ((token, position),),
    )
    stream = post_norm_stream(
        book,
        embedding,
        base=base,
        layer_prefix="transformer.layer",
        names=LAYER_NAMES,
        layers=layers,
        width=d,
        heads=heads,
        neurons=f,
        activation=activation,
        epsilon=EPSILON,
    )

    head: Head | None = None
    copies: dict[str, str] = {}
    tied = False
    if name == "DistilBertForMaskedLM":
        tied = tie
        hidden = Dense(
            "head dense layer",
            book.tensor("vocab_transform.weight", d, d),
            book.tensor("vocab_transform.bias", d),
            *activation,
        )
        norm = book.layer_norm("head norm", "vocab_layer_norm", d, EPSILON)
        output = token if tied else book.tensor("vocab_projector.weight", vocabulary, d)
        bias = book.tensor("vocab_projector.bias", vocabulary)
        head = Head("unembedding", output, bias, hidden, norm)
        copies = {"vocab_projector.weight": token.tensor} if tied else {}
    elif name == "DistilBertForSequenceClassification":
        labels = label_count(config)
        hidden = Dense(
            "classifier dense layer",
            book.tensor("pre_classifier.weight", d, d),
            book.tensor("pre_classifier.bias", d),
            Activation.HOMOGENEOUS,
            "relu",
        )
        head = Head(
            "classifier",
            book.tensor("classifier.weight", labels, d),
            book.tensor("classifier.bias", labels),
            dense=hidden,
            first_position=True,
        )
    assumptions = (
        ("the sinusoidal position table, stored like any other, counts as parameters",)
        if sinusoidal
        else ()
    )
    return Architecture(
        name=name,
        family="DistilBERT",
        tensors=book.shapes,
        streams=(stream,),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.HIDDEN,
        longest_input=positions,
        optional_copies=copies,
        aliases=ALIASES,
        buffers=BUFFERS,
        prefix="distilbert.",
        assumptions=assumptions,
    )
