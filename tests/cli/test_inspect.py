"""`fiberscope inspect` from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fiberscope.cli import inspect as module
from fiberscope.cli.main import main
from fiberscope.cli.output import progress
from fiberscope.errors import InputError
from fiberscope.examples import example_path
from tests.checkpoints.architecture import published_shapes as shapes
from tests.report.reports import TINY_GPT2, checkpoint, random_tensors
from tests.report.test_inspect_terminal import twin


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_GPT2))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def test_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--example")
    assert (code, err) == (0, "")
    assert out.startswith(str(example_path())[:60])
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_nothing_else(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    code, out, err = run(capsys, config, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["schema"] == "fiberscope/inspect/1"
    assert out.isascii()


def test_html_and_json_together(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    code, out, err = run(capsys, config, "--json", "--html", page)
    assert (code, err) == (0, "")
    assert f"{json.loads(out)['undetermined']:,}" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "page.html"]
    assert page.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_overwriting_only_when_asked(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    code, out, err = run(capsys, config, "--html", page)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1 and "--overwrite" in err
    assert page.read_text() == "mine"
    code, _, _ = run(capsys, config, "--html", page, "--overwrite")
    assert code == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_observable_is_passed_on(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    sizes = {}
    for observable in module.OBSERVABLES:
        _, out, _ = run(capsys, config, "--json", "--observable", observable)
        data = json.loads(out)
        assert data["observable"] == observable
        sizes[observable] = data["undetermined"]
    assert sizes["probabilities"] == sizes["logits"] + TINY_GPT2["n_embd"]


def test_default_observable_of_an_encoder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shapes.MINILM))
    _, out, _ = run(capsys, path, "--json")
    assert json.loads(out)["observable"] == "hidden"


def test_unknown_keys_can_be_vouched_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY_GPT2, "colour": "red"}))
    code, _, err = run(capsys, path)
    assert code == 3 and "colour" in err
    code, out, _ = run(capsys, path, "--json", "--assume-harmless", "colour")
    assert code == 0
    statements = [entry["statement"] for entry in json.loads(out)["conditions"]]
    assert "the key 'colour' changes nothing" in statements


def _malformed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either a PATH or --example"),
        (["config.json", "--example"], "did not"),
        (["missing"], "missing does not exist"),
        ([""], "empty"),
        (["bad.json"], "bad.json"),
        (["config.json", "--observable", "thoughts"], "'thoughts'"),
        (["headless.json", "--observable", "logits"], "no head"),
        (["config.json", "--seed", "-1"], "--seed"),
        (["config.json", "--exampel"], "did you mean '--example'?"),
        (["config.json", "--html", "."], "is a directory"),
        (["config.json", "--html", "no/such/page.html"], "no directory"),
        (["--example", "gpt5"], "gpt5"),
        (["unknown.json"], "NewForCausalLM"),
        (["weights.bin"], "weights.bin"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = config.parent
    (folder / "bad.json").write_text('{"model_type": "gpt2", ')
    (folder / "headless.json").write_text(json.dumps({**TINY_GPT2, "architectures": ["GPT2Model"]}))
    (folder / "unknown.json").write_text(json.dumps({"architectures": ["NewForCausalLM"]}))
    (folder / "weights.bin").write_bytes(b"\x80\x02}")
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert err.startswith("fiberscope: ") and err.endswith("\n") and err.count("\n") == 1
    assert words in err or (words == "did not" and "either a PATH or --example" in err)
    assert sorted(folder.rglob("*")) == before


def test_broken_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    tensors["transformer.h.0.attn.c_attn.bias"][3] = float("nan")
    code, out, err = run(capsys, checkpoint(tmp_path / "m", TINY_GPT2, tensors))
    assert (code, out) == (3, "")
    assert "transformer.h.0.attn.c_attn.bias" in err and err.count("\n") == 1


def test_a_page_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    code, out, err = run(capsys, config, "--html", config.parent / "page.html")
    assert (code, out) == (3, "")
    assert "no space left on device" in err and err.count("\n") == 1
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]


def test_verify_without_the_extra(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run(capsys, config, "--verify")
    assert (code, out) == (3, "")
    assert "pip install 'fiberscope[twins]'" in err and err.count("\n") == 1


@pytest.mark.parametrize(("measured", "expected"), [(117, 0), (118, 2)])
def test_exit_code_of_the_twin_check(
    measured: int,
    expected: int,
    capsys: pytest.CaptureFixture[str],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = twin(measured_exact=measured)
    monkeypatch.setattr("fiberscope.report.inspection_report.require_twins", lambda: None)
    monkeypatch.setattr("fiberscope.report.inspection_report.verify", lambda *_: made)
    code, out, err = run(capsys, config, "--verify", "--json")
    assert code == expected
    entry = json.loads(out)["evidence"][-1]
    assert entry["line"] == "twin check"
    assert entry["statistics"]["agrees"] is (expected == 0)
    assert ("disagrees" in err) is (expected == 2)


def test_full_size_configuration_in_two_seconds(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shapes.LLAMA_3_8B))
    command = [sys.executable, "-m", "fiberscope", "inspect", str(path), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(finished.stdout)["undetermined"] == 13_338_624
    assert "torch" not in finished.stderr


def test_no_colour_codes_in_a_pipe() -> None:
    command = [sys.executable, "-m", "fiberscope", "inspect", "--example"]
    environment = {**os.environ, "COLUMNS": "80"}
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert "\x1b" not in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 80


def test_progress_is_silent_at_first_and_then_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    with progress() as tick:
        assert tick is not None
        tick(0, 3, "layer 0")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("fiberscope.cli.output.PATIENCE", 0.01)
    with progress() as tick:
        assert tick is not None
        tick(1, 3, "layer 1")
        time.sleep(0.2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "fiberscope: step 2 of 3: layer 1 (0 s)\n"
    with progress(quiet=True) as tick:
        assert tick is None


def test_location_is_needed_once() -> None:
    with pytest.raises(InputError, match="either a PATH or --example"):
        module._location(None, None)


def test_terminals_that_know_only_ascii() -> None:
    command = [sys.executable, "-m", "fiberscope", "inspect", "--example"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    finished = subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment)
    assert finished.stdout.isascii()
    assert b"-----" in finished.stdout
    assert b"?" not in finished.stdout
