"""`fiberscope training report` from end to end."""

import json

import pytest

from fiberscope.cli.main import main
from tests.training.report_records import file_of, measurement, start


@pytest.fixture
def record(tmp_path):
    records = [start(), *(measurement(step) for step in (1, 4, 16))]
    return file_of(tmp_path / "run.jsonl", records)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["training", "report", *map(str, arguments)])
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def test_terminal(capsys, record):
    code, out, err = run(capsys, record)
    assert (code, err) == (0, "")
    assert "2.33 %" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_html(capsys, record, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = run(capsys, record, "--json", "--html", page)
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "fiberscope/training-report/1"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    code, out, err = run(capsys, record, "--html", page)
    assert (code, out) == (3, "") and "--overwrite" in err
    assert run(capsys, record, "--html", page, "--overwrite")[0] == 0


@pytest.mark.parametrize("content", [None, "nothing\n", ""])
def test_bad_files_get_one_sentence_and_write_nothing(capsys, tmp_path, content):
    path, page = tmp_path / "run.jsonl", tmp_path / "page.html"
    if content is not None:
        path.write_text(content)
    code, out, err = run(capsys, path, "--html", page)
    assert (code, out) == (3, "")
    assert err.startswith("fiberscope: ") and len(err.splitlines()) == 1
    assert not page.exists()
