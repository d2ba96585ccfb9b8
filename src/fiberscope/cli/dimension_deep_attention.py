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

    Without --certify the rank is the float64 one; the upper bound by exact symmetries is proved
    either way.
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
    table.add_row("functional dimension", f"{answer['dimension']}  ({answer['status']})")
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
    kernel = kernel_ranks(architecture, seed)
    found = dimension(DeepAttention(architecture), seed=seed)
    return {
        "parameters": found.parameters,
        "dimension": found.value,
        "kernel": kernel,
        "status": found.status.word,
        "lower_bound": None,
        "upper_bound": found.parameters - kernel["union"],
        "route": "float64",
        "evidence": to_plain(found.evidence),
    }
