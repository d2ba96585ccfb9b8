"""`fiberscope compare`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.memory import keep_freed_pages
from fiberscope.cli.output import check_new_file, console, print_json, progress, write_file
from fiberscope.cli.polynomial_files import compare_files, is_polynomial_file
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.errors import InputError


@click.command("compare")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option(
    "--witness",
    type=click.Path(path_type=Path),
    help="Write the transformation to this file (.npz) when the verdict is SAME.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a one-file HTML report.")
@click.option("--overwrite", is_flag=True, help="Replace files that --witness or --html name.")
@click.option(
    "--observable",
    type=click.Choice(["logits", "probabilities", "hidden"]),
    help="What is observed of checkpoints [default: logits, or hidden for a class without a head].",
)
@click.option("--exact", is_flag=True, help="Polynomial networks: refuse floating point.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(
    first: Path,
    second: Path,
    witness: Path | None,
    html: Path | None,
    overwrite: bool,
    observable: str | None,
    exact: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Tell whether FIRST and SECOND compute the same function, and what relates them.

    Both are checkpoints (directories, safetensors or GGUF files, hub ids), LoRA adapters, or
    weight files of polynomial networks. SAME (exit code 0) comes with a witness, DIFFERENT (1)
    with the first difference and a distance, UNDECIDED (2) with the reason.
    """
    polynomial = [is_polynomial_file(path) and path.is_file() for path in (first, second)]
    if all(polynomial):
        if witness or html or observable:
            raise InputError(
                "--witness, --html and --observable are for checkpoints; leave them out"
            )
        return _polynomial(first, second, exact, seed, as_json)
    if any(polynomial):
        raise InputError(
            f"{first} and {second} are of different kinds; give two checkpoints, or two weight "
            "files of polynomial networks"
        )
    if exact:
        raise InputError("--exact is for polynomial networks; leave it out for checkpoints")
    for path in (witness, html):
        if path is not None:
            check_new_file(path, overwrite)
    if witness is not None and witness.suffix != ".npz":
        raise InputError(f"{witness} must end in .npz, the form witnesses are stored in")
    return _checkpoints(first, second, witness, html, overwrite, observable, seed, as_json)


def _checkpoints(
    first: Path,
    second: Path,
    witness: Path | None,
    html: Path | None,
    overwrite: bool,
    observable: str | None,
    seed: int,
    as_json: bool,
) -> int:
    from fiberscope.checkpoints.equality.adapters import compare_adapters, is_adapter
    from fiberscope.checkpoints.equality.comparison import compare_checkpoints
    from fiberscope.checkpoints.threads import workers
    from fiberscope.report.comparison import comparison_json, comparison_table
    from fiberscope.report.comparison_html import comparison_html
    from fiberscope.verdict import Outcome

    keep_freed_pages()
    with progress() as tick:
        if is_adapter(first) or is_adapter(second):
            if witness is not None:
                raise InputError("--witness is for whole checkpoints; leave it out for adapters")
            found = compare_adapters(first, second)
        else:
            found = compare_checkpoints(
                _location(first),
                _location(second),
                observable,
                seed=seed,
                want_witness=witness is not None,
                progress=tick,
                threads=workers(),
            )
    if html is not None:
        write_file(html, comparison_html(found, str(first), str(second)), overwrite)
    if witness is not None and found.outcome is Outcome.SAME:
        from fiberscope.checkpoints.moves import save_witness

        if found.witness is None:
            click.echo(f"fiberscope: no witness is written: {'; '.join(found.notes)}", err=True)
        else:
            save_witness(found.witness, witness, overwrite=overwrite)
    if as_json:
        print_json(comparison_json(found))
    else:
        console().print(comparison_table(found, str(first), str(second)))
    return found.outcome.exit_code


def _location(path: Path) -> str | Path:
    """A hub id keeps its slash; anything on disk is a path."""
    return path if path.exists() else str(path)


def _polynomial(first: Path, second: Path, exact: bool, seed: int, as_json: bool) -> int:
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
