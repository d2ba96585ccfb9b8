"""`fiberscope independence`."""

import json

import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["independence", *arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_json(capsys):
    code, out, err = run(capsys, "z^3+z+1", "--compose", "z,z+1,z+2,z+3,z+4", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["schema"] == "fiberscope/independence/1"
    assert found["answer"] == "IMPOSSIBLE"
    assert found["relation"] == [1, -4, 6, -4, 1]
    assert found["conjecture"] == "REFUTED"


def test_table(capsys):
    code, out, _ = run(capsys, "z^3+z+1", "--compose", "z,2*z+1,z^2", "--field", "C")
    assert code == 0
    assert "INDEPENDENT" in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    "arguments",
    [
        ("z^3+z", "--compose", "z,w"),
        ("(z+1)^3000", "--compose", "z,2*z"),
        ("z^^3", "--compose", "z"),
        ("z^3", "--compose", "z,,z"),
        ("z^3",),
        ("7", "--compose", "z"),
    ],
)
def test_bad_input(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert "Traceback" not in err
