"""`fiberscope canonicalize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiberscope.cli.memory import keep_freed_pages
from fiberscope.cli.output import check_new_file, console, print_json, progress, write_file
from fiberscope.cli.polynomial_files import canonicalize_file, is_polynomial_file
from fiberscope.cli.polynomial_options import long_numbers
from fiberscope.errors import InputError

if TYPE_CHECKING:
    from fiberscope.checkpoints.canonical import Canonicalization

FORMATS = ("float64", "float32", "bfloat16", "float16")
OBSERVABLES = ("logits", "probabilities", "hidden")
STYLES = ("canonical", "balanced", "folded", "centred")
LISTED = 12
"""Places without a unique form that the table lists."""

EPILOG = """\b
Examples:
  fiberscope canonicalize path/to/model -o canonical
  fiberscope canonicalize model --dtype float64 --drop -o canonical
  fiberscope canonicalize model --style folded -o folded
  fiberscope canonicalize weights.json --out canonical.json
"""


@click.command("canonicalize", epilog=EPILOG)
@click.argument("weights", metavar="MODEL")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Directory to create (for polynomial networks the file to write).",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier output.")
@click.option(
    "--drop", is_flag=True, help="Also set to zero what has no effect: dead neurons, silent heads."
)
@click.option("--dtype", type=click.Choice(FORMATS), help="Storage [default: the input's].")
@click.option(
    "--style",
    type=click.Choice(STYLES),
    default="canonical",
    show_default=True,
    help="The whole form, or only balanced factors, folded gains or centred writes.",
)
@click.option("--keep-unread", is_flag=True, help="Leave parameters that nothing reads alone.")
@click.option(
    "--observable",
    type=click.Choice(OBSERVABLES),
    help="What stays the same [default: logits, or hidden for a class without a head].",
)
@click.option("--exact", is_flag=True, help="Polynomial networks: refuse floating-point weights.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Likewise.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@long_numbers
def command(
    weights: str,
    out: Path | None,
    overwrite: bool,
    drop: bool,
    dtype: str | None,
    style: str,
    keep_unread: bool,
    observable: str | None,
    exact: bool,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Bring MODEL to its canonical form: the same for all points of an orbit.

    MODEL is a checkpoint (a Hugging Face directory, a .safetensors file beside its config.json, a
    .gguf file of a Llama model, or a hub id) or a JSON or npz file of a polynomial network. The
    function is verified; OUT appears whole, or not at all. A checkpoint that is canonical already
    within the rounding of its storage is copied byte for byte.
    """
    path = Path(weights)
    if path.is_file() and is_polynomial_file(path):
        if drop or dtype or keep_unread or observable or style != "canonical":
            raise InputError(
                "--drop, --dtype, --style, --keep-unread and --observable are for checkpoints; "
                "leave them out"
            )
        _polynomial(path, out, overwrite, exact, seed, as_json)
        return
    if exact:
        raise InputError("--exact is for polynomial networks; leave it out for checkpoints")
    if not path.exists() and path.suffix in (".json", ".npz"):
        raise InputError(
            f"{weights} is no weight file: give the .json or .npz file of a polynomial network"
        )
    if out is None:
        raise InputError("canonicalize needs -o DIRECTORY for the form of a checkpoint")
    from fiberscope.checkpoints.canonical import canonicalize

    keep_freed_pages()
    with progress(quiet) as tick:
        done = canonicalize(
            weights,
            out,
            observable=observable,
            style=style,
            drop=drop,
            keep_unread=keep_unread,
            dtype=dtype,
            overwrite=overwrite,
            progress=tick,
        )
    if as_json:
        print_json({"schema": "fiberscope/canonicalize/1", "family": "checkpoint", **_plain(done)})
    else:
        _show(done)


