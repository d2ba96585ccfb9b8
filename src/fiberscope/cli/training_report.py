"""`fiberscope training report`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.output import check_new_file, console, print_json, print_text, write_file

EPILOG = """\b
Examples:
  fiberscope training report run.jsonl
  fiberscope training report run.jsonl --html report.html
  fiberscope training report run.jsonl --json
"""


@click.command("report", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN.jsonl")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write one HTML page."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
def command(run: Path, as_json: bool, html: Path | None, overwrite: bool) -> int:
    """How much of a monitored run's updates did nothing, by mechanism and layer.

    RUN.jsonl is what `fiberscope.training.SymmetryMonitor` wrote.
    """
    if html is not None:
        check_new_file(html, overwrite)
    from fiberscope.report.training_run import training_run

    found = training_run(run)
    if html is not None:
        from fiberscope.report.training_html import page

        write_file(html, page(found), overwrite)
    if as_json:
        print_json(found.to_dict())
        return 0
    from fiberscope.report.training_terminal import render, to_text

    screen = console()
    if screen.is_terminal:
        render(found, screen)
    else:
        print_text(to_text(found, screen.width))
    return 0
