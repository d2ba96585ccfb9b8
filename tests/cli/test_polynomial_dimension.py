"""`fiberscope dimension polynomial`."""

import csv
import json
import subprocess
import sys
import time

import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_json_is_one_object(capsys):
    code, out, err = run(
        capsys,
        *"dimension polynomial --widths 2,3,4,5,4,6,4,1 --degree 2 --json".split(),
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["schema"] == "fiberscope/dimension/1"
    assert (found["parameters"], found["dimension"], found["status"]) == (110, 65, "PROVED")
    assert (found["expected"], found["defect"], found["filling"]) == (65, 0, True)
    assert set(found["notions"]) == {"finite", "one_orbit", "every"}
    assert found["notions"]["finite"]["answer"] == "no"


def test_the_three_notions_are_kept_apart(capsys):
    _, out, _ = run(capsys, *"dimension polynomial --widths 3,3,2,2 --degree 2 --json".split())
    notions = json.loads(out)["notions"]
    assert [notions[n]["answer"] for n in ("finite", "one_orbit", "every")] == [
        "yes",
        "not covered",
        "not covered",
    ]
    assert all(item["holds"] for item in notions["finite"]["hypotheses"])


def test_table_for_people(capsys):
    code, out, _ = run(capsys, *"dimension polynomial --widths 2,8,3,5,7,8,4,2 --degree 2".split())
    assert code == 0
    assert "PROBABLE" in out
    assert "error probability" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_files_in_and_out(capsys, tmp_path):
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(
        'widths,degrees,activation,bias\n2 2 1,3,,\n"2,3,3,1","3,3",monomial,0\n'
        "2 2 1,,z^3+z^2,\n2 2 1,3,generic,1\n"
    )
    arguments = ["dimension", "polynomial", "--file", str(source), "--out", str(target)]
    code, out, err = run(capsys, *arguments, "--jobs", "2")
    assert (code, out) == (0, "")
    assert "4 of 4 dimensions are proved" in err
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert [int(row["dimension"]) for row in rows] == [4, 10, 6, 9]
    assert [row["finite"] for row in rows] == ["yes", "no", "yes", "yes"]
    code, _, err = run(capsys, *arguments, "--jobs", "1")
    assert code == 3
    assert "exists" in err
    code, again, _ = run(capsys, "dimension", "polynomial", "--file", str(source), "--jobs", "1")
    assert again == target.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--widths 2,0,1 --degree 2", "every width must be at least 1"),
        ("--widths 2,-3,1 --degree 2", "every width must be at least 1"),
        ("--widths 2,2,1 --degree 1", "at least 2"),
        ("--widths 2,2,2,1 --degrees 2", "2 hidden layers but 1 degrees"),
        ("--widths 2,2,2,1 --degrees 2,2,2", "2 hidden layers but 3 degrees"),
        ("--widths 2,2,1 --degree 2 --degrees 2", "not both"),
        ("--degree 2", "widths are missing"),
        ("--widths 2,x,1 --degree 2", "whole numbers"),
        ("--widths 2,3,3,1 --degree 3 --primes 7", "not above the total degree 9"),
        ("--widths 2,3,3,1 --degree 3 --primes 91", "not a prime"),
        ("--widths 2,3,3,1 --degree 3 --primes 4294967311", "is not below 2^31"),
        ("--widths 60,60,60,60 --degree 3", "beyond the 5000 that fit into memory"),
        ("--widths 2,2,1 --activation z^3+1/11*z --primes 11", "divides a denominator"),
        ("--widths 2,2,1 --activation z^^3", "cannot be read"),
        ("--file missing.csv", "cannot be read"),
        ("--widths 2,2,1 --degree 2 --out x.csv", "go with --file"),
        ("--file missing.csv --json", "--file answers with a CSV"),
        ("--widths 2,99999999999999999999,1 --degree 2", "a width is above 1000000000"),
        ("--widths 1,9223372036854775807,1 --degree 2", "a width is above 1000000000"),
        ("--widths 100000000,2,1 --degree 2", "beyond the 1000000 that are sampled"),
        ("--widths 2,3,1 --activation (z+1)^9999", "its degree is above 2000"),
        ("--widths 2,3,1 --activation (z+1)^1500*(z-1)^1500", "its degree is above 2000"),
        ("--widths 2,3,1 --activation z^2+" + "7" * 6000, "more than 1000 digits"),
    ],
)
def test_bad_input_is_a_sentence(capsys, arguments, message):
    code, out, err = run(capsys, "dimension", "polynomial", *arguments.split())
    assert (code, out) == (3, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_bad_line_of_a_table_is_named(capsys, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("widths,degree\n2 2 1,2\n2 0 1,2\n")
    code, _, err = run(capsys, "dimension", "polynomial", "--file", str(source))
    assert code == 3
    assert "line 3" in err
    source.write_text("width,degree\n2 2 1,2\n")
    code, _, err = run(capsys, "dimension", "polynomial", "--file", str(source))
    assert code == 3
    assert "no column 'widths'" in err


def test_one_architecture_is_instant():
    """About a hundred parameters, start-up included: processor time of a fresh process."""
    code = (
        "import resource, sys; from fiberscope.cli.main import main\n"
        "try: main('dimension polynomial --widths 2,3,4,5,4,6,4,1 --degree 2 --json'.split())\n"
        "except SystemExit: pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["dimension"] == 65
    assert float(done.stderr) < 2.0
    assert time.perf_counter() - start < 20.0


def test_missing_python_flint_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    code, out, err = run(capsys, *"dimension polynomial --widths 2,2,1 --degree 2".split())
    assert (code, out) == (3, "")
    assert "pip install 'fiberscope[exact]'" in err
    assert len(err.strip().splitlines()) == 1


def test_a_table_does_not_replace_its_input(capsys, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("widths,degree\n2 2 1,2\n")
    before = source.read_text()
    arguments = ["--file", str(source), "--out", str(source), "--overwrite"]
    code, _, err = run(capsys, "dimension", "polynomial", *arguments)
    assert code == 3
    assert "is the table that is read" in err
    assert source.read_text() == before


def test_wide_layers_need_no_memory(capsys):
    """Binary quadratic forms have three coefficients, whatever the width."""
    arguments = "dimension polynomial --widths 2,100000000,1 --degree 2 --json".split()
    start = time.perf_counter()
    code, out, _ = run(capsys, *arguments)
    found = json.loads(out)
    assert (code, found["dimension"], found["status"]) == (0, 3, "PROVED")
    assert found["parameters"] == 300_000_000
    assert time.perf_counter() - start < 20


def test_long_powers_are_expanded_quickly(capsys):
    start = time.perf_counter()
    arguments = "dimension polynomial --widths 1,2,1 --activation (z+1)^2000 --bias --json".split()
    code, out, _ = run(capsys, *arguments)
    # With biases the power can be shifted: 7 parameters minus two rescalings.
    assert (code, json.loads(out)["dimension"]) == (0, 5)
    assert time.perf_counter() - start < 20
