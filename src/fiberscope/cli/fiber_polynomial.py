"""`fiberscope fiber polynomial`."""

from __future__ import annotations

from pathlib import Path

import click

from fiberscope.cli.output import console, print_json
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.families.polynomial.fiber import FiberReport, fiber
from fiberscope.families.polynomial.weights import read_weights
from fiberscope.verdict import Outcome


@click.command("polynomial")
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--exact", is_flag=True, help="Refuse floating-point weights.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(weights: Path, exact: bool, seed: int, as_json: bool) -> int:
    """All networks with the function of the one in WEIGHTS: what is known, and why.

    Superfluous neurons, the symmetry group at these weights, and whether they are identifiable.
    WEIGHTS is a JSON or npz file; rationals are written as integers or '3/7'. Exit code 2 says that
    the rounding of floating-point weights leaves it open whether they are identifiable.
    """
    found = fiber(read_weights(weights, exact=exact), seed)
    if as_json:
        head = {"schema": "fiberscope/fiber/1", "family": "polynomial"}
        print_json({**head, **found.to_dict()})
    else:
        _show(found)
    return Outcome.UNDECIDED.exit_code if found.undecided else 0


def _show(found: FiberReport) -> None:
    from rich.table import Table

    screen = console()
    table = Table(title=f"Fiber of a polynomial network {found.architecture}", show_header=False)
    source = f" ({found.source})" if found.source else ""
    table.add_row("identifiable", f"{found.word}: {found.why}{source}")
    table.add_row("", "that is, up to permutations, signs and rescalings of neurons")
    table.add_row("parameters", str(found.parameters))
    rank, freedom = (
        "undecided" if number is None else str(number)
        for number in (found.jacobian_rank, found.local_freedom)
    )
    table.add_row("Jacobian rank here", rank)
    table.add_row("orbit of the symmetries below", str(found.orbit))
    table.add_row("further local freedom", freedom)
    table.add_row(
        "arithmetic", "exact" if found.exact else f"float64, tolerance {found.tolerance:g}"
    )
    if found.dependent_features:
        layers = ", ".join(map(str, found.dependent_features))
        table.add_row("layers with dependent features", layers)
    for note in found.notes:
        table.add_row("note", note)
    screen.print(table)
    if found.neurons:
        table = Table("layer", "neuron", "is", "like", "factor", title="Superfluous neurons")
        for neuron in found.neurons:
            like = "" if neuron.like is None else str(neuron.like)
            factor = "" if neuron.factor is None else str(neuron.factor)
            table.add_row(str(neuron.layer), str(neuron.index), neuron.kind, like, factor)
        screen.print(table)
    table = Table("symmetry", "kind", "generators", "dimension here", title="Symmetries")
    for acting in found.symmetries:
        table.add_row(acting.name, acting.kind.value, str(acting.generators), str(acting.rank))
    screen.print(table)
