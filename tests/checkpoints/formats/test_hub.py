"""Hub ids without a hub: the cache as huggingface_hub lays it out, offline."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fiberscope.checkpoints.formats.hub import is_hub_id
from tests.checkpoints.formats.writers import refusal, tensors, write_directory, write_sharded

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROBE = """
import json, sys
from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.errors import InputError
answers = {}
for location in sys.argv[1:]:
    try:
        checkpoint = open_checkpoint(location)
        answers[location] = sorted(checkpoint.weights.tensors)
        for name in checkpoint.weights.tensors:
            checkpoint.weights.read_float64(name)
    except InputError as error:
        answers[location] = str(error)
print(json.dumps(answers))
"""


def snapshot(cache: Path, repository: str) -> Path:
    folder = cache / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


def test_cached_models_open_offline(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    write_directory(snapshot(cache, "org/single"), tensors())
    names = list(tensors())
    write_sharded(
        snapshot(cache, "org/sharded"),
        [{name: tensors()[name] for name in part} for part in (names[:2], names[2:])],
    )
    incomplete = write_sharded(snapshot(cache, "org/incomplete"), [tensors()])
    (incomplete / "model-00001-of-00001.safetensors").unlink()
    unsafe = write_directory(snapshot(cache, "org/unsafe"), {})
    (unsafe / "model.safetensors").unlink()
    locations = ["org/single", f"org/single@{COMMIT}", "org/sharded", "org/single@v9"]
    locations += ["org/incomplete", "org/unsafe", "org/absent"]
    environment = os.environ | {
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment.pop("HF_HUB_CACHE", None)
    finished = subprocess.run(
        [sys.executable, "-c", PROBE, *locations],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    answers = json.loads(finished.stdout)
    expected = sorted(names)
    assert answers["org/single"] == expected
    assert answers[f"org/single@{COMMIT}"] == expected
    assert answers["org/sharded"] == expected
    for location in ("org/absent", "org/single@v9"):
        assert location in answers[location]
        assert "HF_HUB_OFFLINE" in answers[location]
    assert "model-00001-of-00001.safetensors" in answers["org/incomplete"]
    assert "no model.safetensors" in answers["org/unsafe"]
    assert all(text.endswith(".") for text in answers.values() if isinstance(text, str))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = refusal("org/name")
    assert "'org/name' does not exist here" in message
    assert "pip install 'fiberscope[hub]'" in message


def test_what_the_client_raises_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*arguments: object, **named: object) -> str:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(hub, "get_hf_file_metadata", refuse)
    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    message = refusal("org/name@main")
    assert "'org/name@main' does not exist here" in message
    assert "RuntimeError" in message


def test_an_unreachable_hub_is_asked_once_and_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import LocalEntryNotFoundError

    asked: list[str] = []
    local_only: list[object] = []
    logger = logging.getLogger("huggingface_hub.utils._http")
    heard: list[logging.LogRecord] = []
    ear = logging.Handler()
    monkeypatch.setattr(ear, "emit", heard.append)
    logger.addHandler(ear)

    def unreachable(url: str, **named: object) -> None:
        asked.append(url)
        logger.warning("Retrying in 1s")
        raise ConnectionError("no route")

    def not_cached(*arguments: object, **named: object) -> str:
        local_only.append(named["local_files_only"])
        logger.warning("not found")
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(hub, "hf_hub_download", not_cached)
    try:
        message = refusal("org/name")
    finally:
        logger.removeHandler(ear)
    assert "the hub cannot be reached" in message
    assert (len(asked), local_only, heard) == (1, [True], [])


def test_below_a_folder_that_exists_a_path_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    # Without the package the hub would be mentioned.
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal("runs/model").startswith("runs/model does not exist; pass a directory")
    assert "huggingface_hub" in refusal("walks/model")


@pytest.mark.parametrize("text", ["org/name", "org/name@main", "0-hero/x.y-2", "org/n@refs/pr/1"])
def test_hub_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text", ["name", "a/b/c", "/a/b", "./a", "a/config.json", "a/b.gguf", "a/b@"]
)
def test_no_hub_ids(text: str) -> None:
    assert not is_hub_id(text)
