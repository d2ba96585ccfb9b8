"""Toy configurations keep class and flags and meet the conditions of the counts."""

import copy

import pytest

from fiberscope.checkpoints.twins import toy_config
from fiberscope.errors import InputError

LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_the_input_is_left_alone():
    before = copy.deepcopy(LLAMA3)
    toy_config(LLAMA3)
    assert before == LLAMA3


def test_grouped_stays_grouped_and_the_rest_shrinks():
    toy = toy_config(LLAMA3)
    assert toy["architectures"] == ["LlamaForCausalLM"]
    assert toy["tie_word_embeddings"] is False
    assert 1 < toy["num_key_value_heads"] < toy["num_attention_heads"]
    assert toy["hidden_size"] % toy["num_attention_heads"] == 0
    assert "head_dim" not in toy
    assert toy["vocab_size"] >= 2 * toy["hidden_size"] + 6
    assert toy["num_hidden_layers"] == 2
    assert toy_config(LLAMA3, layers=1)["num_hidden_layers"] == 1


@pytest.mark.parametrize(
    ("groups", "expected"), [(8, "grouped"), (32, "single"), (1, "multiquery"), (None, "single")]
)
def test_head_grouping_is_kept(groups, expected):
    config = {key: value for key, value in LLAMA3.items() if key != "num_key_value_heads"}
    if groups is not None:
        config["num_key_value_heads"] = groups
    toy = toy_config(config)
    heads, kept = toy["num_attention_heads"], toy["num_key_value_heads"]
    kind = "single" if kept == heads else "multiquery" if kept == 1 else "grouped"
    assert kind == expected


def test_own_head_width_is_stated_where_the_class_default_is_large():
    for model_type in ("qwen3", "gemma"):
        toy = toy_config({"model_type": model_type})
        assert toy["head_dim"] < toy["hidden_size"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt_neox", "use_parallel_residual": True, "rotary_pct": 0.25},
        {"model_type": "phi", "partial_rotary_factor": 0.5},
    ],
)
def test_parallel_residual_gets_the_vocabulary_it_needs(config):
    toy = toy_config(config)
    width, inner = toy["hidden_size"], toy["intermediate_size"]
    assert toy["vocab_size"] >= 2 * inner + width + 2 + inner / (width - 1)
    for flag, value in config.items():
        assert toy[flag] == value


def test_positions_labels_and_padding():
    roberta = toy_config(
        {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    )
    assert roberta["max_position_embeddings"] == 7
    assert roberta["pad_token_id"] == 1
    far = toy_config({"model_type": "roberta", "pad_token_id": 3})
    assert far["max_position_embeddings"] == 3 + 1 + 5
    outside = toy_config({"model_type": "roberta", "pad_token_id": 50264})
    assert (outside["pad_token_id"], outside["max_position_embeddings"]) == (0, 6)
    labels = {str(index): str(index) for index in range(1000)}
    vit = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "id2label": labels}
    toy = toy_config(vit)
    assert len(toy["id2label"]) > toy["hidden_size"]
    few = {**vit, "id2label": {"0": "a", "1": "b"}}
    assert len(toy_config(few)["id2label"]) == 2
    assert toy_config({"model_type": "gemma", "pad_token_id": 99})["pad_token_id"] == 0


def test_narrow_embeddings_stay_narrow():
    config = {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512}
    toy = toy_config(config)
    assert toy["word_embed_proj_dim"] < toy["hidden_size"]
    same = toy_config({**config, "word_embed_proj_dim": 1024})
    assert same["word_embed_proj_dim"] == same["hidden_size"]


def test_layer_lists_follow_the_layers():
    toy = toy_config({"model_type": "qwen2", "layer_types": ["full_attention"] * 28}, layers=1)
    assert toy["layer_types"] == ["full_attention"]


def test_unknown_classes_are_refused():
    with pytest.raises(InputError, match="mamba"):
        toy_config({"model_type": "mamba"})
    with pytest.raises(InputError, match="GPT2ForQuestionAnswering"):
        toy_config({"model_type": "gpt2", "architectures": ["GPT2ForQuestionAnswering"]})


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.5, 1.0])
@pytest.mark.parametrize("newer", [False, True])
def test_a_fraction_of_the_rows_of_a_narrow_head_stays_whole_pairs(fraction, newer):
    stated = {"partial_rotary_factor": fraction}
    toy = toy_config({"model_type": "phi", **({"rope_parameters": stated} if newer else stated)})
    place = toy["rope_parameters"] if newer else toy
    width = toy["hidden_size"] // toy["num_attention_heads"]
    rotated = int(width * place["partial_rotary_factor"])
    assert rotated >= 2 and rotated % 2 == 0
    assert (rotated == width) == (fraction == 1.0)
