"""`fiberscope canonicalize` on checkpoints, from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from fiberscope.cli.main import main
from fiberscope.examples import example_path
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors

FORMATS = ("float64", "float32", "bfloat16", "float16")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["canonicalize", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "in", TINY_LLAMA, random_tensors(TINY_LLAMA))


def gpt2(tmp_path: Path, **changes: Any) -> Path:
    config = {**TINY_GPT2, **changes}
    return checkpoint(tmp_path / "gpt2", config, random_tensors(config))


def test_report_and_json(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    code, out, err = run(capsys, model, "-o", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "largest deviation" in out
    assert max(map(len, out.splitlines()[:-1])) <= 100
    code, text, err = run(capsys, model, "-o", tmp_path / "b", "--json")
    assert (code, err) == (0, "")
    data = json.loads(text)
    assert (data["schema"], data["family"]) == ("fiberscope/canonicalize/1", "checkpoint")
    assert 0 < data["deviation"]["relative"] < 1e-5
    assert not data["unchanged"]
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()
    with safe_open(tmp_path / "a/model.safetensors", "np") as file:
        record = json.loads(file.metadata()["fiberscope"])
    assert (record["action"], record["source"]) == ("canonicalize", "in")


@pytest.mark.parametrize("name", ["gpt2", "llama-a"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_twice_gives_the_same_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, dtype: str
) -> None:
    common = ("--quiet", "--json")
    code, _, err = run(capsys, example_path(name), "-o", tmp_path / "a", "--dtype", dtype, *common)
    assert (code, err) == (0, "")
    code, text, _ = run(capsys, tmp_path / "a", "-o", tmp_path / "b", *common)
    assert code == 0
    data = json.loads(text)
    assert (data["unchanged"], data["changed_tensors"]) == (True, 0)
    assert data["dtypes"] == [dtype]
    assert data["deviation"]["largest"] == 0.0
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gpt2", "llama-a"])
def test_transformers_loads_the_form_unchanged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    source = example_path(name)
    code, _, _ = run(capsys, source, "-o", tmp_path / "a", "--dtype", "float64", "--quiet")
    assert code == 0
    tokens = torch.arange(24).reshape(2, 12) % 100
    logits = []
    for place in (source, tmp_path / "a"):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64)
        with torch.no_grad():
            logits.append(loaded.eval()(tokens).logits)
    # The classes compute norms, softmax and rotary tables in float32.
    assert float((logits[0] - logits[1]).abs().max()) < 1e-4 * float(logits[0].abs().max())


def test_drop_sets_dead_neurons_to_zero(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    down = next(name for name in tensors if name.endswith("down_proj.weight"))
    gate = down.replace("down", "gate")
    tensors[down][:, 1] = 0.0
    model = checkpoint(tmp_path / "in", TINY_LLAMA, tensors)
    for options, dead in (((), 0), (("--drop",), 1)):
        target = tmp_path / f"out{dead}"
        code, text, _ = run(capsys, model, "-o", target, "--json", *options)
        assert code == 0
        written = load_file(target / "model.safetensors")
        silent = ~written[down].any(axis=0)
        assert silent.sum() == 1
        assert bool(written[gate][silent].any()) is not bool(dead)
        assert json.loads(text)["dead"].get("neurons without effect", 0) == dead


def test_styles_that_are_symmetries(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    for style in ("balanced", "folded"):
        code, text, err = run(
            capsys, model, "-o", tmp_path / style, "--style", style, "--json", "--quiet"
        )
        assert (code, err) == (0, "")
        assert json.loads(text)["deviation"]["relative"] < 1e-5
    old = load_file(model / "model.safetensors")
    new = load_file(tmp_path / "balanced/model.safetensors")
    changed = {name for name in old if not np.array_equal(old[name], new[name])}
    assert changed
    assert all(("self_attn" in name) or ("mlp" in name) for name in changed)
    gate = next(name for name in old if name.endswith("gate_proj.weight"))
    assert gate not in changed
    untied = gpt2(tmp_path, tie_word_embeddings=False)
    code, text, _ = run(capsys, untied, "-o", tmp_path / "c", "--style", "centred", "--json")
    assert code == 0
    centred = load_file(tmp_path / "c/model.safetensors")
    table = next(value for name, value in centred.items() if name.endswith("wte.weight"))
    assert np.abs(table.mean(axis=1)).max() < 1e-7


@pytest.mark.parametrize(
    ("style", "tied", "reason"),
    [("centred", False, "RMSNorm"), ("folded", True, "token embedding")],
)
def test_styles_that_are_none_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, style: str, tied: bool, reason: str
) -> None:
    config = {**TINY_LLAMA, "tie_word_embeddings": tied}
    model = checkpoint(tmp_path / "in", config, random_tensors(config))
    code, out, err = run(capsys, model, "-o", tmp_path / "out", "--style", style)
    assert (code, out) == (3, "")
    assert reason in err
    assert not (tmp_path / "out").exists()


def test_centring_tied_embeddings_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, gpt2(tmp_path), "-o", tmp_path / "out", "--style", "centred")
    assert code == 3
    assert "reads the mean" in err


def test_bad_requests_leave_nothing(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("keep me")
    for arguments in (
        (model,),
        (model, "-o", tmp_path / "full"),
        (model, "-o", tmp_path / "full", "--overwrite"),
        (model, "-o", model),
        (model, "-o", tmp_path / "out", "--exact"),
        (tmp_path / "none", "-o", tmp_path / "out"),
        (model, "-o", tmp_path / "out", "--style", "balanced", "--drop"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (3, ""), arguments
        assert err.startswith("fiberscope: ") and err.count("\n") == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "out").exists()


def test_values_that_are_not_finite_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tensors = random_tensors(TINY_LLAMA)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][1, 2] = np.nan
    code, out, err = run(
        capsys, checkpoint(tmp_path / "in", TINY_LLAMA, tensors), "-o", tmp_path / "out"
    )
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert str(tmp_path / "in") in err and name in err and "NaN" in err
    assert not (tmp_path / "out").exists()
