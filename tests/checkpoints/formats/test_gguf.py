"""GGUF files of the Llama family, against the gguf package, the rotation, and transformers."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.checkpoints.formats.gguf_llama import restored_rows
from fiberscope.errors import InputError
from tests.checkpoints.formats.writers import (
    GROUPS,
    HEAD_WIDTH,
    HEADS,
    INNER,
    LAYERS,
    VOCABULARY,
    WIDTH,
    gguf_name,
    interleaved,
    llama_tensors,
    one_sentence,
    refusal,
    write_llama,
)


def opened(path: Path):
    weights = open_checkpoint(path).weights
    assert weights is not None
    return weights


def test_configuration(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "m.gguf", llama_tensors()))
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD_WIDTH,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    (note,) = checkpoint.notes
    assert "21 F32 tensors" in note


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_come_back_under_their_names(tmp_path: Path, tied: bool, bias: bool) -> None:
    written = llama_tensors(tied, bias)
    checkpoint = open_checkpoint(write_llama(tmp_path / "m.gguf", written))
    weights = checkpoint.weights
    assert weights is not None
    assert weights.format == "gguf"
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert checkpoint.config["attention_bias"] is bias
    assert set(weights.tensors) == set(written)
    for name, value in written.items():
        assert weights.tensors[name].shape == value.shape
        assert weights.tensors[name].dtype == "float32"
        np.testing.assert_array_equal(weights.read(name), value)


@pytest.mark.parametrize("quantisation", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_weights_against_the_packages_reader(tmp_path: Path, quantisation: str) -> None:
    kind = gguf.GGMLQuantizationType[quantisation]
    written = llama_tensors()
    path = write_llama(tmp_path / "m.gguf", written, kind)
    weights = opened(path)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, value in written.items():
        stored = reader[gguf_name(name)]
        expected = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(value.shape)
        read = weights.read_float64(name)
        if ".q_proj." in name:
            read = interleaved(read, HEADS)
        elif ".k_proj." in name:
            read = interleaved(read, GROUPS)
        np.testing.assert_array_equal(read, expected)
    matrix = weights.tensors["model.embed_tokens.weight"].dtype
    assert matrix == {"BF16": "bfloat16", "F16": "float16"}.get(quantisation, quantisation)


def test_the_rotation_sees_the_same_scores_in_both_layouts() -> None:
    """Half-split rotation of the restored rows = neighbour rotation of the stored rows."""
    generator = np.random.default_rng(3)
    width, positions = 8, 5
    angles = np.outer(np.arange(positions), 100.0 ** (-np.arange(0, width, 2) / width))
    inputs = generator.normal(size=(positions, 6))

    def half_split(rows: np.ndarray) -> np.ndarray:
        value = inputs @ rows.T
        left, right = value[:, : width // 2], value[:, width // 2 :]
        return np.concatenate(
            [
                left * np.cos(angles) - right * np.sin(angles),
                right * np.cos(angles) + left * np.sin(angles),
            ],
            axis=1,
        )

    def neighbours(rows: np.ndarray) -> np.ndarray:
        value = inputs @ rows.T
        turned = (value[:, ::2] + 1j * value[:, 1::2]) * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], axis=2).reshape(positions, width)

    query, key = generator.normal(size=(2, width, 6))
    expected = neighbours(query) @ neighbours(key).T
    restored = half_split(restored_rows(query, 1)) @ half_split(restored_rows(key, 1)).T
    np.testing.assert_allclose(restored, expected, atol=1e-12)
    unrestored = half_split(query) @ half_split(key).T
    assert np.abs(unrestored - expected).max() > 0.1


@pytest.mark.torch
def test_against_the_loader_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_checkpoint(path)
    assert checkpoint.weights is not None
    settings = {key: value for key, value in checkpoint.config.items() if key != "architectures"}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    expected = loader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    assert set(expected["tensors"]) == set(checkpoint.weights.tensors)
    for name, value in expected["tensors"].items():
        np.testing.assert_array_equal(checkpoint.weights.read(name), value.numpy())


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5},
            {"rope_type": "linear", "factor": 2.5},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 8.0,
                "llama.rope.scaling.original_context_length": 4096,
                "llama.rope.scaling.finetuned": True,
            },
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
        ),
    ],
)
def test_rope_scaling_is_kept(tmp_path: Path, entries: dict, expected: dict | None) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), changed=entries)
    assert open_checkpoint(path).config["rope_scaling"] == expected


def llama3_divisors(factor: float) -> np.ndarray:
    """The Llama 3.1 rule, plane by plane, with the published low 1, high 4, context 8192."""
    divisors = []
    for plane in range(HEAD_WIDTH // 2):
        wavelength = 2 * np.pi * 500000.0 ** (2 * plane / HEAD_WIDTH)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def test_frequency_divisors_of_llama_3(tmp_path: Path) -> None:
    buffer = {"rope_freqs.weight": llama3_divisors(32.0)}
    checkpoint = open_checkpoint(write_llama(tmp_path / "m.gguf", llama_tensors(), extra=buffer))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "divides the rotary frequencies by 1 to 32" in checkpoint.notes[1]
    assert checkpoint.weights is not None
    assert set(checkpoint.weights.tensors) == set(llama_tensors())


def test_other_frequency_divisors_are_kept_as_they_are(tmp_path: Path) -> None:
    buffer = {"rope_freqs.weight": np.array([1, 2, 3, 4], np.float32)}
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), extra=buffer)
    assert open_checkpoint(path).config["rope_scaling"] == {
        "rope_type": "frequency_divisors",
        "divisors": [1.0, 2.0, 3.0, 4.0],
    }


@pytest.mark.parametrize("divisors", [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, np.nan], [[1, 2], [3, 4]]])
def test_malformed_frequency_divisors(tmp_path: Path, divisors: list) -> None:
    buffer = {"rope_freqs.weight": np.array(divisors, np.float32)}
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), extra=buffer)
    assert "rope_freqs.weight must hold 4 positive numbers" in refusal(path)


def test_two_scalings_at_once(tmp_path: Path) -> None:
    path = write_llama(
        tmp_path / "m.gguf",
        llama_tensors(),
        changed={"llama.rope.scale_linear": 2.0},
        extra={"rope_freqs.weight": np.ones(4, np.float32)},
    )
    assert "both in its metadata and by rope_freqs.weight" in refusal(path)


def test_defaults_of_the_format(tmp_path: Path) -> None:
    omitted = ("llama.rope.freq_base", "llama.vocab_size", "llama.rope.dimension_count")
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), omitted=omitted)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_theta"] == 10000.0
    assert "10000" in checkpoint.notes[1]
    assert checkpoint.config["vocab_size"] == VOCABULARY


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"llama.attention.head_count": 3}, "differs from the head width 10"),
        (
            {"llama.attention.head_count": 3, "llama.attention.key_length": 8},
            "'blk.0.attn_q.weight' has 32 rows and the metadata announces 3 heads of width 8",
        ),
        ({"llama.attention.head_count_kv": 4}, "blk.0.attn_k.weight' has 16 rows"),
        ({"llama.attention.head_count": 0}, "head_count is not a positive count"),
        ({"llama.attention.head_count": 4.0}, "head_count is not a positive count"),
        ({"llama.attention.key_length": 16}, "differs from the head width 16"),
        ({"llama.attention.value_length": 16}, "value_length differs from the head width 8"),
        ({"llama.rope.dimension_count": 4}, "dimension_count differs from the head width 8"),
        ({"llama.block_count": 1}, "'blk.1.attn_norm.weight'"),
        ({"llama.block_count": 3}, "announces 3 layers and stores tensors of 2"),
        ({"llama.vocab_size": 12}, "token_embd.weight has 11 rows"),
        ({"llama.rope.freq_base": 0.0}, "freq_base is not a positive number"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base is not a positive number"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
        ({"llama.rope.scaling.type": "linear"}, "scaling.factor is missing"),
        ({"llama.attention.sliding_window": 4096}, "'llama.attention.sliding_window'"),
        ({"llama.expert_count": 8}, "'llama.expert_count'"),
        ({"llama.tensor_data_layout": "other"}, "tensor_data_layout"),
        ({"split.count": 2}, "llama-gguf-split --merge"),
        ({"general.alignment": 48}, "not a power of two"),
    ],
)
def test_metadata_that_contradicts_or_is_not_understood(
    tmp_path: Path, entries: dict, part: str
) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), changed=entries)
    message = refusal(path)
    assert str(path) in message
    assert part in message


@pytest.mark.parametrize(
    "key", ["block_count", "embedding_length", "attention.layer_norm_rms_epsilon"]
)
def test_missing_metadata(tmp_path: Path, key: str) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), omitted=(f"llama.{key}",))
    assert f"llama.{key} is missing" in refusal(path)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma", "llama4", "mistral3"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), architecture=architecture)
    message = refusal(path)
    assert f"'{architecture}'" in message
    assert "pass the model as safetensors" in message


def test_a_tensor_that_llama_does_not_have(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_inp.weight": np.ones((2, WIDTH), np.float32)}
    path = write_llama(tmp_path / "m.gguf", llama_tensors(), extra=extra)
    assert "'blk.0.ffn_gate_inp.weight'" in refusal(path)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    extra = {"output.weight": np.ones((VOCABULARY, WIDTH), np.int8)}
    path = write_llama(tmp_path / "m.gguf", llama_tensors(tied=True), extra=extra)
    message = refusal(path)
    assert "'output.weight' has the type 24" in message


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    written = llama_tensors()
    written["model.norm.weight"][3] = np.inf
    weights = opened(write_llama(tmp_path / "m.gguf", written))
    with pytest.raises(InputError) as caught:
        weights.read_float64("model.norm.weight")
    assert "'model.norm.weight' has 1 NaN or infinite values" in one_sentence(caught.value)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors())
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'fiberscope[gguf]'" in refusal(path)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_tensors())
    content = path.read_bytes()
    lengths = [*range(0, 2500, 13), *range(2500, len(content), 2999), len(content) - 1]
    for length in lengths:
        path.write_bytes(content[:length])
        assert str(path) in refusal(path)
    path.write_bytes(content + bytes(64))
    assert "64 bytes follow its last tensor" in refusal(path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"GGML" + bytes(20), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "1099511627776 metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "a name of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 60000), "truncated or corrupt"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"\xff", 0), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"a", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "unknown type 9"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**60), "texts"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"a", 9, 0, 2**60), "truncated"),
        (b"GGUF" + struct.pack("<IQQQcIQ", 3, 0, 1, 1, b"a", 8, 2**60), "truncated"),
        (
            b"GGUF" + struct.pack("<IQQ" + "QcIB" * 2, 3, 0, 2, 1, b"a", 0, 7, 1, b"a", 0, 7),
            "twice",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no tensors"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"a", 5), "5 dimensions"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 2**61, 0, 0), "has shape"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 33, 2, 0), "has shape [33]"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 4, 0, 64), "begins at byte"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 4, 0, 0), "truncated"),
    ],
)
def test_malformed_headers(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    message = refusal(path)
    assert str(path) in message
    assert part in message
