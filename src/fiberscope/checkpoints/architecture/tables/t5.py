"""T5: pre-norm RMSNorm encoder and decoder, relative positions, no biases."""

from __future__ import annotations

from dataclasses import dataclass

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader, activation_kind
from fiberscope.checkpoints.architecture.layout import Heads, attention, mlp
from fiberscope.checkpoints.architecture.program import (
    Activation,
    Architecture,
    Branch,
    Embedding,
    Head,
    Lookup,
    Observable,
    RelativePositions,
    Residual,
    Stream,
    Table,
    Unread,
)
from fiberscope.checkpoints.architecture.relative_positions import unreached_buckets
from fiberscope.parameters import View

FURTHEST = 2**20
"""Bound on the distance that has a bucket of its own."""


@dataclass(frozen=True)
class Sizes:
    """What both stacks share."""

    width: int
    heads: Heads
    neurons: int
    gated: bool
    activation: tuple[Activation, str]
    epsilon: float
    buckets: int
    furthest: int


def t5(name: str, config: ConfigReader) -> Architecture:
    """Lay out T5ForConditionalGeneration, T5Model or T5EncoderModel."""
    gated, activation = _feed_forward(config)
    sizes = Sizes(
        width=config.integer("d_model", 512),
        heads=Heads(config.integer("num_heads", 8), 1, config.integer("d_kv", 64)),
        neurons=config.integer("d_ff", 2048),
        gated=gated,
        activation=activation,
        epsilon=config.number("layer_norm_epsilon", 1e-6),
        buckets=config.integer("relative_attention_num_buckets", 32),
        furthest=config.integer("relative_attention_max_distance", 128),
    )
    # Exact buckets of a direction: a quarter of the encoder's table, half of the decoder's.
    if sizes.buckets < 4 or not sizes.buckets // 2 < sizes.furthest <= FURTHEST:
        raise config.fail(
            f"'relative_attention_num_buckets' {sizes.buckets} needs to be at least 4 and "
            f"'relative_attention_max_distance' {sizes.furthest} to lie between half of it "
            f"and {FURTHEST}"
        )
    d = sizes.width
    layers = config.layers("num_layers", 6)
    decoder_layers = config.layers("num_decoder_layers", layers)
    vocabulary = config.integer("vocab_size", 32128)
    config.flag("is_encoder_decoder", True)
    # Newer files say whether the unembedding's argument is scaled; in older ones the tie does.
    scaled = config.flag("scale_decoder_outputs", config.tied(True))
    config.raw("n_positions")  # there is no table of that length
    with_head = name == "T5ForConditionalGeneration"
    tied = config.tied(True) and with_head

    book = TensorBook()
    token = book.tensor("shared.weight", vocabulary, d)
    encoder, unread = _stack(book, "encoder", token, layers, sizes, decoder=False)
    streams: tuple[Stream, ...] = (encoder,)
    copies = {"encoder.embed_tokens.weight": token.tensor}
    if name != "T5EncoderModel":
        decoder, further = _stack(book, "decoder", token, decoder_layers, sizes, decoder=True)
        streams, unread = (encoder, decoder), unread + further
        copies["decoder.embed_tokens.weight"] = token.tensor
    head = None
    if with_head:
        output = token if tied else book.tensor("lm_head.weight", vocabulary, d)
        head = Head("unembedding", output, scale=d**-0.5 if scaled else 1.0)
        if tied:
            copies["lm_head.weight"] = token.tensor
    return Architecture(
        name=name,
        family="T5",
        tensors=book.shapes,
        streams=streams,
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.LOGITS if with_head else Observable.HIDDEN,
        unread=unread,
        optional_copies=copies,
        # Early files store a table that no layer reads.
        buffers=("layer.1.EncDecAttention.relative_attention_bias.weight",),
        assumptions=(
            f"inputs are long enough to reach every relative distance up to {sizes.furthest}",
        ),
    )


def _feed_forward(config: ConfigReader) -> tuple[bool, tuple[Activation, str]]:
    """Whether the MLP is gated, and its activation, from ``relu`` or ``gated-gelu``."""
    given = config.text("feed_forward_proj", "relu")
    kind, _, name = given.rpartition("-")
    if kind not in ("", "gated"):
        raise config.fail(
            f"'feed_forward_proj' is {given!r}, but an activation or 'gated-' and an activation "
            "is needed"
        )
    gated = kind == "gated"
    if given == "gated-gelu":
        name = "gelu_new"
    # Newer files repeat both parts.
    config.only("is_gated_act", gated, None)
    config.only("dense_act_fn", name, None)
    return gated, (activation_kind("feed_forward_proj", name, config), name)


def _stack(
    book: TensorBook, label: str, token: View, layers: int, sizes: Sizes, *, decoder: bool
) -> tuple[Stream, tuple[Unread, ...]]:
    """One stack; the first layer owns the position table that all its layers add."""
    d, heads = sizes.width, sizes.heads
    table = book.tensor(
        f"{label}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        sizes.buckets,
        heads.total,
    ).split(1, heads.groups, heads.per_group)
    steps = []
    for layer in range(layers):
        at = f"{label}.block.{layer}.layer"
        name = f"{label} layer {layer}"
        sublayer = attention(
            book,
            f"{name} attention",
            layer,
            *(f"{at}.0.SelfAttention.{part}" for part in "qkvo"),
            width=d,
            heads=heads,
            input_bias=False,
            output_bias=False,
            position_table=table if layer == 0 else None,
            causal=decoder,
            score_scale=1.0,
            relative_positions=RelativePositions(not decoder, sizes.buckets, sizes.furthest),
        )
        norm = book.rms_norm(f"{name} first norm", f"{at}.0.layer_norm.weight", d, sizes.epsilon)
        steps.append(Residual(layer, (Branch(norm, (sublayer,)),)))
        if decoder:
            cross = attention(
                book,
                f"{name} cross attention",
                layer,
                *(f"{at}.1.EncDecAttention.{part}" for part in "qkvo"),
                width=d,
                heads=heads,
                input_bias=False,
                output_bias=False,
                memory="encoder",
                causal=False,
                score_scale=1.0,
            )
            norm = book.rms_norm(
                f"{name} cross norm", f"{at}.1.layer_norm.weight", d, sizes.epsilon
            )
            steps.append(Residual(layer, (Branch(norm, (cross,)),)))
        last = f"{at}.{2 if decoder else 1}"
        dense = f"{last}.DenseReluDense"
        perceptron = mlp(
            book,
            f"{name} MLP",
            layer,
            gate=f"{dense}.wi_0" if sizes.gated else None,
            up=f"{dense}.wi_1" if sizes.gated else f"{dense}.wi",
            down=f"{dense}.wo",
            width=d,
            neurons=sizes.neurons,
            bias=False,
            activation=sizes.activation,
        )
        norm = book.rms_norm(f"{name} second norm", f"{last}.layer_norm.weight", d, sizes.epsilon)
        steps.append(Residual(layer, (Branch(norm, (perceptron,)),)))
    final = book.rms_norm(
        f"{label} final norm", f"{label}.final_layer_norm.weight", d, sizes.epsilon
    )
    embedding = Embedding((Table("token embedding", token, Lookup.TOKEN),), ((token,),))
    unread = tuple(
        Unread(
            f"{label} position bucket {bucket}, which no distance reaches",
            table.slice(0, bucket, bucket + 1),
        )
        for bucket in unreached_buckets(
            bidirectional=not decoder, buckets=sizes.buckets, furthest=sizes.furthest
        )
    )
    return Stream(label, d, embedding, tuple(steps), final), unread
