"""Every command and example of the documentation runs and prints what the page says."""

import shlex

import click
import numpy as np
import pytest
from scripts.doc_blocks import ROOT, blocks, commands, furnish, matches, run, run_python

from fiberscope.cli.main import cli
from tests.checkpoints.real_weights import minilm_directory, smollm2_gguf
from tests.docs.pages import FRAGMENTS, PAGES, RUN_ELSEWHERE, RUN_HERE

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("flint")
pytestmark = pytest.mark.torch

CHECKED = {"", "console", "python", "text"}


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
    rng = np.random.default_rng(0)
    shapes = {"Q": (4, 2), "K": (4, 2), "V": (4, 4)}
    network = {f"{n}{i}": rng.standard_normal(s) for i in (1, 2, 3) for n, s in shapes.items()}
    np.savez(tmp_path / "weights.npz", **network)
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


@pytest.mark.parametrize("page", RUN_HERE)
def test_usage_lines(page, monkeypatch):
    """Blocks without a language show usage with placeholders: the options must exist."""
    for block in blocks_of(page):
        for line in block.lines if block.language == "" else ():
            words = shlex.split(line.partition("#")[0])
            if words[:1] == ["python"]:
                assert (ROOT / words[1]).is_file(), line
            elif words[:1] == ["fiberscope"]:
                parse(words[1:], monkeypatch)


def parse(arguments, monkeypatch):
    """Parse a command line without running it; files need not exist."""
    group, name = cli, ""
    context = click.Context(cli)
    while isinstance(group, click.Group):
        name, group, arguments = group.resolve_command(context, arguments)
    for option in group.params:
        if isinstance(option.type, click.Path):
            monkeypatch.setattr(option.type, "exists", False)
    group.make_context(name, arguments)


def test_every_block_is_checked_somewhere():
    assert {*RUN_ELSEWHERE, *FRAGMENTS} <= set(PAGES)
    for test in RUN_ELSEWHERE.values():
        assert (ROOT / test).is_file()
    for page in RUN_HERE:
        assert {b.language for b in blocks_of(page) if b.file is None} <= CHECKED, page
