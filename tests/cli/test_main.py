"""The command itself: instant help, one-line errors, exit codes, public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fiberscope
from fiberscope.cli import main as module
from fiberscope.errors import InputError

HEAVY = ("torch", "transformers", "matplotlib", "scipy", "numpy", "safetensors", "gguf", "rich")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fiberscope", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def imported(*arguments: str) -> set[str]:
    """Top-level packages that a run of Python imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0
    names = [line.rsplit("|", 1)[-1].strip() for line in finished.stderr.splitlines()]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "fiberscope", "--help"),
        ("-m", "fiberscope", "--version"),
        ("-m", "fiberscope", "inspect", "--help"),
        ("-c", "import fiberscope; dir(fiberscope)"),
    ],
    ids=["help", "version", "inspect help", "import"],
)
def test_nothing_heavy_is_imported_for_help(arguments: tuple[str, ...]) -> None:
    assert not imported(*arguments) & set(HEAVY)


def test_help_lists_every_command() -> None:
    finished = run("--help")
    assert finished.returncode == 0
    assert finished.stderr == ""
    for name in module.COMMANDS:
        assert f"  {name} " in finished.stdout


def test_every_command_in_the_table_can_be_imported() -> None:
    def check(table: module.Table, context: module.click.Context) -> None:
        group = module.LazyGroup("any", table=table)
        for name, (_, second) in table.items():
            assert group.get_command(context, name) is not None
            if not isinstance(second, str):
                check(second, context)

    check(module.COMMANDS, module.click.Context(module.cli))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspekt"], "no such command 'inspekt' (did you mean 'inspect'?); see fiberscope --help"),
        (["zzz"], "no such command 'zzz'; see fiberscope --help"),
        (["--vresion"], "(did you mean '--version'?)"),
        (["dimension", "polinomial"], "(did you mean 'polynomial'?)"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], words: str) -> None:
    finished = run(*arguments)
    assert finished.returncode == 3
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("fiberscope: ")
    assert words in finished.stderr


def test_no_command_shows_the_help() -> None:
    finished = run()
    assert finished.returncode == 3
    assert "Commands:" in finished.stderr


def test_interruption_is_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fiberscope.report.inspection_report.inspect_checkpoint", interrupted)
    with pytest.raises(SystemExit) as stopped:
        module.main(["inspect", "--example"])
    assert stopped.value.code == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == "fiberscope: interrupted"


def test_public_names() -> None:
    for name in fiberscope.__all__:
        assert getattr(fiberscope, name) is not None
    assert fiberscope.InputError is InputError
    assert set(fiberscope.__all__) <= set(dir(fiberscope))
    with pytest.raises(AttributeError, match="no attribute 'inspekt'"):
        _ = fiberscope.inspekt


def test_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m fiberscope --help | true; echo ${{PIPESTATUS[0]}}"
    finished = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.stdout.strip() == "0"
    assert "Traceback" not in finished.stderr


def test_typed() -> None:
    assert (Path(fiberscope.__file__).parent / "py.typed").is_file()
