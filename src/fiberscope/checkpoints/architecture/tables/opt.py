"""OPT: pre-norm LayerNorm, separate projections, learned positions with an offset of two."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import attention, even_heads, mlp
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Branch,
    Embedding,
    Head,
    Lookup,
    Norm,
    Observable,
    Residual,
    Stream,
    Table,
    Unread,
)

OFFSET = 2
"""Rows of the position table that no token reaches: position p reads row p + 2."""

EPSILON = 1e-5
"""The class has no key for it."""


def opt(name: str, config: ConfigReader) -> Architecture:
    """Lay out OPTForCausalLM or OPTModel."""
    d = config.integer("hidden_size", 768)
    heads = even_heads(
        config,
        d,
        config.integer("num_attention_heads", 12),
        "hidden_size",
        "num_attention_heads",
    )
    f = config.integer("ffn_dim", 3072)
    layers = config.layers("num_hidden_layers", 12)
    vocabulary = config.integer("vocab_size", 50272)
    positions = config.integer("max_position_embeddings", 2048)
    activation = config.activation("activation_function", "relu")
    bias = config.flag("enable_bias", True)
    # Without gains a tied model's stream turns freely; no published model is known to do so.
    config.only("layer_norm_elementwise_affine", True)
    # The 350-million model normalises after its sublayers and projects its embeddings.
    config.only("do_layer_norm_before", True)
    config.only("word_embed_proj_dim", None, d)
    config.only("_remove_final_layer_norm", False)
    with_head = name == "OPTForCausalLM"
    tied = config.tied(True) and with_head
    prefix = "model.decoder." if with_head else "decoder."

    book = TensorBook()
    token = book.tensor(f"{prefix}embed_tokens.weight", vocabulary, d)
    stored = book.tensor(f"{prefix}embed_positions.weight", positions + OFFSET, d)
    position = stored.slice(0, OFFSET, positions + OFFSET)

    def norm(label: str, at: str) -> Norm:
        return book.layer_norm(label, f"{prefix}{at}", d, EPSILON)

    final = norm("final norm", "final_layer_norm")
    steps = []
    for layer in range(layers):
        at = f"layers.{layer}"
        inner = f"{prefix}{at}.self_attn"
        sublayer = attention(
            book,
            f"layer {layer} attention",
            layer,
            *(f"{inner}.{part}_proj" for part in ("q", "k", "v", "out")),
            width=d,
            heads=heads,
            input_bias=bias,
            output_bias=bias,
            causal=True,
        )
        first = norm(f"layer {layer} first norm", f"{at}.self_attn_layer_norm")
        perceptron = mlp(
            book,
            f"layer {layer} MLP",
            layer,
            up=f"{prefix}{at}.fc1",
            down=f"{prefix}{at}.fc2",
            width=d,
            neurons=f,
            bias=bias,
            activation=activation,
        )
        second = norm(f"layer {layer} second norm", f"{at}.final_layer_norm")
        steps.append(Residual(layer, (Branch(first, (sublayer,)),)))
        steps.append(Residual(layer, (Branch(second, (perceptron,)),)))
    head = None
    if with_head:
        output = token if tied else book.tensor("lm_head.weight", vocabulary, d)
        head = Head("unembedding", output)
    embedding = Embedding(
        (
            Table("token embedding", token, Lookup.TOKEN),
            Table("position embedding", position, Lookup.POSITION),
        ),
        ((token, position),),
    )
    return Architecture(
        name=name,
        family="OPT",
        tensors=book.shapes,
        streams=(Stream("residual stream", d, embedding, tuple(steps), final),),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.LOGITS if with_head else Observable.HIDDEN,
        longest_input=positions,
        unread=(Unread("position rows before the first position", stored.slice(0, 0, OFFSET)),),
        optional_copies={"lm_head.weight": token.tensor} if tied else {},
        prefix="model.",
    )
