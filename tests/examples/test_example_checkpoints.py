"""The shipped example checkpoints as files; nothing here needs torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fiberscope.errors import InputError
from fiberscope.examples import EXAMPLES, example_path

MEGABYTE = 1_000_000


def read_json(name: str, file: str) -> dict[str, Any]:
    return json.loads((example_path(name) / file).read_text())


def gpt2_shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a tied GPT-2 language model, from the published architecture."""
    d = c["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (c["vocab_size"], d),
        "wpe.weight": (c["n_positions"], d),
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
    }
    for i in range(c["n_layer"]):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": (d,), f"h.{i}.{norm}.bias": (d,)}
        for matrix, rows, columns in (
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, 4 * d),
            ("mlp.c_proj", 4 * d, d),
        ):
            shapes |= {
                f"h.{i}.{matrix}.weight": (rows, columns),
                f"h.{i}.{matrix}.bias": (columns,),
            }
    return {f"transformer.{key}": shape for key, shape in shapes.items()}


def llama_shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of an untied Llama language model, from the published architecture."""
    d, m = c["hidden_size"], c["intermediate_size"]
    queries = c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (c["vocab_size"], d),
        "model.embed_tokens.weight": (c["vocab_size"], d),
        "model.norm.weight": (d,),
    }
    for i in range(c["num_hidden_layers"]):
        layer = {
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
            "self_attn.q_proj": (queries, d),
            "self_attn.k_proj": (keys, d),
            "self_attn.v_proj": (keys, d),
            "self_attn.o_proj": (d, queries),
            "mlp.gate_proj": (m, d),
            "mlp.up_proj": (m, d),
            "mlp.down_proj": (d, m),
        }
        shapes |= {f"model.layers.{i}.{key}.weight": shape for key, shape in layer.items()}
    return shapes


# gpt2: 2 * 128 * 96 + 4 * (12 * 96^2 + 13 * 96) + 2 * 96
# llama: 2 * 128 * 96 + 4 * (3 * 96^2 + 3 * 96 * 288 + 2 * 96) + 96
PARAMETERS = {"gpt2": 472_128, "llama-a": 467_808, "llama-b": 467_808}


@pytest.mark.parametrize("name", EXAMPLES)
def test_tensors_are_those_of_the_architecture(name: str) -> None:
    config = read_json(name, "config.json")
    expected = gpt2_shapes(config) if name == "gpt2" else llama_shapes(config)
    weights = load_file(example_path(name) / "model.safetensors")
    assert {key: value.shape for key, value in weights.items()} == expected
    assert sum(value.size for value in weights.values()) == PARAMETERS[name]
    assert read_json(name, "training.json")["parameters"] == PARAMETERS[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_are_finite_float32(name: str) -> None:
    for key, value in load_file(example_path(name) / "model.safetensors").items():
        assert value.dtype == np.float32, key
        assert np.isfinite(value).all(), key
        assert value.any(), key


def test_configurations_state_the_intended_architectures() -> None:
    gpt2 = read_json("gpt2", "config.json")
    assert gpt2["architectures"] == ["GPT2LMHeadModel"]
    assert (gpt2["n_layer"], gpt2["n_embd"], gpt2["n_head"]) == (4, 96, 4)
    assert (gpt2["vocab_size"], gpt2["n_positions"]) == (128, 128)
    assert gpt2["tie_word_embeddings"] is True
    llama = read_json("llama-a", "config.json")
    assert llama == read_json("llama-b", "config.json")
    assert llama["architectures"] == ["LlamaForCausalLM"]
    assert llama["tie_word_embeddings"] is False
    assert (llama["num_attention_heads"], llama["num_key_value_heads"]) == (4, 2)


def test_llama_pair_differs_in_the_seed_only() -> None:
    a, b = (read_json(name, "training.json") for name in ("llama-a", "llama-b"))
    assert a["seed"] != b["seed"]
    for same in ("architecture", "recipe", "corpus", "versions"):
        assert a[same] == b[same]
    first, second = (
        load_file(example_path(n) / "model.safetensors") for n in ("llama-a", "llama-b")
    )
    for key, value in first.items():
        assert not np.array_equal(value, second[key]), key


def test_all_examples_together_take_at_most_8_megabytes() -> None:
    sizes = [p.stat().st_size for name in EXAMPLES for p in example_path(name).iterdir()]
    assert sum(sizes) <= 8 * MEGABYTE


@pytest.mark.parametrize("name", EXAMPLES)
def test_directory_holds_the_four_files_and_no_machine_path(name: str) -> None:
    files = {path.name: path for path in example_path(name).iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors", "training.json"}
    assert "_name_or_path" not in read_json(name, "config.json")
    assert str(Path.home()).encode() not in files["model.safetensors"].read_bytes()[:20_000]
    for file in ("README.md", "config.json", "training.json"):
        assert not re.search(r"(^|[\s\"'`])(/|[A-Z]:\\)\w", files[file].read_text()), file


@pytest.mark.parametrize("name", EXAMPLES)
def test_readme_states_recipe_losses_and_licences(name: str) -> None:
    text = " ".join((example_path(name) / "README.md").read_text().split())
    record = read_json(name, "training.json")
    assert f"seed {record['seed']}," in text
    assert f"{record['recipe']['steps']:,} steps" in text
    assert f"{record['loss']['validation']:.4f} nats per character" in text
    assert f"{record['loss']['slice']:.4f} on its first 8,192 characters" in text
    assert "PSF License Version 2" in text
    assert "Licence of the weights**: Apache-2.0" in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_curve_is_a_few_dozen_points_and_ends_far_below_its_start(name: str) -> None:
    record = read_json(name, "training.json")
    curve = record["loss"]["curve"]
    assert 24 <= len(curve) <= 48
    assert curve[-1]["step"] == record["recipe"]["steps"]
    assert curve[-1]["validation_loss"] == record["loss"]["validation"]
    # A uniform guess over the vocabulary costs log 128 nats; the untrained model is near it.
    assert abs(record["loss"]["untrained_validation"] - np.log(128)) < 0.5
    assert record["loss"]["validation"] < np.log(128) / 3


def test_default_example_is_gpt2() -> None:
    assert example_path() == example_path("gpt2")


@pytest.mark.parametrize("name", ["gpt3", "", "..", "gpt2/config.json"])
def test_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match="choose one of gpt2, llama-a, llama-b") as caught:
        example_path(name)
    assert repr(name) in str(caught.value)
