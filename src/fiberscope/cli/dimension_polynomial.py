"""`fiberscope dimension polynomial`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click

from fiberscope.cli.output import check_new_file, console, print_json, progress, write_file
from fiberscope.cli.polynomial_options import build_architecture, polynomial_options
from fiberscope.errors import InputError
from fiberscope.families.polynomial.batch import dimensions, parse_widths, read_table, write_table
from fiberscope.families.polynomial.dimension import (
    DEFAULT_TRIALS,
    DimensionStatus,
    PolynomialDimension,
    dimension,
)


@click.command("polynomial")
@polynomial_options
@click.option("--file", "table", type=click.Path(path_type=Path), help="CSV of architectures.")
@click.option("--out", type=click.Path(path_type=Path), help="With --file: CSV to write.")
@click.option("--overwrite", is_flag=True, help="Replace the CSV that --out names.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes for --file [default: cores].")
@click.option("--trials", type=click.IntRange(min=1), default=DEFAULT_TRIALS, show_default=True)
@click.option("--primes", help="Use these primes instead of random ones.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    widths: str | None,
    degree: int | None,
    degrees: str | None,
    activation: str,
    bias: bool,
    table: Path | None,
    out: Path | None,
    overwrite: bool,
    jobs: int | None,
    trials: int,
    primes: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Dimension of the functions of a polynomial network, and what identifies its weights.

    PROVED: a rank modulo a prime meets a proved upper bound. Otherwise the rank is a certified
    lower bound, and the probability that the dimension is larger is stated.

    With --file, a CSV with the columns widths, degree (or degrees), activation and bias comes in
    and one with all results goes out.
    """
    if table is not None:
        if as_json:
            raise InputError(
                "--json describes one architecture, --file answers with a CSV: drop one"
            )
        if widths is not None or primes is not None:
            raise InputError("--file goes with --out, --jobs, --trials and --seed only")
        _many(table, out, overwrite, jobs, trials, seed)
        return
    if out is not None or jobs is not None:
        raise InputError("--out and --jobs go with --file")
    architecture = build_architecture(widths, degree, degrees, activation, bias)
    given = parse_widths(primes, "--primes") if primes is not None else ()
    found = dimension(architecture, seed, trials=trials, primes=given)
    if as_json:
        head = {"schema": "fiberscope/dimension/1", "family": "polynomial"}
        print_json({**head, **found.to_dict()})
    else:
        _show(found)


def _many(
    table: Path, out: Path | None, overwrite: bool, jobs: int | None, trials: int, seed: int
) -> None:
    rows = read_table(table)
    if out is not None:
        check_new_file(out, overwrite)
        if out.exists() and out.samefile(table):
            raise InputError(f"{out} is the table that is read: give --out another name")
    text = io.StringIO()
    with progress() as tick:

        def report(done: int) -> None:
            if tick is not None:
                tick(done - 1, len(rows), "an architecture")

        found = dimensions(
            [row.architecture for row in rows], seed, trials=trials, jobs=jobs, progress=report
        )
        proved = write_table(rows, found, text)
    if out is None:
        click.echo(text.getvalue(), nl=False)
    else:
        write_file(out, text.getvalue(), overwrite)
    click.echo(f"{proved} of {len(rows)} dimensions are proved", err=True)


def _show(found: PolynomialDimension) -> None:
    from rich.table import Table

    screen = console()
    table = Table(title=f"Polynomial network {found.architecture}", show_header=False)
    facts: list[tuple[str, Any]] = [
        ("parameters", found.parameters),
        ("parameters minus rescalings", found.effective),
        ("ambient space", found.ambient),
        ("expected dimension", found.expected),
        (
            "at least" if found.status is DimensionStatus.LOWER_BOUND else "dimension",
            f"{found.dimension}  {found.status.name}",
        ),
        ("upper bound", f"{found.upper.value}: {found.upper.reason}"),
        ("defect", "not known" if found.defect is None else found.defect),
        ("filling", {True: "yes", False: "no", None: "not known"}[found.filling]),
    ]
    if found.status is DimensionStatus.PROBABLE:
        facts.insert(5, ("error probability at most", f"{found.error_probability:.1e}"))
    if found.status is DimensionStatus.LOWER_BOUND:
        facts.insert(5, ("trust", found.status.value))
    for name, value in facts:
        table.add_row(name, str(value))
    screen.print(table)
    table = Table(title="Identifiability", show_header=False)
    for notion, answer in found.notions.items():
        word = {True: "yes", False: "no", None: "not covered"}[answer.answer]
        reason = f"{answer.by} ({answer.source})" if answer.answer is not None else ""
        table.add_row(notion.value, word, reason)
    screen.print(table)
