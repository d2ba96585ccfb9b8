"""Every command and example of the documentation runs and prints what the page says."""

import pytest
from scripts.doc_blocks import ROOT, blocks, commands, furnish, matches, run, run_python

from tests.checkpoints.real_weights import minilm_directory, smollm2_gguf
from tests.docs.pages import FRAGMENTS, PAGES, RUN_ELSEWHERE, RUN_HERE

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("flint")
pytestmark = pytest.mark.torch

RUNNABLE = {"console", "python", "text"}


def blocks_of(page):
    return blocks((ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def folder(page, tmp_path):
    """A folder that looks like the repository, with the models and files that the page names."""
    models = {
        "all-MiniLM-L6-v2": minilm_directory(),
        "SmolLM2-135M-Instruct.Q4_1.gguf": smollm2_gguf(),
    }
    furnish(tmp_path, (ROOT / page).read_text(encoding="utf-8"), models)
    return tmp_path


def console_cases():
    cases = []
    for page in RUN_HERE:
        for block in blocks_of(page):
            if block.language == "console":
                for command in commands(block):
                    name = f"{page}: {command.line}"
                    cases.append(pytest.param(page, command, "varies" in block.options, id=name))
    return cases


@pytest.mark.parametrize(("page", "command", "varies"), console_cases())
def test_command(page, command, varies, folder):
    finished = run(command.line, folder)
    assert finished.returncode == 0, finished.stderr
    if command.shown and not varies:
        assert matches(command.shown, finished.stdout.splitlines()), finished.stdout


@pytest.mark.parametrize(
    "page",
    [p for p in RUN_HERE if any(block.language == "python" for block in blocks_of(p))],
)
def test_python(page, folder):
    found = [b for b in blocks_of(page) if b.language in ("python", "text") and b.file is None]
    sources = [block.text for block in found if block.language == "python"]
    printed = iter(run_python(sources, folder))
    for number, block in enumerate(found):
        if block.language == "text":
            continue
        follows = found[number + 1] if number + 1 < len(found) else None
        shown = follows.text if follows and follows.language == "text" else ""
        assert next(printed) == shown


def test_every_block_is_checked_somewhere():
    assert {*RUN_ELSEWHERE, *FRAGMENTS} <= set(PAGES)
    for test in RUN_ELSEWHERE.values():
        assert (ROOT / test).is_file()
    for page in RUN_HERE:
        assert {b.language for b in blocks_of(page) if b.file is None} <= RUNNABLE, page
