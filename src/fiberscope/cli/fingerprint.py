"""`fiberscope fingerprint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fiberscope.cli.output import console, print_json, progress

if TYPE_CHECKING:
    from fiberscope.checkpoints.fingerprint import Fingerprint

OBSERVABLES = ("logits", "probabilities", "hidden")
EXIT_DIFFERENT, EXIT_UNDECIDED = 1, 2

EPILOG = """\b
Examples:
  fiberscope fingerprint path/to/model --json > model.json
  fiberscope fingerprint other/model model.json
"""


@click.command("fingerprint", epilog=EPILOG)
@click.argument("model")
@click.argument("other", required=False)
@click.option(
    "--observable",
    type=click.Choice(OBSERVABLES),
    help="What is observed [default: logits, or hidden for a class without a head].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    model: str, other: str | None, observable: str | None, as_json: bool, quiet: bool
) -> int:
    """A few numbers of MODEL that no exact symmetry changes, each with its rounding error.

    MODEL and OTHER are checkpoints, or fingerprints that --json has printed. With OTHER the two are
    compared: a number that differs proves that the models do; agreement proves nothing, which is
    what `fiberscope compare` is for.

    Exit codes: 0 done, 1 different, 2 possibly the same, 3 bad input or usage.
    """
    with progress(quiet) as tick:
        if tick is not None:
            tick(0, 2 if other else 1, "first fingerprint")
        first = _read(model, observable)
        if other is None:
            if as_json:
                print_json(first.to_dict())
            else:
                _show(first)
            return 0
        if tick is not None:
            tick(1, 2, "second fingerprint")
        second = _read(other, observable)
    from fiberscope.checkpoints.fingerprint import Resemblance, resemblance

    found = resemblance(first, second)
    different = found.resemblance is Resemblance.DIFFERENT
    word = "different" if different else "possibly the same"
    if as_json:
        print_json(
            {
                "schema": "fiberscope/fingerprint-comparison/1",
                "verdict": word,
                "reason": found.reason,
                "largest": found.largest if found.largest < float("inf") else "inf",
                "number": found.name,
                "compared": found.compared,
            }
        )
    else:
        console().print(f"{word}: {found.reason}", soft_wrap=True)
    return EXIT_DIFFERENT if different else EXIT_UNDECIDED


def _read(location: str, observable: str | None) -> Fingerprint:
    """A stored fingerprint, or that of a checkpoint."""
    from fiberscope.checkpoints.fingerprint import Fingerprint, fingerprint
    from fiberscope.checkpoints.formats.strict_json import read_object

    path = Path(location)
    if path.suffix == ".json" and path.is_file():
        data = read_object(path, "pass a model, or a fingerprint")
        if "schema" in data:
            return Fingerprint.from_dict(data, location)
    return fingerprint(location, observable)


def _show(found: Fingerprint) -> None:
    from rich.table import Table

    screen = console()
    screen.print(
        f"{found.architecture}, {found.observable}, stored in {found.dtype}: "
        f"{len(found.invariants)} numbers that no exact symmetry changes"
    )
    table = Table()
    table.add_column("number")
    table.add_column("value", justify="right")
    table.add_column("error", justify="right")
    for number in found.invariants:
        table.add_row(number.name, f"{number.value:.6g}", f"{number.error:.1e}")
    screen.print(table)
    for reason in found.left_out:
        screen.print(f"left out: {reason}", soft_wrap=True)
