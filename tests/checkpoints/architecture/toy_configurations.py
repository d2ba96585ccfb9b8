"""Toy configurations of every class and flag, as older and newer releases write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Config = dict[str, Any]

GPT2: Config = {
    "model_type": "gpt2",
    "n_embd": 6,
    "n_head": 2,
    "n_layer": 2,
    "n_inner": 7,
    "n_positions": 5,
    "vocab_size": 11,
}
OPT: Config = {
    "model_type": "opt",
    "hidden_size": 6,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "ffn_dim": 7,
    "max_position_embeddings": 5,
    "vocab_size": 11,
    "word_embed_proj_dim": 6,
}
NEOX: Config = {
    "model_type": "gpt_neox",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 7,
    "vocab_size": 11,
    "rotary_pct": 0.5,
    "rotary_emb_base": 100,
    "max_position_embeddings": 32,
}
PHI: Config = {
    "model_type": "phi",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 7,
    "vocab_size": 11,
    "partial_rotary_factor": 0.5,
    "rope_theta": 100.0,
    "max_position_embeddings": 32,
}
LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 7,
    "vocab_size": 11,
    "rope_theta": 100.0,
    "max_position_embeddings": 32,
    "head_dim": 4,
}
BERT: Config = {
    "model_type": "bert",
    "hidden_size": 6,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 7,
    "max_position_embeddings": 5,
    "vocab_size": 11,
}
ROBERTA: Config = {
    **BERT,
    "model_type": "roberta",
    "max_position_embeddings": 7,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
DISTILBERT: Config = {
    "model_type": "distilbert",
    "dim": 6,
    "n_heads": 2,
    "n_layers": 2,
    "hidden_dim": 7,
    "max_position_embeddings": 5,
    "vocab_size": 11,
}
VIT: Config = {
    "model_type": "vit",
    "hidden_size": 6,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 7,
    "image_size": 4,
    "patch_size": 2,
}
T5: Config = {
    "model_type": "t5",
    "d_model": 6,
    "d_kv": 4,
    "num_heads": 2,
    "num_layers": 2,
    "d_ff": 7,
    "vocab_size": 11,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
}


def _variants() -> Iterator[tuple[str, Config, Config]]:
    """Class, its base configuration, and what the variant changes."""
    for name in ("GPT2LMHeadModel", "GPT2Model"):
        yield name, GPT2, {}
    yield "GPT2LMHeadModel", GPT2, {"tie_word_embeddings": False, "n_inner": None}

    for name in ("OPTForCausalLM", "OPTModel"):
        yield name, OPT, {}
    yield "OPTForCausalLM", OPT, {"tie_word_embeddings": False, "activation_function": "gelu"}
    yield "OPTForCausalLM", OPT, {"enable_bias": False}

    for name in ("GPTNeoXForCausalLM", "GPTNeoXModel"):
        yield name, NEOX, {}
    yield "GPTNeoXForCausalLM", NEOX, {"use_parallel_residual": False}
    yield "GPTNeoXForCausalLM", NEOX, {"attention_bias": False, "tie_word_embeddings": True}
    # Five of eight rows: three planes.
    yield "GPTNeoXForCausalLM", NEOX, {"rotary_pct": 0.7}
    yield (
        "GPTNeoXModel",
        {k: v for k, v in NEOX.items() if not k.startswith("rotary")},
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 1.0,
            }
        },
    )

    for name in ("PhiForCausalLM", "PhiModel"):
        yield name, PHI, {}
    yield "PhiForCausalLM", PHI, {"tie_word_embeddings": True, "num_key_value_heads": 1}
    yield (
        "PhiForCausalLM",
        {k: v for k, v in PHI.items() if k != "rope_theta"},
        {
            "partial_rotary_factor": 0.25,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
        },
    )

    for stem in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma"):
        base = {**LLAMA, "model_type": stem.lower()}
        for name in (f"{stem}ForCausalLM", f"{stem}Model"):
            yield name, base, {}
        yield f"{stem}ForCausalLM", base, {"tie_word_embeddings": stem != "Gemma"}
    yield "LlamaForCausalLM", LLAMA, {"attention_bias": True, "mlp_bias": True, "head_dim": None}
    yield "LlamaForCausalLM", LLAMA, {"num_key_value_heads": None, "hidden_act": "relu"}
    yield (
        "LlamaModel",
        LLAMA,
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    )
    yield "LlamaModel", LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0}}
    yield (
        "LlamaModel",
        {k: v for k, v in LLAMA.items() if k != "rope_theta"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
    )
    yield "MistralForCausalLM", {**LLAMA, "model_type": "mistral"}, {"sliding_window": 3}
    yield "Qwen3ForCausalLM", {**LLAMA, "model_type": "qwen3"}, {"attention_bias": True}
    yield (
        "GemmaForCausalLM",
        {**LLAMA, "model_type": "gemma"},
        {
            "hidden_act": "gelu",
            "hidden_activation": None,
            "attention_bias": True,
            "num_key_value_heads": 1,
        },
    )

    for name in (
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
    ):
        yield name, BERT, {"hidden_act": "gelu_new"}
    yield "BertForMaskedLM", BERT, {"tie_word_embeddings": False, "type_vocab_size": 3}
    yield "BertForSequenceClassification", BERT, {"id2label": {"0": "a", "1": "b", "2": "c"}}

    for name in ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"):
        yield name, ROBERTA, {}
    yield "RobertaForMaskedLM", ROBERTA, {"tie_word_embeddings": False, "pad_token_id": 0}

    for name in (
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
    ):
        yield name, DISTILBERT, {"activation": "relu"}
    yield "DistilBertForMaskedLM", DISTILBERT, {"tie_word_embeddings": False}

    for name in ("ViTModel", "ViTForImageClassification"):
        yield name, VIT, {}
    yield "ViTModel", VIT, {"qkv_bias": False, "pooler_output_size": 4, "num_channels": 1}
    yield "ViTForImageClassification", VIT, {"id2label": {str(i): str(i) for i in range(9)}}

    for name in ("T5ForConditionalGeneration", "T5Model", "T5EncoderModel"):
        yield name, T5, {}
        yield name, T5, {"feed_forward_proj": "gated-gelu"}
    yield (
        "T5ForConditionalGeneration",
        T5,
        {
            "tie_word_embeddings": False,
            "feed_forward_proj": "gated-silu",
            "num_decoder_layers": 1,
        },
    )


TOYS: list[Config] = [
    {**base, **changes, "architectures": [name]} for name, base, changes in _variants()
]


def toy_name(config: Config) -> str:
    """A readable test name: the class, and what is unusual."""
    base = {
        k: v
        for part in (T5, VIT, DISTILBERT, BERT, LLAMA, NEOX, OPT, GPT2)
        for k, v in part.items()
    }
    flags = [k for k, v in config.items() if k not in base or isinstance(v, bool)]
    return "-".join([config["architectures"][0], *(f for f in flags if f != "architectures")])
