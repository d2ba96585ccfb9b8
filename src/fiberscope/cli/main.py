"""The `fiberscope` command: loads one command's module only when it is called."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

import fiberscope
from fiberscope.errors import InputError

EXIT_BAD_INPUT = 3

Table = Mapping[str, "tuple[str, str] | tuple[str, Table]"]
COMMANDS: Table = {
    "inspect": ("fiberscope.cli.inspect:command", "Identifiability report of a checkpoint."),
    "dimension": (
        "How many parameters the observation determines.",
        {
            "deep-attention": (
                "fiberscope.cli.dimension_deep_attention:command",
                "Certified functional dimension of deep attention.",
            ),
            "polynomial": (
                "fiberscope.cli.dimension_polynomial:command",
                "Proved dimension of polynomial networks.",
            ),
        },
    ),
    "independence": (
        "fiberscope.cli.independence:command",
        "Linear independence of polynomial compositions.",
    ),
    "spectrum": (
        "How strongly the observation depends on each direction.",
        {
            "deep-attention": (
                "fiberscope.cli.spectrum_deep_attention:command",
                "Contact spectrum of deep attention, with proved digits.",
            ),
        },
    ),
    "canonicalize": (
        "fiberscope.cli.canonicalize:command",
        "Canonical representative of weights.",
    ),
    "compare": (
        "fiberscope.cli.compare:command",
        "Whether two sets of weights compute the same function.",
    ),
    "fingerprint": (
        "fiberscope.cli.fingerprint:command",
        "A few numbers of a checkpoint that no exact symmetry changes.",
    ),
    "transform": (
        "fiberscope.cli.transform:command",
        "Other weights of a checkpoint with the same function.",
    ),
    "fiber": (
        "All parameters with the same observation.",
        {
            "deep-attention": (
                "fiberscope.cli.fiber_deep_attention:command",
                "Complete fiber of a deep attention network.",
            ),
            "polynomial": (
                "fiberscope.cli.fiber_polynomial:command",
                "Superfluous neurons, symmetries and identifiability of weights.",
            ),
        },
    ),
    "training": (
        "What a monitored training run did along its symmetries.",
        {
            "report": (
                "fiberscope.cli.training_report:command",
                "Invisible share of the updates, by mechanism and layer.",
            ),
        },
    ),
    "recover": (
        "Parameters from an oracle, up to symmetry.",
        {
            "attention": (
                "fiberscope.cli.recover_attention:command",
                "Attention heads from queries to a black box.",
            ),
            "deep-attention": (
                "fiberscope.cli.recover_deep_attention:command",
                "Exact recovery of deep attention from an oracle.",
            ),
            "polynomial": (
                "fiberscope.cli.recover_polynomial:command",
                "Weights of a polynomial network from its answers.",
            ),
        },
    ),
}
"""Verb -> (``module:command``, one line of help), or (help, subcommands) for a group."""


class LazyGroup(click.Group):
    """A group that lists its commands from a table and imports one only to run it."""

    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or build the subgroup."""
        if cmd_name not in self.table:
            return None
        first, second = self.table[cmd_name]
        if isinstance(second, Mapping):
            return LazyGroup(cmd_name, table=second, help=first, short_help=first)
        module, attribute = first.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the nearest name when there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.table, n=1)
            if not near or "Did you mean" in error.message:
                raise
            message = f"{error.message} Did you mean '{near[0]}'?"
            raise click.UsageError(message, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any of them."""
        rows = []
        for name, (first, second) in self.table.items():
            rows.append((name, first if isinstance(second, Mapping) else second))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(fiberscope.__version__, prog_name="fiberscope")
def cli() -> None:
    """What a model's behaviour determines about its parameters, and how strongly.

    Exit codes: 0 done or SAME, 1 DIFFERENT, 2 UNDECIDED, 3 bad input or usage.
    """


_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})
"""Errors of a disk that stdout is sent to."""


def _one_line(error: click.ClickException) -> str:
    """A usage error as one sentence that names the command whose help would explain it."""
    message = " ".join(error.format_message().split())
    sentence, _, suggestion = message.partition(" Did you mean ")
    sentence = sentence[:1].lower() + sentence[1:].rstrip(".")
    if suggestion:
        sentence += f" (did you mean {suggestion})"
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{sentence}; see {context.command_path} --help" if context else sentence


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; known errors become one sentence on stderr and exit code 3."""
    try:
        code = cli.main(args=arguments, standalone_mode=False, prog_name="fiberscope")
    except click.exceptions.Abort:
        click.echo("fiberscope: interrupted", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show(file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except click.ClickException as error:
        click.echo(f"fiberscope: {_one_line(error)}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except InputError as error:
        click.echo(f"fiberscope: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # What is left in the buffer must not fail once more at the end.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        reason = str(error.strerror).lower()
        click.echo(f"fiberscope: the output cannot be written: {reason}; make room", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except SystemExit:
        # The reader of a pipe has gone (`| head`): nothing is wrong and nobody listens. click
        # mutes stdout and answers with 1, which here would mean DIFFERENT.
        if "PacifyFlush" in type(sys.stdout).__name__:
            sys.exit(0)
        raise
    sys.exit(code if isinstance(code, int) else 0)
