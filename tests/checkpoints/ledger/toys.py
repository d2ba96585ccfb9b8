"""Toy configurations, chosen so that the conditions of the counts hold."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def gpt2(cls: str = "GPT2LMHeadModel", **changes: Any) -> Config:
    """GPT-2 with 4 features."""
    return {
        "model_type": "gpt2",
        "architectures": [cls],
        "n_embd": 4,
        "n_head": 2,
        "n_layer": 1,
        "n_inner": 6,
        "n_positions": 4,
        "vocab_size": 12,
        **changes,
    }


def llama(kind: str = "llama", cls: str = "LlamaForCausalLM", **changes: Any) -> Config:
    """Llama and its relatives with 6 features."""
    return {
        "model_type": kind,
        "architectures": [cls],
        "hidden_size": 6,
        "intermediate_size": 5,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": 18,
        "max_position_embeddings": 16,
        "tie_word_embeddings": False,
        **changes,
    }


def opt(cls: str = "OPTForCausalLM", **changes: Any) -> Config:
    """OPT with 4 features."""
    return {
        "model_type": "opt",
        "architectures": [cls],
        "hidden_size": 4,
        "word_embed_proj_dim": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 6,
        "vocab_size": 12,
        "max_position_embeddings": 5,
        **changes,
    }


def neox(cls: str = "GPTNeoXForCausalLM", **changes: Any) -> Config:
    """GPT-NeoX with 8 features, 4 of them a head, 2 of those rotated."""
    return {
        "model_type": "gpt_neox",
        "architectures": [cls],
        "hidden_size": 8,
        "intermediate_size": 3,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rotary_pct": 0.5,
        "vocab_size": 40,
        "max_position_embeddings": 16,
        **changes,
    }


def phi(**changes: Any) -> Config:
    """Phi with 8 features."""
    return {
        "model_type": "phi",
        "architectures": ["PhiForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 3,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "partial_rotary_factor": 0.5,
        "vocab_size": 40,
        "max_position_embeddings": 16,
        **changes,
    }


def bert(kind: str = "bert", cls: str = "BertModel", **changes: Any) -> Config:
    """BERT and RoBERTa with 4 features."""
    return {
        "model_type": kind,
        "architectures": [cls],
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 5,
        "vocab_size": 14,
        "max_position_embeddings": 7,
        "type_vocab_size": 2,
        **changes,
    }


def distilbert(cls: str = "DistilBertModel", **changes: Any) -> Config:
    """DistilBERT with 4 features."""
    return {
        "model_type": "distilbert",
        "architectures": [cls],
        "dim": 4,
        "n_layers": 1,
        "n_heads": 2,
        "hidden_dim": 5,
        "vocab_size": 14,
        "max_position_embeddings": 5,
        **changes,
    }


def vit(cls: str = "ViTModel", **changes: Any) -> Config:
    """ViT with 4 features and 4 patches of 4 pixels."""
    return {
        "model_type": "vit",
        "architectures": [cls],
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 5,
        "image_size": 4,
        "patch_size": 2,
        "num_channels": 1,
        **changes,
    }


def t5(cls: str = "T5ForConditionalGeneration", **changes: Any) -> Config:
    """T5 with 4 features and 6 relative buckets."""
    return {
        "model_type": "t5",
        "architectures": [cls],
        "d_model": 4,
        "d_kv": 2,
        "d_ff": 5,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 2,
        "vocab_size": 14,
        "relative_attention_num_buckets": 4,
        "relative_attention_max_distance": 4,
        **changes,
    }


CASES: tuple[tuple[Config, str], ...] = (
    (gpt2(), "logits"),
    (gpt2(), "probabilities"),
    (gpt2(), "hidden"),
    (gpt2(tie_word_embeddings=False), "logits"),
    (gpt2(tie_word_embeddings=False, n_layer=2, activation_function="relu"), "probabilities"),
    (gpt2("GPT2Model", activation_function="tanh"), "hidden"),
    (llama(), "logits"),
    (llama(num_hidden_layers=2), "hidden"),
    (llama(tie_word_embeddings=True, attention_bias=True), "probabilities"),
    (llama(hidden_act="relu", mlp_bias=True, attention_bias=True), "logits"),
    (llama("mistral", "MistralForCausalLM", num_key_value_heads=2), "logits"),
    (llama("qwen2", "Qwen2ForCausalLM", head_dim=None, hidden_size=8), "logits"),
    (llama("qwen3", "Qwen3ForCausalLM", vocab_size=24), "logits"),
    (llama("qwen3", "Qwen3ForCausalLM", vocab_size=24, attention_bias=True), "probabilities"),
    (llama("gemma", "GemmaForCausalLM", tie_word_embeddings=True), "logits"),
    (opt(), "logits"),
    (opt(tie_word_embeddings=False, enable_bias=False), "logits"),
    (opt("OPTModel"), "hidden"),
    (neox(), "logits"),
    (neox(use_parallel_residual=False), "probabilities"),
    (neox(tie_word_embeddings=True), "probabilities"),
    (phi(), "logits"),
    (bert(), "hidden"),
    (bert(num_hidden_layers=2), "hidden"),
    (bert(cls="BertForMaskedLM"), "logits"),
    (bert(cls="BertForMaskedLM"), "probabilities"),
    (bert(cls="BertForPreTraining"), "logits"),
    (bert(cls="BertForSequenceClassification", num_labels=6), "logits"),
    (bert("roberta", "RobertaModel", max_position_embeddings=8), "hidden"),
    (bert("roberta", "RobertaForMaskedLM", max_position_embeddings=8), "logits"),
    (
        bert("roberta", "RobertaForMaskedLM", max_position_embeddings=10, pad_token_id=3),
        "logits",
    ),
    (bert("roberta", "RobertaForMaskedLM", max_position_embeddings=8), "probabilities"),
    (distilbert(), "hidden"),
    (distilbert("DistilBertForMaskedLM"), "logits"),
    (distilbert("DistilBertForSequenceClassification", num_labels=6), "logits"),
    (vit(), "hidden"),
    (vit("ViTForImageClassification", num_hidden_layers=2, num_labels=6, qkv_bias=False), "logits"),
    (vit("ViTForImageClassification", num_hidden_layers=2, num_labels=6), "probabilities"),
    (t5(), "logits"),
    (t5(num_layers=2, num_decoder_layers=2), "logits"),
    (t5(tie_word_embeddings=False, feed_forward_proj="gated-gelu"), "probabilities"),
    (t5("T5EncoderModel"), "hidden"),
)
"""One row for every mechanism under every class, observable and flag that changes a count."""