def _plain(done: Canonicalization) -> dict[str, Any]:
    from fiberscope.verdict import to_plain

    return {
        "source": str(done.source),
        "architecture": done.architecture,
        "observable": done.observable.value,
        "target": str(done.written.path),
        "dtypes": list(done.written.dtypes),
        "bytes": done.written.byte_count,
        "style": done.style,
        "drop": done.drop,
        "unchanged": done.unchanged,
        "changed_tensors": done.changed_tensors,
        "tensors": done.tensors,
        "deviation": {
            "largest": to_plain(done.deviation.largest),
            "relative": to_plain(done.deviation.relative),
            "outputs": done.deviation.outputs,
            "before_rounding": None
            if done.exact_deviation is None
            else to_plain(done.exact_deviation.relative),
        },
        "not_unique_count": done.ties,
        "not_unique": to_plain(done.not_unique),
        "dead": dict(done.dead),
        "notes": list(done.notes),
    }


def _show(done: Canonicalization) -> None:
    from rich.table import Table

    screen = console()
    table = Table(title=f"Canonical form of {done.architecture}", show_header=False)
    if done.style != "canonical":
        table.add_row("style", done.style)
    if done.unchanged:
        changed = "no: canonical already within its storage, copied byte for byte"
    else:
        changed = f"{done.changed_tensors} of {done.tensors} tensors"
    table.add_row("changed", changed)
    table.add_row("stored as", ", ".join(done.written.dtypes))
    table.add_row(
        "largest deviation",
        f"{done.deviation.largest:.1e} in {done.deviation.outputs:,} {done.observable.value} on "
        f"probe inputs, {done.deviation.relative:.1e} of their size (float64 arithmetic on the "
        "stored numbers)",
    )
    if done.exact_deviation is not None:
        table.add_row("before rounding", f"{done.exact_deviation.relative:.1e} of their size")
    for kind, count in done.dead.items():
        table.add_row("set to zero", f"{count:,} {kind}")
    table.add_row("not unique", _places(done))
    screen.print(table)
    for note in done.notes:
        screen.print(f"note: {note}", soft_wrap=True)
    screen.print(f"Written to {done.written.path}", soft_wrap=True)


def _places(done: Canonicalization) -> str:
    """Places without a unique form, gathered by mechanism."""
    if not done.not_unique:
        return "nowhere"
    counts: dict[str, tuple[int, int]] = {}
    for place in done.not_unique:
        count, layers = counts.get(place.mechanism, (0, 0))
        counts[place.mechanism] = (count + place.count, layers + 1)
    lines = []
    for mechanism, (count, places) in list(counts.items())[:LISTED]:
        ties = f"{count:,} near {_plural('tie', count)}"
        lines.append(f"{mechanism}: {ties} in {places} {_plural('place', places)}")
    return "\n".join(lines)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _polynomial(
    weights: Path, out: Path | None, overwrite: bool, exact: bool, seed: int, as_json: bool
) -> None:
    if out is not None:
        check_new_file(out, overwrite)
    report, text = canonicalize_file(weights, exact, seed)
    if out is not None:
        write_file(out, text, overwrite)
    if as_json:
        print_json({"schema": "fiberscope/canonicalize/1", "family": "polynomial", **report})
        return
    from rich.table import Table

    table = Table(title=f"Canonical form of {report['architecture']}", show_header=False)
    table.add_row("changed", "yes" if report["moved"] else "no, it was canonical already")
    table.add_row("widths used", ", ".join(map(str, report["widths"])))
    for reason in ("inactive", "redundant", "collinear"):
        table.add_row(f"{reason} neurons removed", str(report[reason]))
    if report["last_layer_decomposed"]:
        table.add_row("last layer", "decomposed anew from its quadratic form")
    arithmetic = "exact" if report["exact"] else f"float64, deviation {report['deviation']:.1e}"
    table.add_row("arithmetic", arithmetic)
    for tie in report["ties"]:
        table.add_row("tie", tie)
    table.add_row("complete", report["complete_means"])
    table.add_row("written to", str(out) if out is not None else "nothing: add --out FILE")
    console().print(table)
