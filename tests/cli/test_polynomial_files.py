"""`fiberscope fiber polynomial`, `canonicalize` and `compare` on weight files."""

import json

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def write(path, weights, **extra):
    path.write_text(json.dumps({"degree": 2, "weights": weights, **extra}))
    return path


ONE, SQUARE = [[1, 0], [0, 1]], [[1, 1], [1, -1]]


@pytest.fixture
def files(tmp_path):
    half = [["1/2", "1/2"], ["1/2", "-1/2"]]
    return {
        "first": write(tmp_path / "first.json", [ONE, SQUARE, ONE]),
        "second": write(tmp_path / "second.json", [SQUARE, half, [[1, 0], [1, -1]]]),
        "moved": write(
            tmp_path / "moved.json", [[[0, -2], [3, 0]], [["1/4", "1/9"], ["-1/4", "1/9"]], ONE]
        ),
        "other": write(tmp_path / "other.json", [ONE, SQUARE, [[1, 0], [0, 2]]]),
    }


def test_compare(capsys, files):
    code, out, err = run(capsys, "compare", files["first"], files["moved"], "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["schema"] == "fiberscope/compare/1"
    assert (found["outcome"], found["relation"]) == ("SAME", "SYMMETRY")
    assert found["witness"]
    code, out, _ = run(capsys, "compare", files["first"], files["second"], "--json")
    assert (code, json.loads(out)["relation"]) == (0, "IDENTITY")
    code, out, _ = run(capsys, "compare", files["first"], files["other"], "--json")
    found = json.loads(out)
    assert code == 1
    assert found["point"]
    assert found["first_value"] != found["second_value"]
    code, out, _ = run(capsys, "compare", files["first"], files["other"])
    assert code == 1
    assert "DIFFERENT" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_canonicalize_writes_a_file_that_reads_back(capsys, files, tmp_path):
    outs = [tmp_path / "a.json", tmp_path / "b.json"]
    for name, out in zip(("first", "moved"), outs, strict=True):
        code, shown, _ = run(capsys, "canonicalize", files[name], "--out", out)
        assert code == 0
        assert "exact" in shown
    assert outs[0].read_text() == outs[1].read_text()
    code, shown, _ = run(capsys, "canonicalize", outs[0], "--json")
    report = json.loads(shown)
    assert (code, report["moved"], report["deviation"]) == (0, False, 0.0)
    code, _, err = run(capsys, "canonicalize", files["first"], "--out", outs[0])
    assert code == 3
    assert "exists" in err


def test_npz_weights(capsys, tmp_path):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((3, 2)), rng.standard_normal((2, 3))
    np.savez(tmp_path / "a.npz", W1=first, W2=second, degree=3)
    scales = np.array([2.0, -0.5, 3.0])
    np.savez(
        tmp_path / "b.npz",
        W1=scales[::-1, None] * first[::-1],
        W2=second[:, ::-1] / scales[::-1] ** 3,
        degree=3,
    )
    code, out, _ = run(capsys, "compare", tmp_path / "a.npz", tmp_path / "b.npz", "--json")
    found = json.loads(out)
    assert (code, found["relation"], found["exact"]) == (0, "SYMMETRY", False)
    code, _, err = run(capsys, "compare", tmp_path / "a.npz", tmp_path / "b.npz", "--exact")
    assert code == 3
    assert "floating-point weights where rationals are needed" in err
    np.savez(tmp_path / "c.npz", W1=np.array([["1/3", "2"]]), W2=np.array([[5]]), degrees=[2])
    code, out, _ = run(capsys, "fiber", "polynomial", tmp_path / "c.npz", "--json")
    found = json.loads(out)
    assert (code, found["exact"], found["identifiable"]) == (0, True, "yes")


def test_fiber(capsys, tmp_path):
    path = write(tmp_path / "w.json", [[[1, 0], [0, 0], [-2, 0]], [[1, 2, 3]]], degree=3)
    code, out, err = run(capsys, "fiber", "polynomial", path, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["schema"] == "fiberscope/fiber/1"
    assert found["identifiable"] == "no"
    assert [neuron["kind"] for neuron in found["neurons"]] == ["inactive", "collinear"]
    assert found["neurons"][1]["factor"] == "-2"
    code, out, _ = run(capsys, "fiber", "polynomial", path)
    assert code == 0
    assert "collinear" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    biased = write(tmp_path / "b.json", [[[1.5, 0.25]], [[2]]], biases=[[0.5], [1]], degree=2)
    code, out, _ = run(capsys, "fiber", "polynomial", biased, "--json")
    found = json.loads(out)
    assert found["exact"] is False
    assert found["tolerance"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "no list 'weights'"),
        ('{"weights": [], "degree": 2}', "no weight matrix"),
        ('{"weights": [[[1, 2]], [[1, 2]]], "degree": 2}', "has 2 columns but matrix 1 has 1 rows"),
        ('{"weights": [[[1, 2], [1]], [[1, 2]]], "degree": 2}', "rows of different"),
        ('{"weights": [[[1, "x"]], [[1]]], "degree": 2}', "'x' is not a rational number"),
        ('{"weights": [[[1, "1e99999999"]], [[1]]], "degree": 2}', "is not a rational number"),
        ('{"weights": [[[1, "1/0"]], [[1]]], "degree": 2}', "is not a rational number"),
        ('{"weights": [[[1, null]], [[1]]], "degree": 2}', "None is not a number"),
        ('{"weights": [[[1, NaN]], [[1]]], "degree": 2}', "is not finite"),
        ('{"weights": [[[1, 2]], [[1]]]}', "no degree is given"),
        ('{"weights": [[[1, 2]], [[1]]], "degrees": [2, 2]}', "1 hidden layers but 2 degrees"),
        ('{"weights": [[[1, 2]], [[1]]], "degree": 1}', "at least 2"),
        ('{"weights": [[[1, 2]], [[1]]], "degree": "2"}', "whole numbers"),
        ('{"weights": [[[1, 2]], [[1]]], "activation": "generic"}', "must be 'monomial' or a"),
        ('{"weights": [[[1, 2]], [[1]]], "degree": 2, "biases": [[1]]}', "one vector for each"),
        ('{"weights": [[[1, 2]], [[1]]], "degree": 2, "family": "attention"}', "of the family"),
    ],
)
def test_bad_files_are_a_sentence(capsys, tmp_path, text, message):
    path = tmp_path / "w.json"
    path.write_text(text)
    code, out, err = run(capsys, "fiber", "polynomial", path)
    assert (code, out) == (3, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [("fiber", "polynomial"), ("canonicalize",), ("compare",)])
