"""`fiberscope fingerprint` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fiberscope.cli.main import main
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors


def run(capsys: pytest.CaptureFixture[str], verb: str, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([verb, *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def test_numbers_and_comparisons(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "a", TINY_LLAMA, random_tensors(TINY_LLAMA))
    other = checkpoint(tmp_path / "b", TINY_LLAMA, random_tensors(TINY_LLAMA, 1))
    code, out, _ = run(capsys, "fingerprint", model, "--quiet")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = run(capsys, "fingerprint", model, "--json", "--quiet")
    assert code == 0
    data = json.loads(out)
    assert data["schema"] == "fiberscope/fingerprint/1"
    assert all(entry["error"] > 0 for entry in data["invariants"])
    saved = tmp_path / "a.json"
    saved.write_text(out)
    moved = tmp_path / "moved"
    code, _, _ = run(capsys, "transform", model, "--random", "-o", moved, "--quiet")
    assert code == 0
    code, out, _ = run(capsys, "fingerprint", moved, saved, "--quiet")
    assert code == 2
    assert out.startswith("possibly the same: ")
    code, out, _ = run(capsys, "fingerprint", other, saved, "--json", "--quiet")
    assert code == 1
    assert json.loads(out)["verdict"] == "different"


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "a", TINY_LLAMA, random_tensors(TINY_LLAMA))
    gpt2 = checkpoint(tmp_path / "b", TINY_GPT2, random_tensors(TINY_GPT2))
    (tmp_path / "other.json").write_text('{"schema": "fiberscope/inspect/1"}')
    for arguments in (
        (model, gpt2),
        (model, tmp_path / "other.json"),
        (model / "config.json",),
        (tmp_path / "missing",),
    ):
        code, out, err = run(capsys, "fingerprint", *arguments, "--quiet")
        assert (code, out) == (3, ""), arguments
        assert len(err.splitlines()) == 1
