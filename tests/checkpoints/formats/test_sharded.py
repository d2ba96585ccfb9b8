"""Several shards with an index: they must agree with each other in every respect."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fiberscope.checkpoints.formats import open_checkpoint
from tests.checkpoints.formats.writers import refusal, tensors, write_sharded

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def halves() -> list[dict[str, np.ndarray]]:
    values = tensors()
    names = list(values)
    return [{name: values[name] for name in part} for part in (names[:3], names[3:])]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_sharded(tmp_path, halves())


def rewrite(model: Path, **moved: object) -> None:
    index = json.loads((model / INDEX).read_text())
    for name, shard in moved.items():
        if shard is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = shard
    (model / INDEX).write_text(json.dumps(index))


def test_reads_all_shards(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    weights = checkpoint.weights
    assert weights is not None
    assert weights.path == model / INDEX
    assert checkpoint.notes == ()
    expected = tensors()
    assert set(weights.tensors) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(weights.read(name), value)
    assert weights.tensors["a.weight"].file == model / FIRST
    assert weights.tensors["mask"].file == model / SECOND


def test_a_missing_shard(model: Path) -> None:
    (model / SECOND).unlink()
    message = refusal(model)
    assert INDEX in message
    assert f"the shard {SECOND}" in message


def test_a_truncated_shard(model: Path) -> None:
    content = (model / SECOND).read_bytes()
    (model / SECOND).write_bytes(content[:-1])
    assert str(model / SECOND) in refusal(model)


def test_a_shard_that_is_a_directory(model: Path) -> None:
    (model / SECOND).unlink()
    (model / SECOND).mkdir()
    assert f"{model / SECOND} is not a regular file" in refusal(model)


def test_a_shard_that_points_nowhere(model: Path) -> None:
    (model / SECOND).unlink()
    (model / SECOND).symlink_to(model / "gone")
    assert SECOND in refusal(model)


def test_an_unreadable_shard(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    def denied(path: Path, *arguments: object, **named: object) -> object:
        if path.name == SECOND:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", denied)  # file modes do not bind the superuser
    assert f"{model / SECOND} cannot be read (Permission denied)" in refusal(model)


def test_a_tensor_that_the_shard_does_not_store(model: Path) -> None:
    rewrite(model, extra=SECOND)
    message = refusal(model)
    assert "'extra'" in message
    assert str(model / SECOND) in message


def test_a_tensor_that_the_index_places_elsewhere(model: Path) -> None:
    rewrite(model, scalar=FIRST)
    message = refusal(model)
    assert "'scalar'" in message


def test_a_tensor_that_the_index_does_not_name(model: Path) -> None:
    rewrite(model, scalar=None)
    message = refusal(model)
    assert "'scalar'" in message
    assert "nowhere" in message


def test_a_tensor_in_two_shards(model: Path) -> None:
    first, second = halves()
    safetensors.numpy.save_file(second | {"a.bias": first["a.bias"]}, model / SECOND)
    message = refusal(model)
    assert "'a.bias'" in message
    assert f"places it in {FIRST}" in message


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", 3, "x"]
)
def test_shards_outside_the_folder(model: Path, shard: object) -> None:
    rewrite(model, scalar=shard)
    message = refusal(model)
    assert "'scalar'" in message
    assert "beside it" in message


@pytest.mark.parametrize(
    "index", [{}, {"weight_map": {}}, {"weight_map": [1]}, {"weight_map": None}]
)
def test_an_index_without_tensors(model: Path, index: object) -> None:
    (model / INDEX).write_text(json.dumps(index))
    assert f"{model / INDEX} has no weight_map" in refusal(model)


def test_a_malformed_index(model: Path) -> None:
    (model / INDEX).write_text('{"weight_map": {')
    assert "line 1, column 17" in refusal(model)
    (model / INDEX).write_text("[]")
    assert "a list" in refusal(model)


def test_one_shard_is_not_a_model(model: Path) -> None:
    for name in (FIRST, SECOND):
        message = refusal(model / name)
        assert "one shard" in message
        assert f"pass its directory {model}" in message


def test_the_index_is_not_a_configuration(model: Path) -> None:
    assert f"pass its directory {model}" in refusal(model / INDEX)


def test_shards_without_an_index(model: Path) -> None:
    (model / INDEX).unlink()
    assert "no model.safetensors.index.json" in refusal(model)
