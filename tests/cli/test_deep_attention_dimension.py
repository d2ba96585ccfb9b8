import json
from pathlib import Path

import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["dimension", "deep-attention", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_certified_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--depth", "3", "--width", "4", "--rank", "2", "--tokens", "4",
        "--normalizer", "softmax", "--certify", "--json",
    )  # fmt: skip
    answer = json.loads(out)
    assert code == 0
    assert answer["schema"] == "fiberscope/dimension/1"
    assert (answer["parameters"], answer["dimension"], answer["status"]) == (96, 52, "certified")
    assert answer["lower_bound"] == answer["upper_bound"] == 52
    kernel = answer["kernel"]
    assert (kernel["factor"], kernel["interface"], kernel["union"]) == (12, 32, 44)
    assert kernel["unreached"] == kernel["unseen"] == 0


def test_numerical_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--widths", "5,4,1", "--ranks", "1,1")
    assert code == 0
    assert "23  (numerical)" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--depth", "2", "--width", "3", "--rank", "5"], "rank 5 above its input width 3"),
        (["--depth", "2", "--width", "3", "--rank", "2", "--tokens", "1"], "at least two tokens"),
        (["--depth", "2", "--rank", "2"], "the widths are missing"),
        (["--depth", "2", "--width", "3"], "give one of --rank and --ranks"),
        (["--widths", "3,x", "--rank", "2"], "whole numbers"),
        (["--widths", "3,3", "--rank", "2", "--normalizer", "relu"], "no normalizer is called"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert sentence in err and len(err.strip().splitlines()) == 1


def test_a_normalizer_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_normalizers.py").write_text(
        "from fiberscope.families.deep_attention import CustomNormalizer\n"
        "taylor = [1, 1, 0, 1] + [0] * 10\n"
        "value, slope = lambda s: 1 + s + s**3, lambda s: 1 + 3 * s**2\n"
        "cubic = CustomNormalizer('cubic', value, slope, taylor)\n"
        "plain = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    small = ["--depth", "2", "--width", "2", "--rank", "1", "--certify", "--json", "--normalizer"]
    code, out, _ = run(capsys, *small, "my_normalizers:cubic")
    assert (code, json.loads(out)["dimension"], json.loads(out)["status"]) == (0, 10, "certified")
    code, _, err = run(capsys, *small, "my_normalizers:plain")
    assert code == 3 and "is of type int" in err


def test_a_seemingly_clear_gap_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    # Float64 sees rank 7 with a gap of 4e5; a ball minor of size 9 excludes zero.
    arguments = ["--widths", "2,1,2,1", "--ranks", "1,1,1", "--heads", "1,1,2", "--tokens", "3"]
    code, out, _ = run(capsys, *arguments, "--json")
    answer = json.loads(out)
    assert (code, answer["dimension"], answer["upper_bound"]) == (0, 9, 9)


def test_a_lower_bound_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--widths", "2,4,2", "--ranks", "1,3", "--heads", "2,1", "--unnormalized"]
    arguments += ["--tokens", "2"]
    code, out, _ = run(capsys, *arguments, "--certify")
    assert code == 0 and "at least" in out and "(bounded)" in out
    code, out, _ = run(capsys, *arguments, "--certify", "--json")
    answer = json.loads(out)
    assert answer["status"] == "bounded" and answer["lower_bound"] < answer["upper_bound"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0 and "if float64 sees every direction" in out
