"""Nullities that were measured independently on the published classes."""

import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.twins import build_twin, measure, spectrum  # noqa: E402

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 4,
    "n_head": 2,
    "n_layer": 1,
    "n_inner": 6,
    "n_positions": 4,
    "vocab_size": 5,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 5,
    "vocab_size": 6,
    "tie_word_embeddings": False,
}
PARALLEL = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 3,
    "vocab_size": 40,
}
NEOX = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "rotary_pct": 0.5,
    **PARALLEL,
}
PHI = {
    "model_type": "phi",
    "architectures": ["PhiForCausalLM"],
    "partial_rotary_factor": 0.5,
    **PARALLEL,
}
WIDER_GPT2 = {**GPT2, "n_embd": 6, "n_inner": 8, "vocab_size": 7, "n_positions": 5}

REFERENCE = [
    (GPT2, "logits", 198, 74),
    (GPT2, "probabilities", 198, 78),
    ({**GPT2, "tie_word_embeddings": False}, "logits", 218, 93),
    ({**GPT2, "n_layer": 2}, "logits", 352, 144),
    (WIDER_GPT2, "logits", 386, 119),
    (LLAMA, "logits", 216, 43),
    ({**LLAMA, "tie_word_embeddings": True}, "logits", 192, 33),
    ({**LLAMA, "num_key_value_heads": 2}, "logits", 248, 63),
    ({**LLAMA, "num_hidden_layers": 2}, "logits", 380, 76),
    (NEOX, "logits", 1035, 212),
    (PHI, "logits", 1059, 236),
]
# Below these vocabularies the embedding no longer spans the stream and the fiber grows.
SMALL_VOCABULARIES = [
    ({**LLAMA, "vocab_size": 5}, 43),
    ({**LLAMA, "vocab_size": 4}, 51),
    ({**LLAMA, "vocab_size": 3}, 71),
    ({**GPT2, "vocab_size": 4}, 76),
    ({**GPT2, "vocab_size": 3}, 79),
]


@pytest.mark.parametrize(("config", "observable", "parameters", "nullity"), REFERENCE)
def test_reference_nullities(config, observable, parameters, nullity):
    found = spectrum(build_twin(config, observable, 0, epsilon=1e-2))
    assert (found.parameters, found.nullity) == (parameters, nullity)
    assert found.gap > 1e6


@pytest.mark.parametrize(("config", "nullity"), SMALL_VOCABULARIES)
def test_small_vocabularies_leave_more_undetermined(config, nullity):
    found = spectrum(build_twin(config, "logits", 0, epsilon=1e-2, inputs=40))
    assert found.nullity == nullity


def test_a_starved_bank_is_not_saturated():
    # Two sequences of a two-layer GPT-2 give fewer equations than it has parameters.
    starved = spectrum(build_twin({**GPT2, "n_layer": 2}, "logits", 0, epsilon=1e-2, inputs=2))
    assert starved.nullity > 144


@pytest.mark.parametrize(
    ("config", "approximate"),
    [
        (GPT2, 1),
        (LLAMA, 1),
        # One more for each query head and each key head: 1 + 2 + 1.
        (
            {
                **LLAMA,
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "vocab_size": 14,
            },
            4,
        ),
        (
            {
                "model_type": "gemma",
                "architectures": ["GemmaForCausalLM"],
                **{k: v for k, v in LLAMA.items() if k not in ("model_type", "architectures")},
                "tie_word_embeddings": True,
                "vocab_size": 14,
            },
            1,
        ),
        # One per norm of a post-norm model: the embedding's and two of the layer.
        (
            {
                "model_type": "bert",
                "architectures": ["BertModel"],
                "hidden_size": 6,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "intermediate_size": 7,
                "vocab_size": 18,
                "max_position_embeddings": 5,
            },
            3,
        ),
    ],
)
def test_approximate_directions(config, approximate):
    observable = "hidden" if config["model_type"] == "bert" else "logits"
    found = measure(config, observable, 0)
    assert found.approximate == approximate
    assert found.saturation.saturated
    assert found.saturation_without_epsilon.saturated
    assert min(found.gap, found.gap_without_epsilon) > 1e6
