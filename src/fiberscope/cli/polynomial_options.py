"""What the commands on polynomial networks share: options, output files, progress."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.batch import parse_widths

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--widths", help="Widths d_0,...,d_L, for example 2,3,3,1."),
    click.option("--degree", type=int, help="Degree of every activation."),
    click.option("--degrees", help="Degrees r_1,...,r_(L-1), one for each hidden layer."),
    click.option(
        "--activation",
        default="monomial",
        show_default=True,
        help="monomial, generic, generic-through-origin, or a polynomial such as 'z^3+z+1'.",
    ),
    click.option("--bias", is_flag=True, help="Every layer has a bias."),
)


def polynomial_options(command: Command) -> Command:
    """Add the options that describe an architecture."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_architecture(
    widths: str | None, degree: int | None, degrees: str | None, activation: str, bias: bool
) -> Architecture:
    """Architecture of the command line's options.

    Raises
    ------
    InputError
        If something is missing, given twice or out of range.
    """
    if widths is None:
        raise InputError("the widths are missing: add for instance --widths 2,3,1")
    if degree is not None and degrees is not None:
        raise InputError("give either --degree or --degrees, not both")
    several = parse_widths(degrees, "--degrees") if degrees is not None else degree
    return Architecture.build(
        parse_widths(widths, "--widths"), several, activation=activation, bias=bias
    )


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """Write a text file that must not exist yet: beside its place, then moved into it.

    Raises
    ------
    InputError
        If the file exists or its folder cannot be written.
    """
    if path.exists():
        raise InputError(f"{path} exists: choose another name, or remove it first")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent or None, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            yield stream
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
