"""ViT: pre-norm LayerNorm encoder over image patches and a class token."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.layout import attention, even_heads, mlp
from fiberscope.checkpoints.architecture.post_norm import label_count
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Branch,
    Dense,
    Embedding,
    Head,
    Lookup,
    Observable,
    Residual,
    Stream,
    Table,
    Unread,
)
from fiberscope.checkpoints.architecture.tables.bert import dense_tensors, unread_dense

FILE_NAMES = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "layernorm_before": "layernorm_before",
    "layernorm_after": "layernorm_after",
}
"""Module of a layer -> what files call it; the class was renamed, its files were not."""


def vit(name: str, config: ConfigReader) -> Architecture:
    """Lay out ViTModel or ViTForImageClassification."""
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
    epsilon = config.number("layer_norm_eps", 1e-12)
    activation = config.activation("hidden_act", "gelu")
    channels = config.integer("num_channels", 3)
    (image_rows, image_columns) = _pair(config, "image_size", 224)
    (patch_rows, patch_columns) = _pair(config, "patch_size", 16)
    patches = (image_rows // patch_rows) * (image_columns // patch_columns)
    if patches == 0:
        raise config.fail("'patch_size' exceeds 'image_size', so that there is no patch")
    qkv_bias = config.flag("qkv_bias", True)
    pooled = config.integer("pooler_output_size", d)
    pooler_activation = config.activation("pooler_act", "tanh")
    config.flag("tie_word_embeddings", True)  # there is nothing to tie
    with_head = name == "ViTForImageClassification"
    prefix = "vit." if with_head else ""

    book = TensorBook()
    at = f"{prefix}embeddings"
    class_token = book.tensor(f"{at}.cls_token", 1, 1, d).index(0, 0)
    positions = book.tensor(f"{at}.position_embeddings", 1, patches + 1, d).index(0, 0)
    columns = (
        book.tensor(
            f"{at}.patch_embeddings.projection.weight", d, channels, patch_rows, patch_columns
        )
        .merge(1, 3)
        .permute(1, 0)
    )
    patch_bias = book.tensor(f"{at}.patch_embeddings.projection.bias", d).split(0, 1, d)
    embedding = Embedding(
        (
            Table("class token", class_token, Lookup.FIRST),
            Table("position embedding", positions, Lookup.POSITION),
            Table("patch projection", columns, Lookup.INPUT),
            Table("patch bias", patch_bias, Lookup.EVERY_INPUT),
        ),
        (
            (class_token, positions.slice(0, 0, 1)),
            (patch_bias, positions.slice(0, 1, patches + 1)),
        ),
    )
    steps = []
    aliases = {}
    for layer in range(layers):
        inner = f"layers.{layer}"
        at = f"{prefix}{inner}"
        sublayer = attention(
            book,
            f"layer {layer} attention",
            layer,
            *(f"{at}.attention.{part}_proj" for part in "qkvo"),
            width=d,
            heads=heads,
            input_bias=qkv_bias,
            output_bias=True,
            causal=False,
        )
        first = book.layer_norm(f"layer {layer} first norm", f"{at}.layernorm_before", d, epsilon)
        second = book.layer_norm(f"layer {layer} second norm", f"{at}.layernorm_after", d, epsilon)
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
        steps.append(Residual(layer, (Branch(first, (sublayer,)),)))
        steps.append(Residual(layer, (Branch(second, (perceptron,)),)))
        for module, stored in FILE_NAMES.items():
            for part in ("weight", "bias"):
                aliases[f"encoder.layer.{layer}.{stored}.{part}"] = f"{inner}.{module}.{part}"
    final = book.layer_norm("final norm", f"{prefix}layernorm", d, epsilon)
    head: Head | None = None
    unread: tuple[Unread, ...] = ()
    optional: tuple[str, ...] = ()
    if with_head:
        labels = label_count(config)
        head = Head(
            "classifier",
            book.tensor("classifier.weight", labels, d),
            book.tensor("classifier.bias", labels),
            first_position=True,
        )
    else:
        pooler = Dense(
            "pooler",
            book.tensor("pooler.dense.weight", pooled, d),
            book.tensor("pooler.dense.bias", pooled),
            *pooler_activation,
        )
        unread, optional = unread_dense(pooler), dense_tensors(pooler)
    return Architecture(
        name=name,
        family="ViT",
        tensors=book.shapes,
        streams=(Stream("residual stream", d, embedding, tuple(steps), final),),
        head=head,
        tied=False,
        tokens=None,
        default_observable=Observable.HIDDEN,
        input_dimension=channels * patch_rows * patch_columns,
        longest_input=patches + 1,
        unread=unread,
        optional=optional,
        aliases=aliases,
        prefix="vit.",
        assumptions=("images have the size of the configuration",),
    )


def _pair(config: ConfigReader, key: str, default: int) -> tuple[int, int]:
    """Rows and columns, given as one number for both or as two."""
    value = config.raw(key)
    if not isinstance(value, list):
        size = config.integer(key, default)
        return size, size
    if len(value) != 2 or any(
        isinstance(size, bool) or not isinstance(size, int) or size <= 0 for size in value
    ):
        raise config.fail(f"{key!r} is {value!r}, but one or two positive integers are needed")
    return value[0], value[1]
