"""`fiberscope dimension deep-attention`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fiberscope.analysis.dimension import dimension
from fiberscope.cli.deep_attention_options import (
    architecture_facts,
    architecture_options,
    build_architecture,
)
from fiberscope.families.deep_attention import (
    Architecture,
    DeepAttention,
    certified_dimension,
    kernel_ranks,
)
from fiberscope.verdict import to_plain

_DRAWS = 3
"""Random points whose float64 ranks are compared."""

_MOST_CHECKED = 200
"""Up to this many parameters a float64 rank below the upper bound is checked exactly."""


@click.command("deep-attention")
@architecture_options
@click.option("--certify", is_flag=True, help="Prove a lower bound by exact or ball arithmetic.")
@click.option(
    "--route",
    type=click.Choice(["auto", "jets", "minor"]),
    default="auto",
    show_default=True,
    help="How the lower bound is proved.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds every random draw.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(certify: bool, route: str, seed: int, as_json: bool, **given: Any) -> None:
    """Number of parameters that the function of a deep attention network determines.

    Without --certify the rank is the float64 one, the largest of a few random points, and a small
    network whose rank stays below the upper bound is checked exactly; the upper bound by exact
    symmetries is proved either way.
    """
    architecture = build_architecture(given)
    answer = _certified(architecture, seed, route) if certify else _numerical(architecture, seed)
    if as_json:
        head = {"schema": "fiberscope/dimension/1", "family": "deep-attention"}
        facts = {"architecture": architecture_facts(architecture), "seed": seed}
        click.echo(json.dumps({**head, **facts, **answer}))
        return
    console = Console(width=100)
    table = Table(title=f"Deep attention: {architecture.describe()}", show_header=False)
    table.add_row("parameters", str(answer["parameters"]))
    table.add_row("functional dimension", _shown_dimension(answer))
    lower = "not proved" if answer["lower_bound"] is None else str(answer["lower_bound"])
    table.add_row("proved bounds", f"{lower} to {answer['upper_bound']}")
    for kind, rank in answer["kernel"].items():
        table.add_row("kernel: all together" if kind == "union" else f"kernel: {kind}", str(rank))
    console.print(table)
    for reason in answer["evidence"]:
        console.print(f"- {reason['claim']}")


def _certified(architecture: Architecture, seed: int, route: str) -> dict[str, Any]:
    return certified_dimension(architecture, seed=seed, route=route).to_dict()


def _numerical(architecture: Architecture, seed: int) -> dict[str, Any]:
    """Float64 rank: the largest of a few draws, and exact bounds where it stays below them."""
    kernel = kernel_ranks(architecture, seed)
    upper = architecture.space.size - kernel["union"]
    found = dimension(DeepAttention(architecture), seed=seed)
    for draw in range(1, _DRAWS):
        if found.value >= upper:
            break
        other = dimension(DeepAttention(architecture), seed=seed + draw)
        found = max(found, other, key=lambda result: result.value)
    lower = None
    if found.value != upper and architecture.space.size <= _MOST_CHECKED:
        # Directions that show weakly hide below float64's rounding behind a seemingly clear gap.
        proved = certified_dimension(architecture, seed=seed)
        if proved.lower_bound > found.value or found.value > proved.upper_bound:
            return proved.to_dict()
        lower = proved.lower_bound
    return {
        "parameters": found.parameters,
        "dimension": found.value,
        "kernel": kernel,
        "status": found.status.word,
        "lower_bound": lower,
        "upper_bound": upper,
        "route": "float64",
        "evidence": to_plain(found.evidence),
    }


def _shown_dimension(answer: dict[str, Any]) -> str:
    """A lower bound is never shown as the dimension itself."""
    value, status = answer["dimension"], answer["status"]
    if status == "bounded":
        return f"at least {value}  ({status})"
    if status == "numerical" and value != answer["upper_bound"]:
        return f"about {value}, if float64 sees every direction  ({status})"
    return f"{value}  ({status})"
