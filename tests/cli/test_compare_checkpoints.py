"""`fiberscope compare` on checkpoints, from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fiberscope.cli.main import main
from fiberscope.examples import example_path

LLAMA_A, LLAMA_B = example_path("llama-a"), example_path("llama-b")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("moved") / "model"
    with pytest.raises(SystemExit) as stopped:
        main(["transform", str(LLAMA_A), "--random", "--dtype", "bfloat16", "-o", str(target)])
    assert stopped.value.code == 0
    return target


def test_same_and_its_witness(
    capsys: pytest.CaptureFixture[str], moved: Path, tmp_path: Path
) -> None:
    witness = tmp_path / "move.npz"
    code, out, _ = run(capsys, "compare", LLAMA_A, moved, "--witness", witness, "--json")
    data = json.loads(out)
    assert (code, data["verdict"]) == (0, "SAME")
    assert data["schema"] == "fiberscope/compare/1"
    assert all(0.7 < part["rms"] < 1.3 for part in data["statistics"] if part["count"] > 1000)
    assert {one["mechanism"] for one in data["mechanisms"]} >= {
        "residual rotation",
        "value/output basis change",
        "norm gain",
    }
    # The stored witness, applied by the other command, leads to the same place.
    code, _, err = run(capsys, "transform", LLAMA_A, "--witness", witness, "-o", tmp_path / "again")
    assert code == 0, err
    code, _, _ = run(capsys, "compare", tmp_path / "again", moved)
    assert code == 0
    code, _, err = run(capsys, "compare", LLAMA_A, moved, "--witness", witness)
    assert code == 3
    assert "exists" in err


def test_different_trainings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, _ = run(capsys, "compare", LLAMA_A, LLAMA_B, "--html", page)
    assert code == 1
    assert "DIFFERENT" in out
    assert "token embedding" in out
    assert max(map(len, out.splitlines())) <= 100
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    code, out, _ = run(capsys, "compare", LLAMA_A, LLAMA_B, "--json")
    data = json.loads(out)
    assert data["verdict"] == "DIFFERENT"
    assert 0.5 < data["distance"]["relative"] < 2
    assert data["mechanisms"] == []


def test_a_model_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", LLAMA_A, LLAMA_A, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["forward_error"]["largest"] == 0


def test_other_classes_are_different(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", LLAMA_A, example_path("gpt2"), "--json")
    assert code == 1
    assert "architectures differ" in json.loads(out)["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LLAMA_A, "nowhere"), "does not exist"),
        ((LLAMA_A, LLAMA_B, "--exact"), "polynomial"),
        ((LLAMA_A, LLAMA_B, "--witness", "w.json"), ".npz"),
    ],
)
def test_wrong_use(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], message: str
) -> None:
    code, out, err = run(capsys, "compare", *arguments)
    assert (code, out) == (3, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


# --- adapters ---------------------------------------------------------------------------------


def adapter(path: Path, factors: dict[str, tuple[np.ndarray, np.ndarray]], alpha: int = 16) -> Path:
    path.mkdir()
    rank = len(next(iter(factors.values()))[0])
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    arrays = {}
    for name, (down, up) in factors.items():
        arrays[f"base_model.model.{name}.lora_A.weight"] = np.ascontiguousarray(down)
        arrays[f"base_model.model.{name}.lora_B.weight"] = np.ascontiguousarray(up)
    save_file(arrays, path / "adapter_model.safetensors")
    return path


def test_adapters_up_to_a_change_of_basis(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    names = ("layers.0.q_proj", "layers.0.v_proj")
    factors = {n: (rng.standard_normal((4, 24)), rng.standard_normal((20, 4))) for n in names}
    first = adapter(tmp_path / "first", factors)
    moved, changed = {}, {}
    for name, (down, up) in factors.items():
        mix = rng.standard_normal((4, 4)) + 2 * np.eye(4)
        # Twice the scale is half the product.
        moved[name] = (
            (mix @ down).astype(np.float32),
            (up @ np.linalg.inv(mix) / 2).astype(np.float32),
        )
        changed[name] = moved[name]
    second = adapter(tmp_path / "second", moved, alpha=32)
    assert run(capsys, "compare", first, second)[0] == 0
    down, up = changed["layers.0.v_proj"]
    up = up.copy()
    up[3, 1] *= 1.001
    changed["layers.0.v_proj"] = (down, up)
    third = adapter(tmp_path / "third", changed, alpha=32)
    code, out, _ = run(capsys, "compare", first, third, "--json")
    assert code == 1
    assert json.loads(out)["first_difference"].endswith("v_proj")
    assert run(capsys, "compare", first, LLAMA_A)[0] == 3


def test_adapters_of_different_rank(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    down, up = rng.standard_normal((2, 24)), rng.standard_normal((20, 2))
    first = adapter(tmp_path / "first", {"q_proj": (down, up)}, alpha=2)
    wide = (np.concatenate([down, np.zeros((2, 24))]), np.concatenate([up, up], axis=1))
    second = adapter(tmp_path / "second", {"q_proj": wide}, alpha=4)
    assert run(capsys, "compare", first, second)[0] == 0


def test_an_adapter_whose_rank_contradicts_its_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    factors = {"q_proj": (rng.standard_normal((2, 24)), rng.standard_normal((20, 2)))}
    path = adapter(tmp_path / "first", factors)
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    code, _, err = run(capsys, "compare", path, path)
    assert code == 3
    assert "rank 2" in err
