"""GPT-NeoX and Pythia: query/key/value fused head by head, partial rotary, parallel residual."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import Heads, even_heads, mlp
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Branch,
    Embedding,
    Head,
    Lookup,
    Observable,
    Residual,
    Rotary,
    Stream,
    Table,
)
from fiberscope.checkpoints.architecture.rotary import read_rotary


def gpt_neox(name: str, config: ConfigReader) -> Architecture:
    """Lay out GPTNeoXForCausalLM or GPTNeoXModel."""
    d = config.integer("hidden_size", 6144)
    heads = even_heads(
        config,
        d,
        config.integer("num_attention_heads", 64),
        "hidden_size",
        "num_attention_heads",
    )
    f = config.integer("intermediate_size", 24576)
    layers = config.layers("num_hidden_layers", 44)
    vocabulary = config.integer("vocab_size", 50432)
    epsilon = config.number("layer_norm_eps", 1e-5)
    activation = config.activation("hidden_act", "gelu")
    parallel = config.flag("use_parallel_residual", True)
    attention_bias = config.flag("attention_bias", True)
    config.flag("is_decoder", False)  # causal either way
    config.raw("max_position_embeddings")
    # The class reads neither of these at the top level.
    config.raw("partial_rotary_factor")
    config.raw("rope_theta")
    rotary = read_rotary(
        config,
        heads.width,
        theta_key="rotary_emb_base",
        fraction_key="rotary_pct",
        default_fraction=0.25,
        round_up=True,
    )
    with_head = name == "GPTNeoXForCausalLM"
    tied = config.tied(False) and with_head
    prefix = "gpt_neox." if with_head else ""

    book = TensorBook()
    token = book.tensor(f"{prefix}embed_in.weight", vocabulary, d)
    steps = []
    for layer in range(layers):
        at = f"{prefix}layers.{layer}"
        first = book.layer_norm(f"layer {layer} first norm", f"{at}.input_layernorm", d, epsilon)
        second = book.layer_norm(
            f"layer {layer} second norm", f"{at}.post_attention_layernorm", d, epsilon
        )
        sublayer = _attention(book, layer, f"{at}.attention", d, heads, attention_bias, rotary)
        perceptron = mlp(
            book,
            f"layer {layer} MLP",
            layer,
            up=f"{at}.mlp.dense_h_to_4h",
            down=f"{at}.mlp.dense_4h_to_h",
            width=d,
            neurons=f,
            bias=True,
            activation=activation,
        )
        branches = (Branch(first, (sublayer,)), Branch(second, (perceptron,)))
        if parallel:
            steps.append(Residual(layer, branches))
        else:
            steps.extend(Residual(layer, (branch,)) for branch in branches)
    final = book.layer_norm("final norm", f"{prefix}final_layer_norm", d, epsilon)
    head = None
    if with_head:
        output = token if tied else book.tensor("lm_head.weight", vocabulary, d)
        head = Head("unembedding", output)
    embedding = Embedding((Table("token embedding", token, Lookup.TOKEN),), ((token,),))
    return Architecture(
        name=name,
        family="GPT-NeoX",
        tensors=book.shapes,
        streams=(Stream("residual stream", d, embedding, tuple(steps), final),),
        head=head,
        tied=tied,
        tokens=vocabulary,
        default_observable=Observable.LOGITS if with_head else Observable.HIDDEN,
        optional_copies={"lm_head.weight": token.tensor} if tied else {},
        aliases={"embed_out.weight": "lm_head.weight"},
        buffers=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
        prefix="gpt_neox.",
    )


def _attention(
    book: TensorBook,
    layer: int,
    at: str,
    width: int,
    heads: Heads,
    bias: bool,
    rotary: Rotary | None,
) -> Attention:
    """Rows of the fused matrix run over heads, then query, key and value, then the head width."""
    count, r = heads.total, heads.width
    fused = book.tensor(f"{at}.query_key_value.weight", 3 * width, width).split(0, count, 3, r)
    query, key, value = (fused.index(1, part) for part in range(3))
    query_bias = key_bias = value_bias = None
    if bias:
        fused_bias = book.tensor(f"{at}.query_key_value.bias", 3 * width).split(0, count, 3, r)
        query_bias, key_bias, value_bias = (fused_bias.index(1, part) for part in range(3))
    output = book.tensor(f"{at}.dense.weight", width, width).split(1, count, 1, r)
    return Attention(
        f"layer {layer} attention",
        layer,
        query=query.split(0, count, 1),
        key=key,
        value=value,
        output=output.permute(1, 2, 3, 0),
        query_bias=query_bias.split(0, count, 1) if query_bias else None,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=book.optional(bias, f"{at}.dense.bias", width),
        causal=True,
        rotary=rotary,
    )
