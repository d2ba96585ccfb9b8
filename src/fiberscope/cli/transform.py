"""`fiberscope transform`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiberscope.cli.output import check_new_file, console, print_json, progress
from fiberscope.errors import InputError

if TYPE_CHECKING:
    from fiberscope.checkpoints.moves.transform import Transformation

FORMATS = ("float64", "float32", "bfloat16", "float16")
OBSERVABLES = ("logits", "probabilities", "hidden")

EPILOG = """\b
Examples:
  fiberscope transform path/to/model --random --seed 1 -o moved
  fiberscope transform model --random --only "residual rotation,norm gain" -o rotated
  fiberscope transform model --random --condition 1000 --save-witness move.npz -o moved
  fiberscope transform model --witness move.npz -o moved-again
"""


@click.command("transform", epilog=EPILOG)
@click.argument("model")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Directory to create."
)
@click.option("--random", "draw", is_flag=True, help="Draw a random element of the group.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For --random."
)
@click.option(
    "--only",
    metavar="NAMES",
    help="Draw these mechanisms alone: names of `fiberscope inspect`, or parts of them, separated "
    "by commas.",
)
@click.option(
    "--condition",
    type=click.FloatRange(min=1.0),
    help="Condition number of every drawn matrix and ratio of drawn factors [default: at most 4].",
)
@click.option(
    "--witness",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Apply the element in FILE instead of a random one.",
)
@click.option(
    "--save-witness",
    "save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Store the element (.npz).",
)
@click.option("--dtype", type=click.Choice(FORMATS), help="Storage [default: the input's].")
@click.option(
    "--observable",
    type=click.Choice(OBSERVABLES),
    help="What stays the same [default: logits, or hidden for a class without a head].",
)
@click.option("--overwrite", is_flag=True, help="Replace earlier outputs of fiberscope.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    model: str,
    out: Path,
    draw: bool,
    seed: int,
    only: str | None,
    condition: float | None,
    witness: Path | None,
    save: Path | None,
    dtype: str | None,
    observable: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Move MODEL along its symmetries: other weights, the same function.

    MODEL is a Hugging Face directory, a .safetensors file beside its config.json, a .gguf file of a
    Llama model, or a hub id. OUT appears whole and verified, or not at all.
    """
    if draw == (witness is not None):
        raise InputError("transform needs either --random or --witness FILE")
    if save is not None:
        check_new_file(save, overwrite)
    from fiberscope.checkpoints.moves.transform import transform

    names = None if only is None else [name for name in only.split(",") if name.strip()]
    with progress(quiet) as tick:
        done = transform(
            model,
            out,
            seed=seed if draw else None,
            witness=witness,
            only=names,
            condition=condition,
            observable=observable,
            dtype=dtype,
            save=save,
            overwrite=overwrite,
            progress=tick,
        )
    if done.approximate:
        names_broken = ", ".join(done.approximate)
        click.echo(f"fiberscope: approximate up to the epsilons of norms: {names_broken}", err=True)
    if as_json:
        print_json({"schema": "fiberscope/transform/1", **_plain(done)})
    else:
        _show(done)


def _plain(done: Transformation) -> dict[str, Any]:
    from fiberscope.verdict import to_plain

    return {
        "source": str(done.source),
        "target": str(done.written.path),
        "dtypes": list(done.written.dtypes),
        "bytes": done.written.byte_count,
        "observable": done.observable.value,
        "seed": done.seed,
        "condition": done.condition,
        "mechanisms": to_plain(done.mechanisms),
        "exact_deviation": to_plain(done.exact_deviation),
        "stored_deviation": to_plain(done.stored_deviation),
        "outputs": done.outputs,
        "approximate": list(done.approximate),
        "witness": None if done.witness is None else str(done.witness),
        "notes": list(done.notes),
    }


def _show(done: Transformation) -> None:
    from rich.table import Table

    screen = console()
    table = Table()
    table.add_column("mechanism")
    table.add_column("places", justify="right")
    table.add_column("size", justify="right")
    table.add_column("condition", justify="right")
    for mechanism in done.mechanisms:
        table.add_row(
            mechanism.mechanism,
            str(mechanism.places),
            f"{mechanism.size:.2g}",
            f"{mechanism.condition:.4g}",
        )
    screen.print(table)
    formats = ", ".join(done.written.dtypes)
    screen.print(
        f"Largest deviation of {done.outputs:,} {done.observable.value} on probe inputs, relative "
        "to their size:"
    )
    screen.print(f"  {done.exact_deviation:.1e} before storage, in float64 throughout")
    screen.print(f"  {done.stored_deviation:.1e} as stored ({formats}), evaluated in float64")
    for note in done.notes:
        screen.print(f"note: {note}", soft_wrap=True)
    screen.print(f"Written to {done.written.path}", soft_wrap=True)
    if done.witness is not None:
        screen.print(f"Witness in {done.witness}", soft_wrap=True)
