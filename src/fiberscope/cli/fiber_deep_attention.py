"""`fiberscope fiber deep-attention`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table

from fiberscope.cli.deep_attention_options import chosen_normalizers
from fiberscope.families.deep_attention.effective import load_network, native_freedom
from fiberscope.families.deep_attention.fiber import FiberResult, classify_fiber


@click.command("deep-attention")
@click.argument("weights", type=click.Path())
@click.option("--tokens", type=int, default=3, show_default=True, help="Number of tokens.")
@click.option(
    "--normalizer",
    default="softmax",
    show_default=True,
    help="One, or one a layer separated by commas; module:object for one of your own.",
)
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    help="Symmetric parts up to this share of a score count as zero; 0 decides exactly.",
)
@click.option("--evidence", is_flag=True, help="Certified local bounds also where a theorem holds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds their random inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    weights: str,
    tokens: int,
    normalizer: str,
    tolerance: float,
    evidence: bool,
    seed: int,
    as_json: bool,
) -> None:
    """All parameters with the function of WEIGHTS, an npz file with Q1, K1, V1, ... or L, M1, ...

    Says which theorem applies, with every hypothesis checked exactly, what is determined and up to
    what, and at which Taylor orders; 'open' where no theorem covers the case.
    """
    stored = load_network(weights, tokens, chosen_normalizers(normalizer))
    found = classify_fiber(
        stored.effective,
        stored.normalizers,
        tokens,
        tolerance=tolerance,
        evidence=evidence,
        seed=seed,
    )
    freedom = native_freedom(stored)
    if as_json:
        head = {"schema": "fiberscope/fiber/1", "family": "deep-attention"}
        effective = {
            "L": stored.effective.readout.astype(float).tolist(),
            "M": [score.astype(float).tolist() for score in stored.effective.scores],
        }
        facts = {
            "tokens": tokens,
            "normalizers": [phi.name for phi in stored.normalizers],
            "tolerance": tolerance,
            "effective": effective,
            "native_freedom": freedom,
        }
        click.echo(json.dumps({**head, **facts, **found.to_dict()}))
        return
    _print(found, freedom)


def _print(found: FiberResult, freedom: Mapping[str, int] | None) -> None:
    console = Console(width=100)
    console.print(f"Fiber: {found.outcome} - {found.theorem}")
    console.print(found.fiber)
    if freedom is not None:
        kinds = ", ".join(f"{kind} {rank}" for kind, rank in freedom.items() if kind != "union")
        console.print(
            f"At these weights, {freedom['union']} native directions keep L and every score "
            f"({kinds})."
        )
    table = Table(title="Hypotheses")
    for column in ("condition", "holds", "value"):
        table.add_column(column)
    for check in found.hypotheses:
        table.add_row(check.condition, "yes" if check.holds else "no", check.value)
    console.print(table)
    rows = [
        ("Taylor degree that identifies the point locally (sharp)", found.taylor_order),
        (
            f"Taylor degree that determines the whole fiber "
            f"({'sharp' if found.fiber_order_is_sharp else 'sufficient'})",
            found.fiber_order,
        ),
        ("Taylor degree that resolves the signs", found.sign_order),
        ("contact orders of the layers", found.contact_orders),
    ]
    orders = Table(title="Orders", show_header=False)
    for label, value in rows:
        shown = "-" if value is None else str(value)
        if isinstance(value, tuple):
            shown = ", ".join(map(str, value))
        orders.add_row(label, shown)
    console.print(orders)
    if found.evidence is not None:
        e = found.evidence
        console.print(
            f"Certified at this point: the Taylor coefficients through degree {e.order} have rank "
            f"at least {e.rank_lower_bound} in {e.parameters} effective parameters, so the fiber's "
            f"local dimension is between {e.dimension_lower_bound} and {e.dimension_upper_bound}."
        )
