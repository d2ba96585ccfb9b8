"""`fiberscope recover polynomial`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fiberscope.cli.output import check_new_file, console, print_json, progress, write_file
from fiberscope.cli.polynomial_options import build_architecture, long_numbers, polynomial_options
from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.families.polynomial.oracle import Oracle, load_oracle, network_oracle
from fiberscope.families.polynomial.search import recover
from fiberscope.families.polynomial.weights import WeightedNetwork, weights_to_json
from fiberscope.verdict import Outcome


@click.command("polynomial")
@click.option("--oracle", "source", required=True, help="Weight file, or module:function.")
@polynomial_options
@click.option("--float", "rounded", is_flag=True, help="Answers are floating-point numbers.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=30.0, show_default=True, help="For a search."
)
@click.option("--out", type=click.Path(path_type=Path), help="Weight file to write.")
@click.option("--overwrite", is_flag=True, help="Replace the file that --out names.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(
    source: str,
    widths: str | None,
    degree: int | None,
    degrees: str | None,
    activation: str,
    bias: bool,
    rounded: bool,
    seconds: float,
    out: Path | None,
    overwrite: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Recover the weights of a polynomial network from its answers.

    The oracle is a Python function that takes a list of numbers (fractions, or floats with
    --float) and returns a list, or a weight file that stands for one. One hidden layer of
    monomials is solved algebraically where that reaches; everything else is searched, and counts
    only when verified: otherwise the answer is UNDECIDED.
    """
    if out is not None:
        check_new_file(out, overwrite)
    loaded = load_oracle(source)
    if isinstance(loaded, WeightedNetwork):
        if widths is not None:
            raise InputError("a weight file says its own architecture: leave out --widths")
        architecture, exact = loaded.architecture, loaded.exact and not rounded
        oracle = network_oracle(loaded, exact)
    else:
        architecture = build_architecture(widths, degree, degrees, activation, bias)
        exact = not rounded
        oracle = Oracle(loaded, architecture.widths[0], architecture.widths[-1], exact)
    _check(architecture)
    with progress(quiet=as_json) as tick:

        def report(starts: int) -> None:
            if tick is not None:
                tick(starts - 1, starts, "a search from another random start")

        found = recover(oracle, architecture, seconds=seconds, seed=seed, progress=report)
    weights = None
    if found.parameters is not None:
        weights = weights_to_json(architecture, found.parameters)
        if out is not None:
            write_file(out, json.dumps(weights, indent=1) + "\n", overwrite)
    if as_json:
        plain = found.to_dict()
        plain["parameters"] = weights
        head = {"schema": "fiberscope/recover/1", "family": "polynomial"}
        print_json({**head, "architecture": str(architecture), "exact": exact, **plain})
    else:
        _show(str(architecture), found.to_dict(), weights)
    return 0 if found.recovered else Outcome.UNDECIDED.exit_code


def _check(architecture: Architecture) -> None:
    if architecture.kind in {ActivationKind.GENERIC, ActivationKind.GENERIC_THROUGH_ORIGIN}:
        raise InputError(
            "the activation must be known to recover weights: give monomial or a polynomial"
        )


def _show(architecture: str, found: dict[str, Any], weights: dict[str, Any] | None) -> None:
    from rich.table import Table

    table = Table(title=f"Recovery of a polynomial network {architecture}", show_header=False)
    for name in ("outcome", "method", "queries", "precision_bits", "verified", "reason"):
        if found[name] != "":
            table.add_row(name.replace("_", " "), str(found[name]))
    if weights is not None:
        for layer, matrix in enumerate(weights["weights"], start=1):
            shown = "; ".join(" ".join(str(entry) for entry in row) for row in matrix)
            table.add_row(f"W{layer}", shown if len(shown) <= 300 else shown[:297] + "...")
    console().print(table)
