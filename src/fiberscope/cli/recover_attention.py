"""`fiberscope recover attention`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiberscope.cli.output import check_new_file, console, print_json, progress, write_file
from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic
from fiberscope.verdict import Outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from fiberscope.queries.class_tests import ClassTests
    from fiberscope.queries.oracle import Oracle
    from fiberscope.queries.relu_network import ReluRecovery
    from fiberscope.queries.session import Purpose, QuerySession

_PRECISIONS = click.Choice(["coarse", "full"])


@click.command("attention")
@click.option(
    "--oracle",
    "source",
    required=True,
    help="python:module:function, an .onnx file, an http(s):// address, an .npz of W and v, or a "
    "checkpoint (with --layer).",
)
@click.option("--layer", type=click.IntRange(min=0), help="Checkpoint: the attention of a layer.")
@click.option(
    "--readout",
    help="With --layer: seed of a random direction of its output, or an .npy file.  [default: 0]",
)
@click.option("--width", type=click.IntRange(min=1), help="Entries of a token.")
@click.option(
    "--arithmetic",
    type=click.Choice([each.value for each in Arithmetic]),
    help="What a weights file computes in, or what the oracle's answers are taken for.",
)
@click.option("--heads", type=int, help="Number of heads, if known.")
@click.option("--heads-at-most", type=int, help="A bound on the number of heads.")
@click.option("--rank", type=int, help="A bound on the rank of every W; alone: of a single head.")
@click.option("--noise", type=float, help="One head: a bound on the error of every answer.")
@click.option("--token-bound", type=float, help="Largest 2-norm of a token to send.")
@click.option("--precision", type=_PRECISIONS, default="full", show_default=True)
@click.option(
    "--shorter", is_flag=True, help="Many heads in balls: the algorithm with fewer queries."
)
@click.option(
    "--relu", is_flag=True, help="A ReLU network without biases follows: recover the function."
)
@click.option("--max-queries", type=click.IntRange(min=1), help="Stop before asking more.")
@click.option(
    "--transcript",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of queries and answers: an interrupted run asks none of them again.",
)
@click.option(
    "--digests", is_flag=True, help="In a new transcript, name queries by digests: far shorter."
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Most sequences handed over together.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Batches under way at once.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="npz file for W and v.")
@click.option("--overwrite", is_flag=True, help="Replace the file that -o names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    layer: int | None,
    readout: str | None,
    width: int | None,
    arithmetic: str | None,
    heads: int | None,
    heads_at_most: int | None,
    rank: int | None,
    noise: float | None,
    token_bound: float | None,
    precision: str,
    shorter: bool,
    relu: bool,
    max_queries: int | None,
    transcript: Path | None,
    digests: bool,
    batch: int,
    workers: int,
    seed: int,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Learn the heads of an attention layer from its answers alone.

    The oracle answers token sequences of any length with one number, read at the last token. Exit
    codes: 0 recovered and checked on fresh queries, 1 not of this form, 2 not recovered, 3 bad
    input.
    """
    from fiberscope.queries.interruption import Interruption
    from fiberscope.queries.loading import load_oracle
    from fiberscope.queries.recover import (
        Request,
        recover_attention,
        recover_attention_and_relu,
    )
    from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError
    from fiberscope.queries.session import QuerySession
    from fiberscope.queries.transcript import Transcript

    request = Request(heads, heads_at_most, rank, noise, token_bound, precision == "full", shorter)
    if out is not None:
        check_new_file(out, overwrite)
    elif overwrite:
        raise InputError("--overwrite replaces the file that -o names: give -o as well")
    if out is not None and transcript is not None and _same_file(out, transcript):
        raise InputError(
            f"-o and --transcript both name {click.format_filename(out)}: name two files"
        )
    kind = None if arithmetic is None else Arithmetic(arithmetic)
    oracle: Oracle
    if layer is None:
        if readout is not None:
            raise InputError("--readout is the direction of a layer's output: give --layer as well")
        oracle = load_oracle(source, width, kind, transcript)
    else:
        from fiberscope.cli.attention_layer import layer_oracle

        if width is not None:
            raise InputError("--width is what the checkpoint says: leave it out with --layer")
        oracle = layer_oracle(source, layer, readout, kind)
    if workers > 1 and oracle.arithmetic is Arithmetic.BALLS:
        raise InputError("--workers is for floating-point oracles: balls run one after another")
    if digests and transcript is None:
        raise InputError("--digests is a form of the transcript: give --transcript as well")
    with Transcript(transcript, digests) as record, progress() as tick, Interruption(_say) as stop:

        def report(queries: int, purpose: Purpose) -> None:
            if tick is not None:
                bits = f" at {session.bits} bits" if session.bits else ""
                what = f"{queries} queries{bits}, last for {purpose.value.replace('_', ' ')}"
                tick(0, 1, what)

        session = QuerySession(
            oracle,
            max_queries=max_queries,
            transcript=record,
            batch=batch,
            workers=workers,
            progress=report,
            interruption=stop,
        )
        try:
            if relu:
                network, tests = recover_attention_and_relu(session, request, seed)
            else:
                found = recover_attention(session, request, seed)
        except NotOfThisFormError as error:
            return _refused(
                "not_of_this_form", str(error), (), session, source, seed, as_json, error.test
            )
        except NotRecoveredError as error:
            return _refused(
                "not_recovered", error.reason, error.notes, session, source, seed, as_json, None
            )
    if relu:
        if out is not None:
            inner, outer = network.neurons()
            heads_found = network.heads
            content = _npz(W=heads_found.W, v=heads_found.v, inner=inner, outer=outer)
            write_file(out, content, overwrite)
        plain = _head(source, session, seed) | _relu(network, tests, session)
        if as_json:
            print_json(plain)
        else:
            _print_relu(plain, out)
        return 0
    if out is not None:
        middle = found.heads.middle()
        write_file(out, _npz(W=middle.W, v=middle.v), overwrite)
    plain = {**_head(source, session, seed), "outcome": "recovered", **found.to_dict()}
    if as_json:
        print_json(plain)
    else:
        _print(plain, out)
    return 0


