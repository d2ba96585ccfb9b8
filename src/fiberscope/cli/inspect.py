"""`fiberscope inspect`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.output import (
    check_new_file,
    console,
    print_json,
    print_text,
    progress,
    write_file,
)
from fiberscope.errors import InputError

OBSERVABLES = ("logits", "probabilities", "hidden")
EXIT_DISAGREEMENT = 2

EPILOG = """\b
Examples:
  fiberscope inspect --example
  fiberscope inspect path/to/model --html report.html
  fiberscope inspect config.json --observable probabilities --json
  fiberscope inspect model.gguf --verify
"""


@click.command("inspect", epilog=EPILOG)
@click.argument("path", required=False)
@click.option(
    "--example",
    is_flag=False,
    flag_value="gpt2",
    metavar="[NAME]",
    help="Inspect a checkpoint that ships with the package: gpt2, llama-a or llama-b.",
)
@click.option(
    "--observable",
    type=click.Choice(OBSERVABLES),
    help="What is observed on every input [default: logits, or hidden for a class without a head].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one HTML page."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--verify",
    "check_twin",
    is_flag=True,
    help="Measure a toy of the same class against the rules (needs torch and transformers).",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For --verify."
)
@click.option(
    "--assume-harmless",
    multiple=True,
    metavar="KEY",
    help="A key of config.json that changes nothing although it is not known; repeatable.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    path: str | None,
    example: str | None,
    observable: str | None,
    as_json: bool,
    html: Path | None,
    overwrite: bool,
    check_twin: bool,
    seed: int,
    assume_harmless: tuple[str, ...],
    quiet: bool,
) -> int:
    """What the function of a checkpoint determines about its parameters.

    PATH is a Hugging Face directory (config.json and safetensors), a bare config.json (no weights
    needed), a .safetensors file beside its config.json, a .gguf file of a Llama model, or a hub id.

    Exit codes: 0 done, 2 the twin check disagrees, 3 bad input or usage.
    """
    location = _location(path, example)
    if html is not None:
        check_new_file(html, overwrite)
    from fiberscope.report.inspection_report import inspect

    with progress(quiet) as tick:
        report = inspect(
            location,
            observable,
            check_twin=check_twin,
            seed=seed,
            assumed_harmless=assume_harmless,
            progress=tick,
        )
    if html is not None:
        write_file(html, report.to_html(), overwrite)
    if as_json:
        print_json(report.to_dict())
    else:
        from fiberscope.report.inspect_terminal import render

        screen = console()
        if screen.is_terminal:
            render(report, screen)
        else:
            print_text(report.to_text(screen.width))
    if report.twin is not None and not report.twin.agrees:
        click.echo("fiberscope: the twin check disagrees with the rules; see evidence", err=True)
        return EXIT_DISAGREEMENT
    return 0


def _location(path: str | None, example: str | None) -> str | Path:
    if (path is None) == (example is None):
        raise InputError("inspect needs either a PATH or --example; see fiberscope inspect --help")
    if example is not None:
        from fiberscope.examples import example_path

        return example_path(example)
    assert path is not None
    return path
