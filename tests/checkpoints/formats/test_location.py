"""What the user may name, and which files in a directory are the model."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fiberscope.checkpoints.formats import open_checkpoint
from tests.checkpoints.formats.writers import (
    CONFIG,
    llama_tensors,
    refusal,
    tensors,
    write_directory,
    write_llama,
    write_sharded,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "model", tensors())


def test_a_directory_as_text_and_as_path(model: Path) -> None:
    for location in (model, str(model)):
        checkpoint = open_checkpoint(location)
        assert checkpoint.path == model
        assert checkpoint.config == CONFIG
        assert checkpoint.weights is not None
        assert checkpoint.notes == ()


def test_a_configuration_alone(model: Path) -> None:
    other = model / "gpt2-small.json"
    other.write_text((model / "config.json").read_text())
    for path in (model / "config.json", other):
        checkpoint = open_checkpoint(path)
        assert checkpoint.config == CONFIG
        assert checkpoint.weights is None


def test_a_safetensors_file_beside_its_configuration(model: Path) -> None:
    checkpoint = open_checkpoint(model / "model.safetensors")
    assert checkpoint.config == CONFIG
    assert checkpoint.weights is not None
    assert set(checkpoint.weights.tensors) == set(tensors())


def test_a_directory_of_any_single_name(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    assert open_checkpoint(model).weights is not None


def test_a_path_wins_over_a_hub_id(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    (model.parent / "org").mkdir()
    model.rename(model.parent / "org" / "name")
    assert open_checkpoint("org/name").config == CONFIG


@pytest.mark.parametrize(
    "location",
    ["", "nothing", "a/b/c", "./org/name", "/no/such", "a/config.json", "x\0y", "x" * 5000],
)
def test_nothing_there(location: str) -> None:
    message = refusal(location)
    assert "pass" in message or "check" in message


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "neither a file nor a directory" in refusal(tmp_path / "pipe.safetensors")


def test_an_unknown_format(model: Path) -> None:
    (model / "model.onnx").write_bytes(b"onnx")
    message = refusal(model / "model.onnx")
    assert str(model / "model.onnx") in message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is empty"),
        ("{", "line 1, column 2"),
        ('{\n"a": 1,\n}', "line 3, column 1"),
        ("[1]", "a list"),
        ("null", "null"),
        ('"a"', "a string"),
        ("3", "a number"),
        ("true", "true or false"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": {"b": 1, "b": 2}}', "'b' twice"),
        ('{"a": Infinity}', "Infinity"),
        ('{"architectures": ["\\udc00"]}', "surrogate"),
        ("\ufeff{}", "line 1, column 1"),
    ],
)
def test_malformed_configurations(model: Path, content: str, part: str) -> None:
    path = model / "config.json"
    path.write_text(content, encoding="utf-8")
    for location in (path, model, model / "model.safetensors"):
        message = refusal(location)
        assert str(path) in message
        assert part in message


def test_a_directory_without_configuration(model: Path) -> None:
    (model / "config.json").unlink()
    assert "no config.json" in refusal(model)
    assert "no config.json" in refusal(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    assert "no config.json and no weights" in refusal(model)


def test_a_directory_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    message = refusal(model)
    assert "no weights" in message
    assert f"pass {model / 'config.json'} itself" in message


def test_a_configuration_that_is_a_directory(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    assert f"{model / 'config.json'} is not a regular file" in refusal(model)


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "pytorch_model.bin.index.json"],
)
def test_pickles_are_refused_with_the_reason_and_never_loaded(model: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(model / "executed"),))

    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Bomb()))
    for location in (model, model / name):
        message = refusal(location)
        assert name in message
        assert "can execute any code" in message
        assert "python -c" in message
    assert "save_pretrained" in refusal(model)
    assert not (model / "executed").exists()


def test_pickles_beside_safetensors_are_noted(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"")
    (model / "training_args.bin").write_bytes(b"")
    (note,) = open_checkpoint(model).notes
    assert "'pytorch_model.bin'" in note
    assert "training_args" not in note


def test_what_training_leaves_is_no_model(model: Path) -> None:
    (model / "model.safetensors").unlink()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (model / name).write_bytes(b"")
    assert "no weights" in refusal(model)


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_adapters(model: Path, weights: str) -> None:
    (model / "model.safetensors").rename(model / weights)
    (model / "config.json").rename(model / "adapter_config.json")
    (model / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert "adapter" in refusal(model)
    assert "adapter" in refusal(model / "adapter_config.json")


def test_an_adapter_beside_a_model_is_noted(model: Path) -> None:
    (model / "adapter_model.safetensors").write_bytes(b"")
    (note,) = open_checkpoint(model).notes
    assert "'adapter_model.safetensors'" in note


def test_two_models_in_one_directory(model: Path, tmp_path: Path) -> None:
    safetensors.numpy.save_file({"x": np.ones(2)}, model / "other.safetensors")
    message = refusal(model)
    assert "more than one model ('model.safetensors', 'other.safetensors')" in message
    # Each of them can still be named.
    assert open_checkpoint(model / "model.safetensors").weights is not None


def test_a_model_and_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path, [tensors()])
    safetensors.numpy.save_file(tensors(), tmp_path / "model.safetensors")
    assert "more than one model: 'model.safetensors' beside the shards" in refusal(tmp_path)


def test_two_indices(tmp_path: Path) -> None:
    write_sharded(tmp_path, [tensors()])
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "other.safetensors.index.json").write_text(index.read_text())
    assert "more than one model" in refusal(tmp_path)


def test_several_gguf_files(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_llama(tmp_path / name, llama_tensors())
    assert "more than one model ('a.gguf', 'b.gguf')" in refusal(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert open_checkpoint(tmp_path).path == tmp_path / "a.gguf"


def test_gguf_beside_safetensors(model: Path) -> None:
    write_llama(model / "a.gguf", llama_tensors())
    assert "more than one model ('a.gguf', 'model.safetensors')" in refusal(model)


def test_mistrals_second_copy_is_noted(tmp_path: Path) -> None:
    write_sharded(tmp_path, [tensors()])
    safetensors.numpy.save_file(tensors(), tmp_path / "consolidated.safetensors")
    (tmp_path / "consolidated.safetensors.index.json").write_text("{}")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.weights is not None
    assert "'consolidated.safetensors'" in checkpoint.notes[0]


def test_mistrals_own_layout_alone(model: Path) -> None:
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    assert "Mistral's own layout" in refusal(model)


def test_weights_that_are_a_directory(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").mkdir()
    assert "is not a regular file" in refusal(model)