def test_overflow_is_a_sentence(capsys, tmp_path, command):
    path = write(tmp_path / "w.json", [[[1e300, 2.0]], [[1e300]]], degree=5)
    paths = (path, path) if command == ("compare",) else (path,)
    code, out, err = run(capsys, *command, *paths)
    assert (code, out) == (3, "")
    assert "rational" in err
    assert len(err.strip().splitlines()) == 1


def test_missing_files(capsys, tmp_path):
    for arguments in (
        ("fiber", "polynomial", tmp_path / "none.json"),
        ("canonicalize", tmp_path / "none.json"),
        ("compare", tmp_path / "none.json", tmp_path / "none.json"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (3, "")
        assert "none.json" in err
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    code, _, err = run(capsys, "compare", tmp_path / "bad.npz", tmp_path / "bad.npz")
    assert code == 3
    assert "cannot be read as npz" in err


def test_float_weights_that_rounding_leaves_open_are_exit_code_two(capsys, tmp_path):
    path = write(tmp_path / "tie.json", [[[1.0, 2.0], [1.0, 2.00000003]], [[1, 3]]], degree=3)
    code, out, _ = run(capsys, "fiber", "polynomial", path)
    assert code == 2
    assert "undecided" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    code, out, _ = run(capsys, "fiber", "polynomial", path, "--json")
    found = json.loads(out)
    assert (code, found["identifiable"], found["jacobian_rank"]) == (2, "undecided", None)


def test_float_comparisons_are_numerical(capsys, tmp_path):
    rows = [[1.0, 0.0], [0.0, 1e-5]]
    first = write(tmp_path / "one.json", [rows, [[1, 1]]], degree=3)
    second = write(tmp_path / "two.json", [rows, [[1, 2]]], degree=3)
    code, out, _ = run(capsys, "compare", first, second, "--json")
    assert (code, json.loads(out)["outcome"]) == (1, "DIFFERENT")
    moved = write(tmp_path / "moved.json", [[[1.0, 0.0], [0.0, 1e-4]], [[1, 1e-3]]], degree=3)
    code, out, _ = run(capsys, "compare", first, moved, "--json")
    found = json.loads(out)
    assert (code, found["relation"]) == (0, "SYMMETRY")
    assert "numerical" in found["certainty"]


@pytest.mark.parametrize(
    ("rows", "out", "message"),
    [
        ([[1, int("7" * 3000)]], [[1]], "weights beyond float64"),
        ([[1, int("7" * 400)]], [[1.5]], "beyond float64"),
        ([[1, "7" * 9000]], [[1]], "not a rational number"),
    ],
)
def test_huge_numbers_are_a_sentence(capsys, tmp_path, rows, out, message):
    path = write(tmp_path / "huge.json", [rows, out])
    code, shown, err = run(capsys, "fiber", "polynomial", path)
    assert (code, shown) == (3, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_an_integer_with_too_many_digits_is_a_sentence(capsys, tmp_path):
    path = tmp_path / "huge.json"
    path.write_text('{"degree": 2, "weights": [[[1, ' + "7" * 6000 + "]], [[1]]]}")
    for words in (("fiber", "polynomial"), ("canonicalize",)):
        code, out, err = run(capsys, *words, path)
        assert (code, out) == (3, "")
        assert "an integer has 6000 digits" in err
        assert len(err.strip().splitlines()) == 1


def test_exact_values_of_any_length_are_written(capsys, tmp_path):
    rows = [[1, int("7" * 30)], [2, 1]]
    first = write(tmp_path / "one.json", [rows, [[1, 1]]], degree=1000)
    second = write(tmp_path / "two.json", [rows, [[1, 3]]], degree=1000)
    for more in ((), ("--json",)):
        code, _, err = run(capsys, "compare", first, second, *more)
        assert (code, err) == (1, "")
