"""Phi: one LayerNorm read by attention and MLP in parallel, partial rotary, unembedding bias."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import Heads, attention, mlp
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Branch,
    Embedding,
    Head,
    Lookup,
    Observable,
    Residual,
    Stream,
    Table,
)
from fiberscope.checkpoints.architecture.rotary import read_rotary


def phi(name: str, config: ConfigReader) -> Architecture:
    """Lay out PhiForCausalLM or PhiModel."""
    d = config.integer("hidden_size", 2048)
    heads = config.integer("num_attention_heads", 32)
    groups = config.integer("num_key_value_heads", heads)
    f = config.integer("intermediate_size", 8192)
    layers = config.layers("num_hidden_layers", 24)
    vocabulary = config.integer("vocab_size", 51200)
    epsilon = config.number("layer_norm_eps", 1e-5)
    activation = config.activation("hidden_act", "gelu_new")
    config.only("qk_layernorm", False)
    config.raw("max_position_embeddings")
    if d % heads or heads % groups:
        raise config.fail(
            f"'hidden_size' {d}, 'num_attention_heads' {heads} and 'num_key_value_heads' {groups} "
            "do not divide each other"
        )
    shape = Heads(groups, heads // groups, d // heads)
    rotary = read_rotary(
        config, shape.width, fraction_key="partial_rotary_factor", default_fraction=0.5
    )
    with_head = name == "PhiForCausalLM"
    tied = config.tied(False) and with_head
    prefix = "model." if with_head else ""

    book = TensorBook()
    token = book.tensor(f"{prefix}embed_tokens.weight", vocabulary, d)
    steps = []
    for layer in range(layers):
        at = f"{prefix}layers.{layer}"
        sublayer = attention(
            book,
            f"layer {layer} attention",
            layer,
            *(f"{at}.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "dense")),
            width=d,
            heads=shape,
            input_bias=True,
            output_bias=True,
            causal=True,
            rotary=rotary,
        )
        perceptron = mlp(
            book,
            f"layer {layer} MLP",
            layer,
            up=f"{at}.mlp.fc1",
            down=f"{at}.mlp.fc2",
            width=d,
            neurons=f,
            bias=True,
            activation=activation,
        )
        norm = book.layer_norm(f"layer {layer} norm", f"{at}.input_layernorm", d, epsilon)
        steps.append(Residual(layer, (Branch(norm, (sublayer, perceptron)),)))
    final = book.layer_norm("final norm", f"{prefix}final_layernorm", d, epsilon)
    head = None
    if with_head:
        output = token if tied else book.tensor("lm_head.weight", vocabulary, d)
        head = Head("unembedding", output, book.tensor("lm_head.bias", vocabulary))
    embedding = Embedding((Table("token embedding", token, Lookup.TOKEN),), ((token,),))
    return Architecture(
        name=name,
        family="Phi",
        tensors=book.shapes,
        streams=(Stream("residual stream", d, embedding, tuple(steps), final),),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.LOGITS if with_head else Observable.HIDDEN,
        optional_copies={"lm_head.weight": token.tensor} if tied else {},
        buffers=("rotary_emb.inv_freq",),
        prefix="model.",
    )
