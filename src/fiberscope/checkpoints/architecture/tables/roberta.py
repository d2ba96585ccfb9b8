"""RoBERTa: BERT's encoder with positions counted from the padding index."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import even_heads
from fiberscope.checkpoints.architecture.post_norm import label_count, post_norm_stream
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
from fiberscope.checkpoints.architecture.tables.bert import (
    ALIASES,
    BUFFERS,
    LAYER_NAMES,
    dense_tensors,
    masked_head,
    pooler_of,
    unread_dense,
)


def roberta(name: str, config: ConfigReader) -> Architecture:
    """Lay out RobertaModel, RobertaForMaskedLM or RobertaForSequenceClassification.

    The class finds positions by counting tokens that differ from the padding token, so inputs
    without padding read neither the position rows up to the padding index nor the padding token's
    embedding row.
    """
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
    vocabulary = config.integer("vocab_size", 50265)
    positions = config.integer("max_position_embeddings", 512)
    types = config.integer("type_vocab_size", 2)
    epsilon = config.number("layer_norm_eps", 1e-12)
    activation = config.activation("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute", None)
    tie = config.tied(True)
    padding = _padding_index(config, min(vocabulary, positions - 1))
    base = "" if name == "RobertaModel" else "roberta."

    book = TensorBook()
    token = book.tensor(f"{base}embeddings.word_embeddings.weight", vocabulary, d)
    stored = book.tensor(f"{base}embeddings.position_embeddings.weight", positions, d)
    kind = book.tensor(f"{base}embeddings.token_type_embeddings.weight", types, d)
    position = stored.slice(0, padding + 1, positions)
    parts = {0: token.slice(0, 0, padding), padding + 1: token.slice(0, padding + 1, vocabulary)}
    embedding = Embedding(
        (
            *(
                Table("token embedding", part, Lookup.TOKEN, first)
                for first, part in parts.items()
                if part.size
            ),
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

    padding_row = Unread("padding token's embedding row", token.slice(0, padding, padding + 1))
    unread: tuple[Unread, ...] = (
        Unread("position rows up to the padding index", stored.slice(0, 0, padding + 1)),
    )
    unread_without_head: tuple[Unread, ...] = ()
    head: Head | None = None
    copies: dict[str, str] = {}
    optional: tuple[str, ...] = ()
    tied = False
    if name == "RobertaForMaskedLM":
        tied = tie
        head, extra, copies = masked_head(
            book,
            token,
            tied,
            dense="lm_head.dense",
            norm="lm_head.layer_norm",
            output="lm_head.decoder",
            bias="lm_head.bias",
            activation=(Activation.GENERIC, "gelu"),
            epsilon=epsilon,
        )
        unread += extra
    elif name == "RobertaForSequenceClassification":
        head = _classifier(book, d, label_count(config))
    else:
        pooler = pooler_of(book, base, d)
        unread += unread_dense(pooler)
        optional = dense_tensors(pooler)
    if tied:
        unread_without_head = (padding_row,)
    else:
        unread += (padding_row,)
    return Architecture(
        name=name,
        family="RoBERTa",
        tensors=book.shapes,
        streams=(stream,),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.HIDDEN,
        longest_input=positions - padding - 1,
        unread=unread,
        unread_without_head=unread_without_head,
        optional=optional,
        optional_copies=copies,
        aliases=ALIASES,
        buffers=BUFFERS,
        prefix="roberta.",
        assumptions=("inputs contain no padding token",),
    )


def _padding_index(config: ConfigReader, limit: int) -> int:
    """The padding token; positions start one after it."""
    value = config.raw("pad_token_id")
    if value is None and "pad_token_id" not in config.config:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise config.fail(
            f"'pad_token_id' is {value!r}, but RoBERTa counts positions from it "
            f"(an integer from 0 to {limit - 1} is needed)"
        )
    return value


def _classifier(book: TensorBook, width: int, labels: int) -> Head:
    """Dense, tanh and output over the first token's last state."""
    hidden = Dense(
        "classifier dense layer",
        book.tensor("classifier.dense.weight", width, width),
        book.tensor("classifier.dense.bias", width),
        Activation.ODD,
        "tanh",
    )
    return Head(
        "classifier",
        book.tensor("classifier.out_proj.weight", labels, width),
        book.tensor("classifier.out_proj.bias", labels),
        dense=hidden,
        first_position=True,
    )
