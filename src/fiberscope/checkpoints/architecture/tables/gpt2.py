"""GPT-2: pre-norm LayerNorm, fused query/key/value stored (in, out), learned positions."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import even_heads
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Branch,
    Embedding,
    Head,
    Lookup,
    Mlp,
    Observable,
    Residual,
    Stream,
    Table,
)


def gpt2(name: str, config: ConfigReader) -> Architecture:
    """Lay out GPT2LMHeadModel or GPT2Model."""
    d = config.integer("n_embd", 768)
    heads = config.integer("n_head", 12)
    layers = config.layers("n_layer", 12)
    vocabulary = config.integer("vocab_size", 50257)
    positions = config.integer("n_positions", 1024)
    f = config.integer("n_inner", None) or 4 * d
    epsilon = config.number("layer_norm_epsilon", 1e-5)
    activation, activation_name = config.activation("activation_function", "gelu_new")
    scaled = config.flag("scale_attn_weights", True)
    scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    config.flag("reorder_and_upcast_attn", False)
    head_flag = config.tied(True)
    width = even_heads(config, d, heads, "n_embd", "n_head").width
    with_head = name == "GPT2LMHeadModel"
    prefix = "transformer." if with_head else ""

    book = TensorBook()
    token = book.tensor(f"{prefix}wte.weight", vocabulary, d)
    position = book.tensor(f"{prefix}wpe.weight", positions, d)
    steps = []
    for layer in range(layers):
        at = f"{prefix}h.{layer}"
        norm_1 = book.layer_norm(f"layer {layer} first norm", f"{at}.ln_1", d, epsilon)
        # Conv1D stores (in, out); query, key and value lie side by side on the output axis.
        fused = book.tensor(f"{at}.attn.c_attn.weight", d, 3 * d).split(1, 3, heads, width)
        fused_bias = book.tensor(f"{at}.attn.c_attn.bias", 3 * d).split(0, 3, heads, width)
        parts = [fused.index(1, part).permute(1, 2, 0) for part in range(3)]
        biases = [fused_bias.index(0, part) for part in range(3)]
        out = book.tensor(f"{at}.attn.c_proj.weight", d, d).split(0, heads, width)
        attention = Attention(
            f"layer {layer} attention",
            layer,
            query=parts[0].split(0, heads, 1),
            key=parts[1],
            value=parts[2],
            output=out.split(0, heads, 1),
            query_bias=biases[0].split(0, heads, 1),
            key_bias=biases[1],
            value_bias=biases[2],
            output_bias=book.tensor(f"{at}.attn.c_proj.bias", d),
            causal=True,
            score_scale=(width**-0.5 if scaled else 1.0) / (layer + 1 if scaled_by_layer else 1),
        )
        norm_2 = book.layer_norm(f"layer {layer} second norm", f"{at}.ln_2", d, epsilon)
        mlp = Mlp(
            f"layer {layer} MLP",
            layer,
            up=book.tensor(f"{at}.mlp.c_fc.weight", d, f).permute(1, 0),
            up_bias=book.tensor(f"{at}.mlp.c_fc.bias", f),
            down=book.tensor(f"{at}.mlp.c_proj.weight", f, d).permute(1, 0),
            down_bias=book.tensor(f"{at}.mlp.c_proj.bias", d),
            activation=activation,
            activation_name=activation_name,
        )
        steps.append(Residual(layer, (Branch(norm_1, (attention,)),)))
        steps.append(Residual(layer, (Branch(norm_2, (mlp,)),)))
    final = book.layer_norm("final norm", f"{prefix}ln_f", d, epsilon)
    head, copies = None, {}
    if with_head and head_flag:
        head = Head("unembedding", token)
        copies = {"lm_head.weight": token.tensor}
    elif with_head:
        head = Head("unembedding", book.tensor("lm_head.weight", vocabulary, d))
    embedding = Embedding(
        (
            Table("token embedding", token, Lookup.TOKEN),
            Table("position embedding", position, Lookup.POSITION),
        ),
        ((token, position),),
    )
    return Architecture(
        name=name,
        family="GPT-2",
        tensors=book.shapes,
        streams=(Stream("residual stream", d, embedding, tuple(steps), final),),
        head=head,
        tied=with_head and head_flag,
        tokens=vocabulary,
        default_observable=Observable.LOGITS if with_head else Observable.HIDDEN,
        longest_input=positions,
        optional_copies=copies,
        buffers=("attn.bias", "attn.masked_bias"),
        prefix="transformer.",
    )
