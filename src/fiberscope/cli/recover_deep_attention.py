"""`fiberscope recover deep-attention`."""

from __future__ import annotations

import json
from typing import Any

import click
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fiberscope.cli.deep_attention_options import chosen_normalizers, load_object
from fiberscope.errors import InputError
from fiberscope.families.deep_attention import deep_attention_architecture
from fiberscope.families.deep_attention.checked_oracle import Oracle
from fiberscope.families.deep_attention.effective import load_network
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.recovery import (
    RecoveredNetwork,
    network_oracle,
    recover,
)


@click.command("deep-attention")
@click.option(
    "--oracle",
    "source",
    required=True,
    help="module:function, called with (inputs, bits), or an npz file of weights.",
)
@click.option("--depth", type=int, help="Number of layers (read from a weights file).")
@click.option("--width", type=int, help="Input width (read from a weights file).")
@click.option("--tokens", type=int, default=2, show_default=True, help="Number of tokens.")
@click.option(
    "--normalizer",
    default="softmax",
    show_default=True,
    help="One, or one a layer separated by commas; module:object for one of your own.",
)
@click.option("--digits", type=int, default=30, show_default=True, help="Digits wanted.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds the probes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    depth: int | None,
    width: int | None,
    tokens: int,
    normalizer: str,
    digits: int,
    seed: int,
    as_json: bool,
) -> None:
    """Recover the value map L and every score M_i from a network's function alone.

    The function receives a NumPy array of shape (tokens, width) holding flint.arb numbers and the
    precision in bits, and returns (tokens, outputs) exact numbers, decimal strings or balls.
    """
    if digits < 1:
        raise InputError(f"--digits must be positive, got {digits}")
    oracle, chosen, width = _oracle(source, depth, width, tokens, normalizer)
    found = recover(
        oracle, width=width, normalizers=chosen, tokens=tokens, digits=digits, seed=seed
    )
    answer = _answer(found, digits)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(found, answer)


def _oracle(
    source: str, depth: int | None, width: int | None, tokens: int, normalizer: str
) -> tuple[Oracle, tuple[Normalizer, ...], int]:
    names = chosen_normalizers(normalizer)
    if ":" not in source:
        stored = load_network(source, tokens, names)
        for given, found, option in (
            (depth, stored.effective.depth, "--depth"),
            (width, stored.effective.width, "--width"),
        ):
            if given is not None and given != found:
                raise InputError(f"{option} {given} was given, but {source} has {found}")
        oracle = network_oracle(stored.effective, stored.normalizers, tokens)
        return oracle, stored.normalizers, stored.effective.width
    if depth is None or width is None:
        raise InputError("an oracle function needs --depth and --width")
    if depth < 1 or width < 1:
        raise InputError(f"--depth and --width must be positive, got {depth} and {width}")
    architecture = deep_attention_architecture(
        widths=[width] * (depth + 1), ranks=width, tokens=tokens, normalizers=names
    )
    assert architecture.normalizers is not None
    function = load_object(source, "oracle")
    if not callable(function):
        raise InputError(f"{source} is not callable")
    return function, architecture.normalizers, width


def _answer(found: RecoveredNetwork, digits: int) -> dict[str, Any]:
    return {
        "schema": "fiberscope/recover/1",
        "family": "deep-attention",
        "L": _decimals(found.readout, digits),
        "M": [_decimals(score, digits) for score in found.scores],
        "known_up_to_sign": list(found.free_signs),
        "error_bound": found.error_bound,
        "search_radius": found.search_radius,
        "held_out_error": found.held_out_error,
        "digits": found.digits,
        "evaluations": found.evaluations,
    }


def _decimals(values: NDArray[Any], digits: int) -> list[list[str]]:
    return [[value.mid().str(digits, radius=False) for value in row] for row in values]


def _print(found: RecoveredNetwork, answer: dict[str, Any]) -> None:
    console = Console(width=100)
    names = ["L", *(f"M_{i}" for i in range(1, len(found.scores) + 1))]
    for name, matrix in zip(names, [answer["L"], *answer["M"]], strict=True):
        sign = name != "L" and int(name[2:]) in found.free_signs
        console.print(f"{name}{' (up to its sign)' if sign else ''}")
        for row in matrix:
            console.print("  " + "  ".join(text[:22].rjust(22) for text in row), no_wrap=True)
    table = Table(show_header=False)
    table.add_row("error bound", found.error_bound)
    table.add_row("unique within", found.search_radius)
    table.add_row("largest deviation on fresh inputs", found.held_out_error)
    table.add_row("digits that the oracle supplied", str(found.digits))
    table.add_row("oracle evaluations", str(found.evaluations))
    console.print(table)