def _say(sentence: str) -> None:
    # A signal handler must not enter a stream that is being written.
    os.write(2, f"fiberscope: {sentence}\n".encode("ascii"))


def _same_file(left: Path, right: Path) -> bool:
    if left.exists() and right.exists():
        return left.samefile(right)
    return left.resolve() == right.resolve()


def _head(source: str, session: QuerySession, seed: int) -> dict[str, Any]:
    return {
        "schema": "fiberscope/recover/1",
        "family": "attention",
        "oracle": source,
        "arithmetic": session.arithmetic.value,
        "sent": session.asked,
        "replayed": session.replayed,
        "seed": seed,
    }


def _refused(
    outcome: str,
    reason: str,
    notes: tuple[str, ...],
    session: QuerySession,
    source: str,
    seed: int,
    as_json: bool,
    test: str | None,
) -> int:
    from fiberscope.queries.result import queries_to_dict
    from fiberscope.verdict import to_plain

    if as_json:
        tests = session.tests
        print_json(
            {
                **_head(source, session, seed),
                "outcome": outcome,
                "reason": reason,
                "failed_test": test,
                "notes": list(notes),
                "queries": queries_to_dict(session.counts),
                "class_tests": None if tests is None else to_plain(tests.tests),
                "noise": None if tests is None else to_plain(tests.noise),
            }
        )
    else:
        shown = console()
        word = "NOT OF THIS FORM" if test else "NOT RECOVERED"
        shown.print(f"{word}: {reason.removeprefix('not of this form: ')}", markup=False)
        for note in notes:
            shown.print(f"  {note}", markup=False)
        shown.print(f"{session.queries} queries", markup=False)
    return Outcome.DIFFERENT.exit_code if test else Outcome.UNDECIDED.exit_code


def _npz(**arrays: NDArray[np.float64]) -> bytes:
    import numpy as np

    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def _relu(network: ReluRecovery, tests: ClassTests, session: QuerySession) -> dict[str, Any]:
    from fiberscope.queries.result import queries_to_dict
    from fiberscope.verdict import to_plain

    return {
        "outcome": "recovered",
        "method": "attention followed by a ReLU network without biases, as a function",
        **network.to_dict(),
        "queries": queries_to_dict(session.counts),
        "noise": to_plain(tests.noise),
        "class_tests": to_plain(tests.tests),
    }


def _print_relu(plain: dict[str, Any], out: Path | None) -> None:
    from rich.table import Table

    shown = console()
    heads, neurons = plain["heads"], len(plain["outer"])
    title = (
        f"{heads} head{'' if heads == 1 else 's'} and {neurons} ReLU "
        f"neuron{'' if neurons == 1 else 's'} on width {plain['width']}"
    )
    table = Table(title=title, show_header=False)
    table.add_row("kinks found", str(plain["kinks"]))
    signs = "determined" if plain["inner_signs_determined"] else "not determined"
    table.add_row("signs inside neurons", signs)
    _add_queries(table, plain)
    table.add_row("final check", f"{plain['fresh_queries']} fresh sequences, sampled: no bound")
    table.add_row(
        "worst agreement with answers",
        f"{plain['agreement_bits']:.0f} bits of their root mean square at each length and scale",
    )
    table.add_row(
        "with what attention leaves",
        f"{plain['network_bits']:.0f} bits of the root mean square of answers without it",
    )
    table.add_row("what stays open", plain["ambiguity"])
    for note in plain["notes"]:
        table.add_row("note", note)
    if out is not None:
        table.add_row("written", click.format_filename(out))
    shown.print(table)


def _print(plain: dict[str, Any], out: Path | None) -> None:
    from rich.table import Table

    shown = console()
    count, width = plain["heads"], plain["width"]
    title = f"{count} head{'' if count == 1 else 's'} of width {width} ({plain['method']})"
    table = Table(title=title, show_header=False)
    precision = plain["precision"]
    if precision["worst_head_bits"] is not None:
        pairs = zip(precision["W_bits"], precision["v_bits"], strict=True)
        bits = ", ".join(f"{w:.0f} / {v:.0f}" for w, v in pairs)
        table.add_row("bits of W / v, each head", bits)
        table.add_row("", f"{precision['kind']}: {precision['how']}")
    _add_queries(table, plain)
    check = plain["final_check"]
    within = f"{check['queries']} fresh sequences up to {check['longest']} tokens agree"
    table.add_row("final check", f"{within}, worst deviation {check['deviation']:.2g}")
    table.add_row("what stays open", plain["ambiguity"])
    for note in plain["notes"]:
        table.add_row("note", note)
    if out is not None:
        table.add_row("written", click.format_filename(out))
    shown.print(table)


def _add_queries(table: Table, plain: dict[str, Any]) -> None:
    for name in ("recovery", "class_tests", "retries", "final_check", "total"):
        entry = plain["queries"][name]
        text = f"{entry['queries']}, at most {entry['longest']} tokens" if entry["queries"] else "0"
        table.add_row(f"queries: {name.replace('_', ' ')}", text)
    if plain["replayed"]:
        table.add_row("answered by the transcript", str(plain["replayed"]))
