"""Reading configurations: spellings that agree, flags that are refused, keys that are unknown."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from fiberscope.checkpoints.architecture.program import Activation
from fiberscope.checkpoints.architecture.registry import CLASSES, MODEL_TYPES, architecture
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys


def refusal(config, **options) -> str:
    before = copy.deepcopy(config)
    with pytest.raises(InputError) as caught:
        architecture(config, "here.json", **options)
    assert config == before
    message = str(caught.value)
    assert message.startswith("here.json: ")
    assert "\n" not in message
    return message


def first_attention(laid_out, stream=0):
    return laid_out.streams[stream].steps[0].branches[0].sublayers[0]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_missing_class_means_the_base_class(model_type):
    base = MODEL_TYPES[model_type][1][0]
    assert architecture({"model_type": model_type}).name == base
    assert architecture({"model_type": model_type, "architectures": []}).name == base
    assert architecture({"architectures": [base]}) == architecture({"model_type": model_type})


def test_the_first_of_several_classes_counts():
    config = {**toys.GPT2, "architectures": ["GPT2LMHeadModel", "GPT2Model"]}
    assert architecture(config).name == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, ["'mamba'", "gpt2", "llama", "t5"]),
        ({"architectures": ["MambaForCausalLM"]}, ["'MambaForCausalLM'", "gpt2"]),
        (
            {"model_type": "bert", "architectures": ["BertForQuestionAnswering"]},
            ["'BertForQuestionAnswering'", "BertForMaskedLM"],
        ),
        ({"model_type": "llama", "architectures": ["MistralModel"]}, ["MistralModel", "'llama'"]),
        ({}, ["architectures", "model_type"]),
        ({"model_type": 3}, ["model_type"]),
        ({"model_type": "gpt2", "architectures": "GPT2Model"}, ["architectures"]),
        ({"model_type": "gpt2", "architectures": [3]}, ["architectures"]),
    ],
)
def test_unknown_classes_are_refused_by_name(config, words):
    message = refusal(config)
    assert all(word in message for word in words)


@pytest.mark.parametrize("name", CLASSES)
def test_unknown_keys_are_refused_unless_vouched_for(name):
    config = {"architectures": [name], "twisted_residual": True}
    assert "'twisted_residual'" in refusal(config)
    vouched = architecture(config, assumed_harmless=("twisted_residual",))
    assert vouched == architecture({"architectures": [name]})


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (toys.GPT2, {"add_cross_attention": True}),
        (toys.GPT2, {"activation_function": "linear"}),
        (toys.GPT2, {"n_head": 4}),
        (toys.GPT2, {"n_embd": 0}),
        (toys.GPT2, {"n_layer": True}),
        (toys.GPT2, {"vocab_size": "many"}),
        (toys.GPT2, {"layer_norm_epsilon": -1.0}),
        (toys.GPT2, {"tie_word_embeddings": 1}),
        (toys.GPT2, {"quantization_config": {"bits": 4}}),
        (toys.OPT, {"do_layer_norm_before": False}),
        (toys.OPT, {"word_embed_proj_dim": 4}),
        (toys.OPT, {"_remove_final_layer_norm": True}),
        (toys.OPT, {"do_layer_norm_before": None}),
        (toys.NEOX, {"num_attention_heads": 5}),
        (toys.NEOX, {"rotary_pct": 1.5}),
        (toys.NEOX, {"rotary_emb_base": 0.5}),
        (toys.PHI, {"qk_layernorm": True}),
        (toys.PHI, {"num_key_value_heads": 3}),
        (toys.PHI, {"partial_rotary_factor": 0.4}),
        (toys.LLAMA, {"num_key_value_heads": 3}),
        (toys.LLAMA, {"head_dim": 3}),
        (toys.LLAMA, {"rope_scaling": {"rope_type": "spiral"}}),
        (toys.LLAMA, {"rope_scaling": {"mrope_section": [1, 1]}}),
        (toys.LLAMA, {"rope_scaling": "linear"}),
        (toys.LLAMA, {"rope_scaling": {"type": "linear", "factor": "two"}}),
        (toys.LLAMA, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
        (toys.LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}),
        (toys.LLAMA, {"rope_interleaved": True}),
        (toys.LLAMA, {"hidden_act": 3}),
        ({**toys.LLAMA, "model_type": "mistral"}, {"sliding_window": 1}),
        ({**toys.LLAMA, "model_type": "qwen2"}, {"layer_types": ["full_attention"]}),
        ({**toys.LLAMA, "model_type": "qwen2"}, {"attention_bias": True}),
        ({**toys.LLAMA, "model_type": "gemma"}, {"hidden_activation": "relu"}),
        ({**toys.LLAMA, "model_type": "gemma"}, {"use_bidirectional_attention": True}),
        (toys.BERT, {"position_embedding_type": "relative_key"}),
        (toys.BERT, {"is_decoder": True}),
        (toys.ROBERTA, {"pad_token_id": None}),
        (toys.ROBERTA, {"pad_token_id": 6}),
        (toys.ROBERTA, {"position_embedding_type": "relative_key_query"}),
        (toys.DISTILBERT, {"tie_weights_": False}),
        (toys.VIT, {"patch_size": 8}),
        (toys.VIT, {"image_size": [4, 4, 4]}),
        (toys.T5, {"feed_forward_proj": "gated-gelu-new"}),
        (toys.T5, {"feed_forward_proj": "swapped-relu"}),
        (toys.T5, {"is_gated_act": True}),
        (toys.T5, {"dense_act_fn": "gelu_new"}),
        (toys.T5, {"relative_attention_num_buckets": 2}),
        (toys.T5, {"relative_attention_max_distance": 4}),
    ],
    ids=lambda part: "-".join(part) if len(part) == 1 else part["model_type"],
)
def test_what_a_table_does_not_understand_is_refused_by_key(base, change):
    (key,) = change
    message = refusal({**base, **change})
    inner = change[key] if isinstance(change[key], dict) else {}
    assert any(repr(name) in message for name in (key, *inner))


JUNK = [None, True, False, 0, -1, 3, 1.5, 1e30, 10**30, float("nan"), float("inf")]
JUNK += ["", "junk", [], [1], ["junk"], {}, {"junk": 1}, {"type": []}, {"rope_theta": float("nan")}]


@pytest.mark.parametrize("config", toys.TOYS, ids=toys.toy_name)
def test_a_damaged_value_is_read_or_refused_in_one_sentence(config):
    keys = {*config, "architectures", "rope_scaling", "rope_parameters", "tie_word_embeddings"}
    messages = []
    for key in keys:
        for value in JUNK:
            try:
                architecture({**config, key: value}, "here.json")
            except InputError as error:
                messages.append(str(error))
    assert messages
    assert all(m.startswith("here.json: ") and "\n" not in m for m in messages)


def test_labels_must_be_named():
    config = {**toys.VIT, "architectures": ["ViTForImageClassification"]}
    assert "id2label" in refusal({**config, "id2label": {}})
    assert architecture({**config, "num_labels": 5}).tensors["classifier.bias"] == (5,)


@pytest.mark.parametrize(
    ("base", "older", "newer"),
    [
        (
            toys.LLAMA,
            {"rope_theta": 500.0, "torch_dtype": "float16"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "dtype": "float16"},
        ),
        (
            toys.LLAMA,
            {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
        ),
        (
            toys.LLAMA,
            {
                "rope_theta": 500.0,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 500.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        (
            toys.NEOX,
            {"rotary_emb_base": 50, "rotary_pct": 0.25},
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 50.0,
                    "partial_rotary_factor": 0.25,
                }
            },
        ),
        (
            toys.PHI,
            {"rope_theta": 50, "partial_rotary_factor": 0.25},
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 50.0,
                    "partial_rotary_factor": 0.25,
                }
            },
        ),
        (
            toys.T5,
            {"feed_forward_proj": "gated-gelu"},
            {
                "feed_forward_proj": "gated-gelu",
                "dense_act_fn": "gelu_new",
                "is_gated_act": True,
                "scale_decoder_outputs": True,
            },
        ),
    ],
    ids=lambda part: part.get("model_type", "") if isinstance(part, dict) else None,
)
def test_older_and_newer_spellings_agree(base, older, newer):
    rotary_keys = ("rope_theta", "rotary_pct", "rotary_emb_base", "partial_rotary_factor")
    bare = {key: value for key, value in base.items() if key not in rotary_keys}
    assert architecture({**bare, **older}) == architecture({**bare, **newer})


def test_missing_head_width_is_the_default_of_the_class():
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    widths = {
        kind: first_attention(architecture({"model_type": kind, **sizes})).key_width
        for kind in ("llama", "mistral", "qwen2", "qwen3", "gemma")
    }
    assert widths == {"llama": 16, "mistral": 16, "qwen2": 16, "qwen3": 128, "gemma": 256}


def test_missing_and_null_groups():
    groups = {
        kind: first_attention(architecture({"model_type": kind})).groups
        for kind in ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi")
    }
    assert groups == {
        "llama": 32,
        "mistral": 8,
        "qwen2": 32,
        "qwen3": 32,
        "gemma": 16,
        "phi": 32,
    }
    null = architecture({"model_type": "mistral", "num_key_value_heads": None})
    assert first_attention(null).groups == 32


def test_default_tying():
    tied = {
        name: architecture({"architectures": [name]}).tied
        for name in CLASSES
        if "CausalLM" in name or "MaskedLM" in name or "LMHead" in name or "Generation" in name
    }
    assert tied == {
        "GPT2LMHeadModel": True,
        "OPTForCausalLM": True,
        "GPTNeoXForCausalLM": False,
        "PhiForCausalLM": False,
        "LlamaForCausalLM": False,
        "MistralForCausalLM": False,
        "Qwen2ForCausalLM": False,
        "Qwen3ForCausalLM": False,
        "GemmaForCausalLM": True,
        "BertForMaskedLM": True,
        "RobertaForMaskedLM": True,
        "DistilBertForMaskedLM": True,
        "T5ForConditionalGeneration": True,
    }
    # A class without a head has nothing to tie.
    assert not architecture({"model_type": "gpt2", "tie_word_embeddings": True}).tied


def test_the_weights_outvote_the_flag():
    config = {**toys.T5, "architectures": ["T5ForConditionalGeneration"]}
    assert architecture(config, tied=False) == architecture(
        {**config, "tie_word_embeddings": False}
    )
    untied = {**toys.LLAMA, "architectures": ["LlamaForCausalLM"]}
    assert architecture(untied, tied=True).tied


def test_partial_rotary_rounds_as_the_class_does():
    def planes(kind, **keys):
        config = {"model_type": kind, "hidden_size": 20, "num_attention_heads": 2, **keys}
        return len(first_attention(architecture(config)).rotary.planes)

    assert planes("gpt_neox", rotary_pct=0.5) == 3  # ceil(int(10 * 0.5) / 2)
    assert planes("gpt_neox") == 1  # int(10 * 0.25) = 2
    assert planes("phi", partial_rotary_factor=0.4) == 2
    # A top-level fraction is not read by GPT-NeoX.
    assert planes("gpt_neox", partial_rotary_factor=1.0) == 1
    none = architecture({**toys.NEOX, "rotary_pct": 0.0})
    assert first_attention(none).rotary is None


def test_activations_are_classified():
    kinds = {
        act: architecture({**toys.OPT, "activation_function": act})
        .streams[0]
        .steps[1]
        .branches[0]
        .sublayers[0]
        .activation
        for act in ("relu", "relu2", "gelu", "silu", "tanh")
    }
    assert kinds == {
        "relu": Activation.HOMOGENEOUS,
        "relu2": Activation.HOMOGENEOUS,
        "gelu": Activation.GENERIC,
        "silu": Activation.GENERIC,
        "tanh": Activation.ODD,
    }


def test_unread_parameters():
    def unread(config):
        return {part.label: part.view.size for part in architecture(config).unread}

    assert sum(unread(toys.OPT).values()) == 2 * 6
    roberta = {**toys.ROBERTA, "architectures": ["RobertaModel"]}
    # Position rows 0 and 1, the padding token's row, the pooler.
    assert sum(unread(roberta).values()) == 2 * 6 + 6 + 42
    masked = architecture({**roberta, "architectures": ["RobertaForMaskedLM"]})
    assert sum(part.view.size for part in masked.unread) == 2 * 6
    assert [part.view.size for part in masked.unread_without_head] == [6]
    assert "padding" in masked.assumptions[0]
    assert masked.longest_input == 5
    assert sum(unread(toys.BERT).values()) == 42
    # The encoder's bucket of distance zero to the right; one entry per head.
    assert list(unread(toys.T5).values()) == [2]


def test_sinusoidal_positions_are_parameters_like_any_other():
    laid_out = architecture({**toys.DISTILBERT, "sinusoidal_pos_embds": True})
    assert laid_out.tensors == architecture(toys.DISTILBERT).tensors
    assert "sinusoidal" in laid_out.assumptions[0]


def test_the_page_on_architectures_lists_them():
    page = Path(__file__).parents[3] / "docs" / "adding-an-architecture.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in (*CLASSES, *MODEL_TYPES))


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("T5WithLMHeadModel", "T5ForConditionalGeneration"),
    ],
)
def test_earlier_names_of_classes(earlier, today):
    assert architecture({"architectures": [earlier]}) == architecture({"architectures": [today]})


@pytest.mark.parametrize(
    "key",
    """_num_labels n_special predict_special_tokens max_sequence_length
    model_max_length""".split(),
)
def test_keys_of_earlier_releases_are_harmless(key):
    assert architecture({**toys.GPT2, key: 3}) == architecture(toys.GPT2)


def test_rotations_by_several_axes_are_understood_only_when_off():
    qwen = {**toys.LLAMA, "model_type": "qwen2"}
    assert architecture({**qwen, "use_mrope": False}) == architecture(qwen)
    assert "'use_mrope'" in refusal({**qwen, "use_mrope": True})


def test_labels_that_contradict_each_other():
    names = {"0": "a", "1": "b", "2": "c"}
    config = {**toys.BERT, "architectures": ["BertForSequenceClassification"], "id2label": names}
    message = refusal({**config, "num_labels": 5})
    assert "'id2label' names 3 labels, but 'num_labels' is 5" in message
    agreeing = architecture({**config, "num_labels": 3})
    assert agreeing.head == architecture(config).head


def test_activations_that_no_class_can_build_are_refused():
    assert "'softplus'" in refusal({**toys.GPT2, "activation_function": "softplus"})
