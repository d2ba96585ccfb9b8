import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.fixture
def weights(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    shapes = {"Q1": (2, 1), "K1": (2, 1), "V1": (2, 2), "Q2": (2, 1), "K2": (2, 1), "V2": (2, 2)}
    np.savez(tmp_path / "weights.npz", **{k: rng.standard_normal(s) for k, s in shapes.items()})
    return str(tmp_path / "weights.npz")


def test_fiber(capsys: pytest.CaptureFixture[str], weights: str) -> None:
    code, out, _ = run(capsys, "fiber", "deep-attention", weights, "--evidence", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "fiberscope/fiber/1")
    assert (answer["outcome"], answer["determined_scores"]) == ("complete", [1, 2])
    assert (answer["taylor_order"], answer["contact_orders"]) == (7, [1, 5])
    assert answer["native_freedom"] == {"factor": 2, "interface": 4, "union": 6}
    assert answer["evidence"]["dimension_upper_bound"] == 0
    code, out, _ = run(capsys, "fiber", "deep-attention", weights, "--normalizer", "cosh")
    assert code == 0 and "determined up to independent signs" in out
    assert max(map(len, out.splitlines())) <= 100


def test_recover_a_weights_file(capsys: pytest.CaptureFixture[str], weights: str) -> None:
    code, out, _ = run(capsys, "recover", "deep-attention", "--oracle", weights, "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "fiberscope/recover/1")
    with np.load(weights) as stored:
        readout = stored["V2"] @ stored["V1"]
        first = stored["Q1"] @ stored["K1"].T
        second = stored["V1"].T @ stored["Q2"] @ stored["K2"].T @ stored["V1"]
    assert np.allclose(np.array(answer["L"], dtype=float), readout)
    assert np.allclose(np.array(answer["M"], dtype=float), [first, second])
    assert float(answer["error_bound"]) < 1e-30
    assert answer["evaluations"] > 8 and answer["digits"] > 100


def test_recover_from_a_function(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret_layer.py").write_text(
        "def network(inputs, bits):\n"
        "    x, y = inputs[0][0], inputs[1][0]\n"
        "    out = []\n"
        "    for q in (x, y):\n"
        "        a, b = (3 * q * x).exp(), (3 * q * y).exp()\n"
        "        out.append([2 * (a * x + b * y) / (a + b)])\n"
        "    return out\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["recover", "deep-attention", "--oracle", "secret_layer:network", "--width", "1"]
    code, out, _ = run(capsys, *arguments, "--depth", "1")
    assert code == 0 and "2.0000000000" in out and "3.0000000000" in out
    code, _, err = run(capsys, *arguments)
    assert code == 3 and "needs --depth and --width" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fiber", "deep-attention", "missing.npz"], "there is no such file"),
        (["recover", "deep-attention", "--oracle", "missing.npz"], "there is no such file"),
        (["recover", "deep-attention", "--oracle", "no_module:f", "--depth", "1", "--width", "1"],
         "cannot be loaded"),
        (["recover", "deep-attention", "--oracle", "x.npz", "--digits", "0"], "must be positive"),
    ],
)  # fmt: skip
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert sentence in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("tolerance", ["nan", "-1", "1", "inf"])
def test_tolerances_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], weights: str, tolerance: str
) -> None:
    code, out, err = run(capsys, "fiber", "deep-attention", weights, "--tolerance", tolerance)
    assert (code, out) == (3, "")
    assert "from 0 to below 1" in err and len(err.strip().splitlines()) == 1


def test_files_that_are_no_npz(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "garbage.npz").write_bytes(bytes(range(256)) * 8)
    np.save(tmp_path / "single.npy", np.eye(2))
    np.savez(tmp_path / "objects.npz", L=np.array([[None]]), M1=np.eye(1))
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "cut.npz", L=np.eye(40), M1=np.eye(40))
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("garbage.npz", "single.npy", "objects.npz", "empty.npz", "cut.npz"):
        code, out, err = run(capsys, "fiber", "deep-attention", str(tmp_path / name))
        assert (code, out) == (3, "")
        assert "is not an npz file" in err and "numpy.savez" in err
        assert "pickle" not in err and len(err.strip().splitlines()) == 1
