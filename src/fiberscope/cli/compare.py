"""`fiberscope compare`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.output import console, print_json
from fiberscope.cli.polynomial_files import compare_files, is_polynomial_file
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.errors import InputError


@click.command("compare")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--exact", is_flag=True, help="Refuse floating-point weights.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(first: Path, second: Path, exact: bool, seed: int, as_json: bool) -> int:
    """Tell whether FIRST and SECOND compute the same function, and what relates them.

    Both are JSON or npz files of polynomial networks. SAME comes with a witness or a proof,
    DIFFERENT with a point where the values differ.
    """
    for path in (first, second):
        if not is_polynomial_file(path) or not path.is_file():
            raise InputError(
                f"{path} is no weight file: give the .json or .npz file of a polynomial network"
            )
    found, report = compare_files(first, second, exact, seed)
    if as_json:
        print_json({"schema": "fiberscope/compare/1", "family": "polynomial", **report})
        return found.outcome.exit_code
    from rich.table import Table

    table = Table(title="Comparison of two polynomial networks", show_header=False)
    for label, architecture in zip(("first", "second"), report["architectures"], strict=True):
        table.add_row(label, architecture)
    table.add_row("outcome", f"{found.outcome.name}: {found.reason}")
    table.add_row("certainty", found.certainty)
    for symmetry, element in found.witness:
        table.add_row("witness", f"{symmetry.name}: {_short(element)}")
    if found.point:
        table.add_row("at the point", ", ".join(map(str, found.point)))
        table.add_row("first value", ", ".join(map(str, found.first_value)))
        table.add_row("second value", ", ".join(map(str, found.second_value)))
    console().print(table)
    return found.outcome.exit_code


def _short(element: object) -> str:
    import numpy as np

    parts = element if isinstance(element, tuple) else (element,)
    shown = "; ".join(
        ", ".join(str(entry) for entry in np.asarray(part).reshape(-1)) for part in parts
    )
    return shown if len(shown) <= 200 else shown[:197] + "..."
