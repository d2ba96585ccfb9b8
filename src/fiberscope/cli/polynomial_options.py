"""Options that describe a polynomial network, shared by its commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

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


def long_numbers(command: Command) -> Command:
    """Let a command write exact numbers of any length (Python stops at 4300 digits otherwise)."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            return command(*arguments, **options)
        finally:
            sys.set_int_max_str_digits(before)

    return run  # type: ignore[return-value]


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
