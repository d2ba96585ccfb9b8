"""`fiberscope independence`."""

from __future__ import annotations

import click

from fiberscope.cli.output import console, print_json
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.families.polynomial.activation import parse_compositions, parse_polynomial
from fiberscope.families.polynomial.independence import IndependenceResult, independence


@click.command("independence")
@click.argument("activation")
@click.option("--compose", required=True, help="Polynomials p_1,...,p_k, for example 'z,2*z+1'.")
@click.option("--field", type=click.Choice(["Q", "C"]), default="Q", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@long_numbers
def command(activation: str, compose: str, field: str, seed: int, as_json: bool) -> None:
    """Tell whether ACTIVATION(p_1), ..., ACTIVATION(p_k) are linearly independent.

    Independent with a proof modulo a prime, or dependent with the relation over Q; and what is
    known for generic activations of this degree.
    """
    found = independence(
        parse_polynomial(activation, "the activation"),
        parse_compositions(compose),
        field,
        seed,
    )
    if as_json:
        print_json({"schema": "fiberscope/independence/1", **found.to_dict()})
    else:
        _show(found)


def _show(found: IndependenceResult) -> None:
    from rich.table import Table

    table = Table(title=f"Compositions with {found.activation}", show_header=False)
    table.add_row("answer", f"{found.answer.name}: {found.answer.value}")
    table.add_row("rank", f"{found.rank} of {len(found.compositions)}")
    if found.prime is not None:
        table.add_row("prime", str(found.prime))
    if found.relation is not None:
        terms = [
            f"{c:+d} * s({p})" for c, p in zip(found.relation, found.compositions, strict=True) if c
        ]
        table.add_row("relation over Q", " ".join(terms) + " = 0")
    table.add_row("field", found.field)
    table.add_row(
        "generic activations of this degree",
        f"{found.conjecture.name}: {found.conjecture_by}",
    )
    table.add_row("this activation", found.this_activation)
    table.add_row("explicit good activations", "\n".join(found.good_activations))
    console().print(table)
