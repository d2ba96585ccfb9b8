"""`fiberscope canonicalize`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.output import check_new_file, console, print_json, write_file
from fiberscope.cli.polynomial_files import canonicalize_file, is_polynomial_file
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.errors import InputError


@click.command("canonicalize")
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="File to write the form to.")
@click.option("--overwrite", is_flag=True, help="Replace the file that --out names.")
@click.option("--exact", is_flag=True, help="Refuse floating-point weights.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(
    weights: Path, out: Path | None, overwrite: bool, exact: bool, seed: int, as_json: bool
) -> None:
    """Bring WEIGHTS to their canonical form: the same for all points of an orbit.

    WEIGHTS is a JSON or npz file of a polynomial network. The function is checked before and
    after; without --out nothing is written.
    """
    if out is not None:
        check_new_file(out, overwrite)
    if not is_polynomial_file(weights) or not weights.is_file():
        raise InputError(
            f"{weights} is no weight file: give the .json or .npz file of a polynomial network"
        )
    report, text = canonicalize_file(weights, exact, seed)
    if out is not None:
        write_file(out, text, overwrite)
    if as_json:
        print_json({"schema": "fiberscope/canonicalize/1", "family": "polynomial", **report})
        return
    from rich.table import Table

    table = Table(title=f"Canonical form of {report['architecture']}", show_header=False)
    table.add_row("changed", "yes" if report["moved"] else "no, it was canonical already")
    table.add_row("widths used", ", ".join(map(str, report["widths"])))
    for reason in ("inactive", "redundant", "collinear"):
        table.add_row(f"{reason} neurons removed", str(report[reason]))
    if report["last_layer_decomposed"]:
        table.add_row("last layer", "decomposed anew from its quadratic form")
    arithmetic = "exact" if report["exact"] else f"float64, deviation {report['deviation']:.1e}"
    table.add_row("arithmetic", arithmetic)
    for tie in report["ties"]:
        table.add_row("tie", tie)
    table.add_row("complete", report["complete_means"])
    table.add_row("written to", str(out) if out is not None else "nothing: add --out FILE")
    console().print(table)
