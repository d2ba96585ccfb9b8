"""Every command and file of the pages on polynomial networks works."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint")

from fiberscope.cli.main import main
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.filling import is_unimodal
from fiberscope.families.polynomial.jacobian_rank import rank_modulo

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("polynomial-*.md"))


def blocks(page):
    return re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ran = 0
    for language, options, text in blocks(page):
        named = re.search(r"file=(\S+)", options)
        if named:
            (tmp_path / named[1]).write_text(text)
        elif language == "python":
            exec(compile(text, str(page), "exec"), {})
        elif language == "console":
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("$ "))
                if words[0] != "fiberscope":
                    # A benchmark: its script is there.
                    script = next(word for word in words if word.endswith(".py"))
                    assert (DOCS.parent / script).is_file()
                    continue
                with pytest.raises(SystemExit) as stop:
                    main(words[1:])
                captured = capsys.readouterr()
                assert stop.value.code == 0, (line, captured.err)
                assert captured.out or "--out" in words
                ran += 1
    assert ran or page.name in {"polynomial-benchmarks.md", "polynomial-filling.md"}


def test_certificates_of_the_filling_lists():
    """At other random points than those that found them; every fifteenth line of each list."""
    rng = np.random.default_rng(0)
    lists = [b for b in blocks(DOCS / "polynomial-filling.md") if b[0] == "text"]
    assert len(lists) == 4
    for _, options, text in lists:
        degree = int(options.split("=")[1])
        for line in text.splitlines()[::15]:
            widths, prime = line.split()[:2]
            architecture = Architecture.build([int(d) for d in widths.split(",")], degree)
            found = rank_modulo(architecture, architecture.ambient, rng, int(prime))
            assert found.rank == architecture.ambient
            assert ("*" in line) is not is_unimodal(architecture.widths)


def test_pages_are_there_and_linked():
    names = {page.name for page in PAGES}
    assert names == {
        "polynomial-benchmarks.md",
        "polynomial-filling.md",
        "polynomial-networks.md",
        "polynomial-weights.md",
    }
    for page in PAGES:
        for target in re.findall(r"\]\(([\w-]+\.md)\)", page.read_text()):
            assert (DOCS / target).is_file()
