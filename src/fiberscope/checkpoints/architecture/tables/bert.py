"""BERT: post-norm encoder over tokens, positions and token types."""

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
    Unread,
)
from fiberscope.parameters import View

LAYER_NAMES = LayerNames(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    first_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    second_norm="output.LayerNorm",
)

ALIASES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names in files of the first releases."""

BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def bert(name: str, config: ConfigReader) -> Architecture:
    """Lay out BertModel, BertForMaskedLM, BertForPreTraining or BertForSequenceClassification."""
    d = config.integer("hidden_size", 768)
    heads = even_heads(
        config,
        d,
        config.integer("num_attention_heads", 12),
        "hidden_size",
        "num_attention_heads",
    )
    f = config.integer("intermediate_size", 3072)
    layers = config.layers("num_hidden_layers", 12)
    vocabulary = config.integer("vocab_size", 30522)
    positions = config.integer("max_position_embeddings", 512)
    types = config.integer("type_vocab_size", 2)
    epsilon = config.number("layer_norm_eps", 1e-12)
    activation = config.activation("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute", None)
    for key in ("directionality", "pooler_fc_size", "pooler_num_attention_heads"):
        config.raw(key)  # left by the first releases; the class never reads them
    for key in ("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"):
        config.raw(key)
    tie = config.tied(True)
    base = "" if name == "BertModel" else "bert."

    book = TensorBook()
    token = book.tensor(f"{base}embeddings.word_embeddings.weight", vocabulary, d)
    position = book.tensor(f"{base}embeddings.position_embeddings.weight", positions, d)
    kind = book.tensor(f"{base}embeddings.token_type_embeddings.weight", types, d)
    embedding = Embedding(
        (
            Table("token embedding", token, Lookup.TOKEN),
            Table("position embedding", position, Lookup.POSITION),
            Table("token type embedding", kind, Lookup.TYPE),
        ),
        ((token, position, kind),),
    )
    stream = post_norm_stream(
        book,
        embedding,
        base=base,
        layer_prefix="encoder.layer",
        names=LAYER_NAMES,
        layers=layers,
        width=d,
        heads=heads,
        neurons=f,
        activation=activation,
        epsilon=epsilon,
    )

    head: Head | None = None
    unread: tuple[Unread, ...] = ()
    copies: dict[str, str] = {}
    optional: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    tied = False
    pooler = pooler_of(book, base, d) if name not in ("BertForMaskedLM",) else None
    if name == "BertForSequenceClassification":
        labels = label_count(config)
        head = Head(
            "classifier",
            book.tensor("classifier.weight", labels, d),
            book.tensor("classifier.bias", labels),
            dense=pooler,
            first_position=True,
        )
    elif pooler is not None:
        unread = unread_dense(pooler)
    if name in ("BertForMaskedLM", "BertForPreTraining"):
        tied = tie
        head, extra, copies = masked_head(
            book,
            token,
            tied,
            dense="cls.predictions.transform.dense",
            norm="cls.predictions.transform.LayerNorm",
            output="cls.predictions.decoder",
            bias="cls.predictions.bias",
            activation=activation,
            epsilon=epsilon,
        )
        unread += extra
    if name == "BertModel":
        optional = dense_tensors(pooler)
    if name == "BertForPreTraining":
        unread += (
            Unread("next-sentence head weight", book.tensor("cls.seq_relationship.weight", 2, d)),
            Unread("next-sentence head bias", book.tensor("cls.seq_relationship.bias", 2)),
        )
        assumptions = ("the next-sentence scores are not observed, only the token scores",)
    return Architecture(
        name=name,
        family="BERT",
        tensors=book.shapes,
        streams=(stream,),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.HIDDEN,
        longest_input=positions,
        unread=unread,
        optional=optional,
        optional_copies=copies,
        aliases=ALIASES,
        buffers=BUFFERS,
        prefix="bert.",
        assumptions=assumptions,
    )


def pooler_of(book: TensorBook, base: str, width: int) -> Dense:
    """The dense layer and tanh over the first token's last state."""
    return Dense(
        "pooler",
        book.tensor(f"{base}pooler.dense.weight", width, width),
        book.tensor(f"{base}pooler.dense.bias", width),
        Activation.ODD,
        "tanh",
    )


def unread_dense(dense: Dense) -> tuple[Unread, ...]:
    """A dense layer that neither the logits nor the last hidden state read."""
    bias = () if dense.bias is None else (Unread(f"{dense.label} bias", dense.bias),)
    return (Unread(f"{dense.label} weight", dense.weight), *bias)


def dense_tensors(dense: Dense | None) -> tuple[str, ...]:
    """Names of the tensors of a dense layer."""
    if dense is None:
        return ()
    return (dense.weight.tensor, *(() if dense.bias is None else (dense.bias.tensor,)))


def masked_head(
    book: TensorBook,
    token: View,
    tied: bool,
    *,
    dense: str,
    norm: str,
    output: str,
    bias: str,
    activation: tuple[Activation, str],
    epsilon: float,
) -> tuple[Head, tuple[Unread, ...], dict[str, str]]:
    """The masked-language head: dense, activation, LayerNorm, unembedding with bias.

    Tied, the class stores the unembedding and its bias under two names each. Untied, the second
    bias is a parameter of its own that nothing reads.

    Returns
    -------
    head, unread, copies
        ``copies`` maps names that a file may store again to their originals.
    """
    vocabulary, width = token.shape
    hidden = Dense(
        "head dense layer",
        book.tensor(f"{dense}.weight", width, width),
        book.tensor(f"{dense}.bias", width),
        *activation,
    )
    normalised = book.layer_norm("head norm", norm, width, epsilon)
    bias_view = book.tensor(bias, vocabulary)
    if tied:
        head = Head("unembedding", token, bias_view, hidden, normalised)
        copies = {f"{output}.weight": token.tensor, f"{output}.bias": bias}
        return head, (), copies
    head = Head(
        "unembedding",
        book.tensor(f"{output}.weight", vocabulary, width),
        book.tensor(f"{output}.bias", vocabulary),
        hidden,
        normalised,
    )
    return head, (Unread("second unembedding bias", bias_view),), {}
