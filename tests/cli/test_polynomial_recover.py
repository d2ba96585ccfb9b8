"""`fiberscope recover polynomial`."""

import json

import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["recover", "polynomial", *map(str, arguments)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "w.json"
    path.write_text(
        json.dumps({"degree": 3, "weights": [[[1, "1/2"], [2, -3]], [["2/7", 1], [1, 5]]]})
    )
    return path


def test_weight_file_as_an_oracle(capsys, weights, tmp_path):
    out = tmp_path / "found.json"
    code, shown, err = run(capsys, "--oracle", weights, "--out", out, "--json")
    found = json.loads(shown)
    assert (code, err) == (0, "")
    assert found["schema"] == "fiberscope/recover/1"
    assert (found["outcome"], found["precision_bits"]) == ("RECOVERED", "inf")
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(weights), str(out), "--exact", "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["relation"] == "SYMMETRY"
    code, shown, _ = run(capsys, "--oracle", weights, "--float")
    assert code == 0
    assert "precision bits" in shown
    assert max(len(line) for line in shown.splitlines()) <= 100


def test_function_as_an_oracle(capsys, tmp_path, monkeypatch):
    (tmp_path / "cubic_oracle.py").write_text(
        "def answer(x):\n    return [(x[0] + 2 * x[1]) ** 3 - (x[0] - x[1]) ** 3 / 5]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("--oracle", "cubic_oracle:answer", "--widths", "2,2,1", "--degree", "3")
    code, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parameters"]["weights"] == [[["1", "-1"], ["1", "2"]], [["-1/5", "1"]]]


def test_undecided_is_exit_code_two(capsys, tmp_path):
    path = tmp_path / "w.json"
    rows = [[1, 2, 3, 4], [2, 1, 1, 1], [3, 1, 5, 2], [1, 1, 7, 2], [2, 9, 1, 3]]
    path.write_text(json.dumps({"degree": 3, "weights": [rows, [[1, 2, 3, 4, 5]]]}))
    code, out, _ = run(capsys, "--oracle", path, "--seconds", "0", "--json")
    assert code == 2
    assert json.loads(out)["outcome"] == "UNDECIDED"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--oracle", "math:sqrt"), "widths are missing"),
        (
            (
                "--oracle",
                "math:sqrt",
                "--widths",
                "1,2,1",
                "--degree",
                "2",
                "--activation",
                "generic",
            ),
            "activation must be known",
        ),
        (("--oracle", "nothing"), "neither a weight file"),
        (("--oracle", "none.json"), "cannot be read"),
    ],
)
def test_bad_input(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert message in err


def test_an_oracle_that_raises_is_a_sentence(capsys, tmp_path, monkeypatch):
    (tmp_path / "raising_oracle.py").write_text("def boom(x):\n    raise KeyError('no\\nanswer')\n")
    (tmp_path / "broken_oracle.py").write_text("def boom(x:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module, words in (("raising_oracle", "raised KeyError"), ("broken_oracle", "SyntaxError")):
        arguments = ("--oracle", f"{module}:boom", "--widths", "2,2,1", "--degree", "3")
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (3, "")
        assert words in err
        assert len(err.strip().splitlines()) == 1
