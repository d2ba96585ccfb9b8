"""`fiberscope transform` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fiberscope.cli.main import main
from fiberscope.examples import example_path
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["transform", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def scaled(config: dict[str, Any], size: float = 0.3) -> dict[str, np.ndarray]:
    """Matrices of a moderate size, gains near one."""
    return {
        name: value if value.ndim == 1 else (value * size / 0.3).astype(np.float32)
        for name, value in random_tensors(config).items()
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "in", TINY_LLAMA, scaled(TINY_LLAMA))


def test_report_and_json(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    code, out, err = run(capsys, model, "--random", "--seed", 3, "-o", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "residual rotation" in out
    assert max(map(len, out.splitlines())) <= 100
    code, text, err = run(capsys, model, "--random", "--seed", 3, "-o", tmp_path / "b", "--json")
    assert (code, err) == (0, "")
    data = json.loads(text)
    assert data["schema"] == "fiberscope/transform/1"
    assert data["exact_deviation"] < 1e-13
    assert 1e-9 < data["stored_deviation"] < 1e-5
    assert {entry["mechanism"] for entry in data["mechanisms"]} >= {
        "norm gain",
        "gated MLP scaling",
    }
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()
    with safe_open(tmp_path / "a/model.safetensors", "np") as file:
        record = json.loads(file.metadata()["fiberscope"])
    assert (record["action"], record["seed"], record["source"]) == ("transform", 3, "in")


def test_witness_there_and_back(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "move.npz"
    common = ("--dtype", "float64", "--quiet")
    code, _, _ = run(
        capsys, model, "--random", "-o", tmp_path / "a", "--save-witness", file, *common
    )
    assert code == 0
    code, _, _ = run(capsys, model, "--witness", file, "-o", tmp_path / "b", *common)
    assert code == 0
    first, second = (load_file(tmp_path / d / "model.safetensors") for d in "ab")
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(values.dtype == np.float64 for values in first.values())
    gpt2 = checkpoint(tmp_path / "gpt2", TINY_GPT2, scaled(TINY_GPT2))
    code, out, err = run(capsys, gpt2, "--witness", file, "-o", tmp_path / "c")
    assert code == 3
    assert "is a witness of LlamaForCausalLM" in err
    assert out == ""
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("dtype", "coarse"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)]
)
def test_storage_formats(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, dtype: str, coarse: float
) -> None:
    code, out, _ = run(
        capsys, model, "--random", "-o", tmp_path / "out", "--dtype", dtype, "--json"
    )
    assert code == 0
    data = json.loads(out)
    assert data["dtypes"] == [dtype]
    # Two layers of a dozen sums each, rounded once; condition at most 4.
    assert coarse / 100 < data["stored_deviation"] < 400 * coarse
    assert data["exact_deviation"] < 1e-13


def test_a_move_that_a_format_cannot_hold_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tensors = scaled(TINY_LLAMA)
    tensors["model.layers.0.mlp.up_proj.weight"] *= np.float32(4e4)
    tensors["model.layers.0.mlp.down_proj.weight"] /= np.float32(4e4)
    model = checkpoint(tmp_path / "in", TINY_LLAMA, tensors)
    common = (model, "--random", "--condition", 1000, "--only", "gated MLP scaling")
    code, out, err = run(capsys, *common, "-o", tmp_path / "out", "--dtype", "float16")
    assert (code, out) == (3, "")
    assert "up_proj" in err
    assert "beyond the range of float16" in err
    assert not (tmp_path / "out").exists()
    code, _, _ = run(capsys, *common, "-o", tmp_path / "out", "--dtype", "bfloat16")
    assert code == 0


def test_approximate_mechanisms_are_announced(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    code, out, err = run(
        capsys, model, "--random", "--only", "scale of a", "-o", tmp_path / "out", "--json"
    )
    assert code == 0
    assert "approximate up to the epsilons" in err
    data = json.loads(out)
    assert data["approximate"] == ["scale of a normalised sum"]
    assert data["exact_deviation"] > 1e-9


def test_usage(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "taken.npz").write_text("keep")
    for arguments in (
        (model, "-o", out),
        (model, "-o", out, "--random", "--witness", tmp_path / "w.npz"),
        (model, "-o", out, "--witness", tmp_path / "w.npz", "--only", "norm gain"),
        (model, "-o", out, "--random", "--only", "nonsense"),
        (model, "-o", out, "--random", "--condition", "0.5"),
        (model, "-o", out, "--random", "--save-witness", tmp_path / "taken.npz"),
        (model, "-o", model, "--random"),
        (model / "config.json", "-o", out, "--random"),
        (tmp_path / "missing", "-o", out, "--random"),
    ):
        code, text, err = run(capsys, *arguments)
        assert (code, text) == (3, ""), arguments
        assert len(err.splitlines()) == 1
        assert not out.exists()
    assert (tmp_path / "taken.npz").read_text() == "keep"


def test_sharded_bfloat16(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tensors = {n: v.astype(ml_dtypes.bfloat16) for n, v in scaled(TINY_LLAMA).items()}
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    weight_map = {}
    for number, part in enumerate((list(tensors)[::2], list(tensors)[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    code, out, _ = run(capsys, folder, "--random", "-o", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out)["dtypes"] == ["bfloat16"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        p.name for p in folder.iterdir()
    )


@pytest.mark.torch
@pytest.mark.parametrize("example", ["gpt2", "llama-a"])
def test_transformers_computes_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, example: str
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    source = example_path(example)
    code, _, _ = run(
        capsys, source, "--random", "--seed", 5, "-o", tmp_path / "out", "--dtype", "float64"
    )
    assert code == 0
    tokens = torch.arange(12).reshape(1, 12)
    found = []
    for folder in (source, tmp_path / "out"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        with torch.no_grad():
            found.append(model.eval()(tokens).logits.numpy())
    # The class itself computes norms and rotary tables in float32.
    assert np.abs(found[0] - found[1]).max() < 2e-5 * np.abs(found[0]).max()
