import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["spectrum", "deep-attention", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


SMALL = ["--depth", "2", "--width", "2", "--rank", "1"]


def test_json_keys_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--t", "0.02,0.01", "--noise", "0.01", "--json")
    answer = json.loads(out)
    assert code == 0 and "spectrum at t = 0.02" in err
    assert answer["schema"] == "fiberscope/spectrum/1"
    assert answer["kernel_dimension"] == 4 + 2
    assert [(b["order"], b["multiplicity"]) for b in answer["bands"]] == [(0, 4), (1, 3), (5, 3)]
    assert all(abs(s - b["order"]) < 0.2 for b in answer["bands"] for s in b["slopes"])
    values = answer["singular_values"]["0.01"]
    assert len(values) == 10 and all(isinstance(value, str) for value in values)
    eigenvalue = float(answer["fisher_information"]["eigenvalues"]["0.01"][-1])
    assert np.isclose(eigenvalue, (float(values[-1]) / 0.01) ** 2)
    assert set(answer["float64_rank_at_1e-10"]) == {"0.02", "0.01"}


def test_exact_orders(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SMALL, "--normalizer", "cosh", "--exact-orders", "--json")
    answer = json.loads(out)
    assert (code, answer["orders_from"], answer["kernel_dimension"]) == (0, "exact orders", 6)
    assert [(b["order"], b["multiplicity"]) for b in answer["bands"]] == [(0, 4), (3, 3), (11, 3)]


def test_exact_orders_over_the_rational_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--residual", "--exact-orders", "--json"]
    prime, rational = (
        json.loads(run(capsys, *arguments, *more)[1]) for more in ([], ["--rational"])
    )
    assert rational["orders_from"] == "exact orders over the rational numbers"
    assert rational["bands"] == prime["bands"]
    assert rational["kernel_dimension"] == prime["kernel_dimension"]


def test_files_plot_and_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    names = ("U1", "W1", "U2", "W2")
    np.savez(tmp_path / "path.npz", **{name: rng.standard_normal((2, 1)) for name in names})
    np.savez(tmp_path / "bank.npz", X=rng.standard_normal((4, 3, 2)))
    figure = tmp_path / "figure.svg"
    files = ["--path", str(tmp_path / "path.npz"), "--bank", str(tmp_path / "bank.npz")]
    code, out, err = run(capsys, *SMALL, *files, "--t", "0.1,0.05", "--plot", str(figure))
    assert code == 0 and figure.read_text().startswith("<?xml")
    assert (
        "4 inputs do not separate" in err and "smallest generic bank has 5 different inputs" in err
    )
    assert max(map(len, out.splitlines())) <= 100
    code, _, err = run(capsys, *SMALL, *files, "--t", "0.1", "--plot", str(figure))
    assert code == 3 and "exists" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--t", "0"], "at t = 0"),
        (["--t", "x"], "decimal numbers"),
        (["--t", "0.1,-0.1"], "lists a point twice"),
        ([], "give --t"),
        (["--t", "0.1", "--inputs", "1"], "cannot separate; give at least 5 inputs"),
        (["--t", "0.1", "--example", "matrix"], "--example is an architecture already"),
        (["--t", "0.1", "--inputs", "0"], "--inputs must be positive"),
        (["--t", "0.1", "--noise", "0"], "--noise must be positive"),
        (["--t", "0.1", "--bank", "missing.npz"], "there is no such file"),
        (["--t", "0.1", "--input-scale", "nan"], "must be positive, got nan"),
        (["--t", "0.1", "--input-scale", "-1"], "must be positive, got -1"),
        (["--t", "0.1", "--design", "known", "--inputs", "3"], "design at least 5 inputs"),
        (["--t", "0.1", "--design", "known", "--input-norm", "nan"], "must be positive, got nan"),
        (["--t", "0.1", "--design", "unknown", "--input-norm", "0"], "must be positive, got 0"),
        (["--t", "0.1", "--digits", "0"], "--digits must be positive"),
        (["--exact-orders", "--plot", "x.png"], "a plot needs points"),
        (["--t", "0.1", "--rational"], "goes with --exact-orders"),
        (["--exact-orders", "--rational", "--normalizer", "softplus"], "leave it out"),
        (["--exact-orders", "--rational", "--heads", "2"], "up to 24 parameters"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    code, out, err = run(capsys, *SMALL, *arguments)
    assert (code, out) == (3, "")
    assert sentence in err


@pytest.mark.parametrize("kind", ["identical", "zero", "one nonzero"])
def test_banks_that_cannot_separate_are_named_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    drawn = np.random.default_rng(0).standard_normal((12, 3, 2))
    if kind == "identical":
        drawn[:] = drawn[0]
    elif kind == "zero":
        drawn[:] = 0
    else:
        drawn[1:] = 0
    np.savez(tmp_path / "bank.npz", X=drawn)
    code, out, err = run(capsys, *SMALL, "--t", "0.1", "--bank", str(tmp_path / "bank.npz"))
    assert (code, out) == (3, "")
    assert "the bank cannot separate although other banks do; give at least 5 inputs" in err
    assert "spectrum at t" not in err


def test_repeated_inputs_are_counted_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawn = np.random.default_rng(0).standard_normal((4, 3, 2))
    # The same four inputs again, and with their tokens in another order: nothing new is seen.
    np.savez(tmp_path / "bank.npz", X=np.concatenate([drawn, drawn, drawn[:, ::-1]]))
    bank = ["--bank", str(tmp_path / "bank.npz")]
    code, out, err = run(capsys, *SMALL, "--exact-orders", "--json", *bank)
    answer = json.loads(out)
    assert (code, answer["inputs"], answer["distinct_inputs"]) == (0, 12, 4)
    assert answer["separates"] is False
    assert "these 12 inputs, of which 4 are different, do not separate" in err
    code, out, err = run(capsys, *SMALL, "--exact-orders", "--json")
    assert (json.loads(out)["separates"], err) == (True, "")
