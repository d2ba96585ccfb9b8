"""Exact symmetries, done by hand on stored tensors, leave a twin's outputs alone."""

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.twins import build_twin, toy_config  # noqa: E402

LLAMA = "model.layers.0.mlp."


def scale_neuron(up, down):
    def move(parameters, rng):
        parameters[up][1] *= 1.7
        parameters[down][:, 1] /= 1.7

    return move


def shift(name, where=slice(None)):
    """Add anything to a key bias (or, in T5, a constant over keys to a head's scores)."""

    def move(parameters, rng):
        moved = parameters[name][where]
        moved += rng.standard_normal(moved.shape)

    return move


def shift_t5(parameters, rng):
    table = parameters["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    table += rng.standard_normal(table.shape[1])


def rotate_stream(parameters, rng):
    """Fold all gains into their readers, then rotate the residual stream."""
    width = parameters["model.norm.weight"].size
    rotation = np.linalg.qr(rng.standard_normal((width, width)))[0]
    layers = {name.rsplit(".", 3)[0] for name in parameters if "self_attn" in name}
    for layer in layers:
        readers = [f"self_attn.{part}_proj.weight" for part in "qkv"]
        for norm, names in (
            ("input_layernorm", readers),
            ("post_attention_layernorm", ["mlp.up_proj.weight", "mlp.gate_proj.weight"]),
        ):
            gain = parameters[f"{layer}.{norm}.weight"]
            for name in names:
                parameters[f"{layer}.{name}"][:] = (parameters[f"{layer}.{name}"] * gain) @ rotation
            gain[:] = 1.0
        for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            parameters[f"{layer}.{name}"][:] = rotation.T @ parameters[f"{layer}.{name}"]
    gain = parameters["model.norm.weight"]
    parameters["lm_head.weight"][:] = (parameters["lm_head.weight"] * gain) @ rotation
    gain[:] = 1.0
    parameters["model.embed_tokens.weight"][:] = parameters["model.embed_tokens.weight"] @ rotation


GATED = scale_neuron(LLAMA + "up_proj.weight", LLAMA + "down_proj.weight")
# The unrotated second half of head 0's key bias; NeoX stores query, key, value head by head.
HALF = {"partial_rotary_factor": 0.5}
MOVES = [
    ("gpt2", "GPT2LMHeadModel", {}, shift("transformer.h.0.attn.c_attn.bias", slice(6, 12))),
    ("opt", "OPTForCausalLM", {}, shift("model.decoder.layers.0.self_attn.k_proj.bias")),
    (
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {"rotary_pct": 0.5},
        shift("gpt_neox.layers.0.attention.query_key_value.bias", slice(6, 8)),
    ),
    ("phi", "PhiForCausalLM", HALF, shift("model.layers.0.self_attn.k_proj.bias", slice(2, 4))),
    ("llama", "LlamaForCausalLM", {}, GATED),
    ("llama", "LlamaForCausalLM", {"tie_word_embeddings": False}, rotate_stream),
    ("mistral", "MistralForCausalLM", {}, GATED),
    ("qwen2", "Qwen2ForCausalLM", {}, GATED),
    ("qwen3", "Qwen3ForCausalLM", {}, GATED),
    ("gemma", "GemmaForCausalLM", {}, GATED),
    (
        "bert",
        "BertForMaskedLM",
        {},
        shift("bert.encoder.layer.0.attention.self.key.bias"),
    ),
    (
        "roberta",
        "RobertaForMaskedLM",
        {},
        shift("roberta.encoder.layer.0.attention.self.key.bias"),
    ),
    (
        "distilbert",
        "DistilBertForMaskedLM",
        {},
        shift("distilbert.transformer.layer.0.attention.k_lin.bias"),
    ),
    ("vit", "ViTForImageClassification", {}, shift("vit.layers.0.attention.k_proj.bias")),
    ("t5", "T5ForConditionalGeneration", {}, shift_t5),
    (
        "t5",
        "T5ForConditionalGeneration",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        scale_neuron(
            "decoder.block.0.layer.2.DenseReluDense.wi_1.weight",
            "decoder.block.0.layer.2.DenseReluDense.wo.weight",
        ),
    ),
]


@pytest.mark.parametrize(("model_type", "name", "flags", "move"), MOVES)
def test_an_exact_symmetry_leaves_fifteen_digits(model_type, name, flags, move):
    config = toy_config({"model_type": model_type, "architectures": [name], **flags})
    twin = build_twin(config, "logits", 3)
    before = twin.observe(twin.parameters)
    moved = {tensor: value.copy() for tensor, value in twin.parameters.items()}
    move(moved, np.random.default_rng(4))
    assert any(np.abs(moved[t] - twin.parameters[t]).max() > 0.1 for t in moved)
    after = twin.observe(moved)
    assert np.abs(after - before).max() < 1e-13 * np.abs(before).max()


def test_a_move_that_is_no_symmetry_is_seen():
    config = toy_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    twin = build_twin(config, "logits", 3)
    moved = {tensor: value.copy() for tensor, value in twin.parameters.items()}
    moved[LLAMA + "up_proj.weight"][1] *= 1.7
    assert np.abs(twin.observe(moved) - twin.observe(twin.parameters)).max() > 1e-3
