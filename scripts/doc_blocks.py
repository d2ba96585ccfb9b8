"""The commands and Python examples of the documentation: finding them, running them, checking them.

A ``console`` block holds commands (lines that begin with ``$ ``) and what they print; a line
``[...]`` stands for any number of lines left out. A command's output must be exactly what the block
shows; where the block shows none, or is fenced ``console varies``, it is run only. A ``python``
block runs in one namespace with the earlier ones of its page; a ``text`` block right after it is
what it prints. A block fenced with ``file=NAME`` is a file that commands and examples can use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = "[...]"
SECONDS = 240
# `make` commands that cannot run inside a test, because they run the tests, take long or rewrite
# the pages, are checked up to the commands they would run.
PRELUDE = """
make() {
  local stamps=(-o "$PREFIX/.created" -o "$PREFIX/.light" -o "$PREFIX/.test" VENV="$PREFIX")
  case "$1" in
    test|bench|docs|install) command make --dry-run "${stamps[@]}" "$@" > /dev/null ;;
    *) command make "${stamps[@]}" "$@" ;;
  esac
}
"""
DRIVER = """
import contextlib, io, json, sys
space = {"__name__": "__main__"}
printed = []
for number, source in enumerate(json.load(sys.stdin)):
    with contextlib.redirect_stdout(io.StringIO()) as screen:
        exec(compile(source, f"block {number}", "exec"), space)
    printed.append(screen.getvalue())
json.dump(printed, sys.stdout)
"""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; ``first`` and ``last`` are the line numbers of its content."""

    language: str
    options: tuple[str, ...]
    lines: tuple[str, ...]
    first: int
    last: int

    @property
    def text(self) -> str:
        """The content with a line break at its end."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def file(self) -> str | None:
        """Name of the file that the block is, if it is one."""
        names = [option.removeprefix("file=") for option in self.options if "file=" in option]
        return names[0] if names else None


@dataclass(frozen=True)
class Command:
    """A command of a console block and the output that the block shows."""

    line: str
    shown: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a Markdown page."""
    found: list[Block] = []
    start: tuple[str, int] | None = None
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = (line[3:].strip(), number + 1)
        else:
            language, *options = start[0].split() or [""]
            content = tuple(lines[start[1] : number])
            found.append(Block(language, tuple(options), content, start[1], number))
            start = None
    if start is not None:
        raise ValueError(f"the block in line {start[1]} does not end")
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block in order."""
    found: list[Command] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append(Command(line[2:], ()))
        elif not found:
            raise ValueError(f"a console block begins with a command, not with {line!r}")
        elif found[-1].line.endswith("\\"):
            found[-1] = Command(f"{found[-1].line[:-1].rstrip()} {line.lstrip(' >')}", ())
        else:
            found[-1] = Command(found[-1].line, (*found[-1].shown, line))
    return found


def matches(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether the shown lines are the printed ones, up to lines left out."""
    if not shown:
        return not printed
    if shown[0] == LEFT_OUT:
        return any(matches(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


def furnish(folder: Path, page: str, models: dict[str, Path]) -> None:
    """Make a folder look like the root of the repository, with models and the page's files."""
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    for name, path in models.items():
        (folder / name).symlink_to(path)
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)


def environment() -> dict[str, str]:
    """Commands of this interpreter's environment, 100 columns, one thread."""
    return {
        **os.environ,
        "PREFIX": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "MAKEFLAGS": "",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command line in a folder; standard output and errors are kept apart."""
    return subprocess.run(
        ["bash", "-c", f"{PRELUDE}\n{line}"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_python(sources: list[str], folder: Path) -> list[str]:
    """Run Python blocks in one namespace; what each of them prints.

    Raises
    ------
    RuntimeError
        If a block fails, with its traceback.
    """
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER],
        input=json.dumps(sources),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr)
    printed: list[str] = json.loads(finished.stdout)
    return printed
