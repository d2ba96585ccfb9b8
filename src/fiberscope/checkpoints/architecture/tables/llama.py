"""Llama, Mistral, Qwen2, Qwen3 and Gemma: pre-norm RMSNorm, rotary positions, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import Heads, attention, mlp
from fiberscope.checkpoints.architecture.program import (
    Activation,
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
)
from fiberscope.checkpoints.architecture.rotary import read_rotary


@dataclass(frozen=True)
class Variant:
    """What distinguishes the classes of this family when a key is missing, and what they read.

    ``head_dim`` None means the width divided by the heads; ``groups`` None means one key/value
    group per head. ``input_bias`` and ``mlp_bias`` are what the class does without such a flag.
    With ``windows_by_layer`` windows are used where asked for, else in every layer.
    """

    family: str
    vocabulary: int
    width: int
    neurons: int
    layers: int
    heads: int
    groups: int | None
    head_dim: int | None = None
    activation: str = "silu"
    tied: bool = False
    gain_offset: float = 0.0
    attention_flag: bool = False
    input_bias: bool = False
    mlp_flag: bool = False
    normalised_heads: bool = False
    windows: bool = False
    windows_by_layer: bool = False
    scaled_embedding: bool = False


VARIANTS = {
    "Llama": Variant("Llama", 32000, 4096, 11008, 32, 32, None, attention_flag=True, mlp_flag=True),
    "Mistral": Variant("Mistral", 32000, 4096, 14336, 32, 32, 8, windows=True),
    "Qwen2": Variant(
        "Qwen2",
        151936,
        4096,
        22016,
        32,
        32,
        32,
        input_bias=True,
        windows=True,
        windows_by_layer=True,
    ),
    "Qwen3": Variant(
        "Qwen3",
        151936,
        4096,
        22016,
        32,
        32,
        32,
        head_dim=128,
        attention_flag=True,
        normalised_heads=True,
        windows=True,
        windows_by_layer=True,
    ),
    "Gemma": Variant(
        "Gemma",
        256000,
        3072,
        24576,
        28,
        16,
        16,
        head_dim=256,
        activation="gelu_pytorch_tanh",
        tied=True,
        gain_offset=1.0,
        scaled_embedding=True,
        attention_flag=True,
    ),
}


def llama(name: str, config: ConfigReader) -> Architecture:
    """Lay out ``<stem>ForCausalLM`` or ``<stem>Model`` of one of the variants."""
    with_head = name.endswith("ForCausalLM")
    variant = VARIANTS[name.removesuffix("ForCausalLM").removesuffix("Model")]
    d = config.integer("hidden_size", variant.width)
    f = config.integer("intermediate_size", variant.neurons)
    layers = config.layers("num_hidden_layers", variant.layers)
    vocabulary = config.integer("vocab_size", variant.vocabulary)
    heads = _heads(config, variant, d)
    epsilon = config.number("rms_norm_eps", 1e-6)
    activation = _activation(config, variant)
    config.raw("max_position_embeddings")  # no table of that length: it only bounds the inputs
    attention_bias = config.flag("attention_bias", False) if variant.attention_flag else False
    mlp_bias = config.flag("mlp_bias", False) if variant.mlp_flag else False
    windows = _windows(config, variant, layers)
    config.only("rope_interleaved", False)
    rotary = read_rotary(config, heads.width)
    tied = config.tied(variant.tied) and with_head
    prefix = "model." if with_head else ""

    book = TensorBook()
    token = book.tensor(f"{prefix}embed_tokens.weight", vocabulary, d)

    def norm(label: str, stored: str, width: int = d) -> Norm:
        return book.rms_norm(
            label, f"{prefix}{stored}.weight", width, epsilon, offset=variant.gain_offset
        )

    steps = []
    for layer in range(layers):
        at = f"layers.{layer}"
        inner = f"{prefix}{at}.self_attn"
        normalised = variant.normalised_heads
        sublayer = attention(
            book,
            f"layer {layer} attention",
            layer,
            *(f"{inner}.{part}_proj" for part in "qkvo"),
            width=d,
            heads=heads,
            input_bias=attention_bias or variant.input_bias,
            output_bias=attention_bias,
            causal=True,
            window=windows[layer],
            rotary=rotary,
            query_norm=norm(f"layer {layer} query norm", f"{at}.self_attn.q_norm", heads.width)
            if normalised
            else None,
            key_norm=norm(f"layer {layer} key norm", f"{at}.self_attn.k_norm", heads.width)
            if normalised
            else None,
        )
        perceptron = mlp(
            book,
            f"layer {layer} MLP",
            layer,
            gate=f"{prefix}{at}.mlp.gate_proj",
            up=f"{prefix}{at}.mlp.up_proj",
            down=f"{prefix}{at}.mlp.down_proj",
            width=d,
            neurons=f,
            bias=mlp_bias,
            activation=activation,
        )
        first = norm(f"layer {layer} first norm", f"{at}.input_layernorm")
        second = norm(f"layer {layer} second norm", f"{at}.post_attention_layernorm")
        steps.append(Residual(layer, (Branch(first, (sublayer,)),)))
        steps.append(Residual(layer, (Branch(second, (perceptron,)),)))
    final = norm("final norm", "norm")
    head = None
    if with_head:
        output = token if tied else book.tensor("lm_head.weight", vocabulary, d)
        head = Head("unembedding", output)
    embedding = Embedding(
        (Table("token embedding", token, Lookup.TOKEN),),
        ((token,),),
        token_scale=d**0.5 if variant.scaled_embedding else 1.0,
    )
    return Architecture(
        name=name,
        family=variant.family,
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


def _heads(config: ConfigReader, variant: Variant, width: int) -> Heads:
    """Read the numbers of heads and their width; an explicit null means one group per head."""
    heads = config.integer("num_attention_heads", variant.heads)
    null = "num_key_value_heads" in config.config and not config.has("num_key_value_heads")
    default = heads if variant.groups is None or null else variant.groups
    groups = config.integer("num_key_value_heads", default)
    if heads % groups:
        raise config.fail(
            f"'num_attention_heads' {heads} is not divisible by 'num_key_value_heads' {groups}"
        )
    r = config.integer("head_dim", variant.head_dim)
    if r is None:
        if width % heads:
            raise config.fail(
                f"'hidden_size' {width} is not divisible by 'num_attention_heads' {heads}, "
                "and 'head_dim' is missing"
            )
        r = width // heads
    return Heads(groups, heads // groups, r)


def _activation(config: ConfigReader, variant: Variant) -> tuple[Activation, str]:
    """Read hidden_act; Gemma files may repeat it as hidden_activation."""
    kind, name = config.activation("hidden_act", variant.activation)
    if variant.family != "Gemma":
        return kind, name
    # The class replaces the name that early files carry by the one that was meant.
    name = "gelu_pytorch_tanh" if name == "gelu" else name
    same = ("gelu", name) if name == "gelu_pytorch_tanh" else (name,)
    config.only("hidden_activation", None, *same)
    return kind, name


WINDOW = 4096
"""What the classes with windows take when the key is missing; null means none."""


def _windows(config: ConfigReader, variant: Variant, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, None where the whole past is seen.

    A window sees at least the previous token: the same products stay visible.
    """
    if not variant.windows:
        return (None,) * layers
    used = config.flag("use_sliding_window", False)
    window = config.integer("sliding_window", None)
    if window == 1:
        raise config.fail("'sliding_window' is 1, so that no token attends to another one")
    if "sliding_window" not in config.config:
        window = WINDOW
    kinds = config.raw("layer_types")
    known = ("full_attention", "sliding_attention")
    if kinds is not None and (
        not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds)
    ):
        raise config.fail(
            f"'layer_types' must list {' or '.join(known)} for each of the {layers} layers"
        )
    if not variant.windows_by_layer:
        return (window,) * layers
    if not used:
        return (None,) * layers
    if kinds is None:
        full = config.number("max_window_layers", 28.0)
        return tuple(window if layer >= full else None for layer in range(layers))
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
