"""Which wishes go together: an option that would change nothing is refused, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic

if TYPE_CHECKING:
    from fiberscope.queries.recover import Request


LONGEST = 1800.0
"""Estimated seconds of ball arithmetic beyond which a number of heads is refused."""


def ball_seconds(heads: int, width: int) -> float:
    """Rough seconds that many heads in balls take if so many are allowed for.

    ``4.4 d^2 (H / 24)^6`` is within a factor two of what was measured for ``d`` of 2 and 4 and
    14 to 24 heads, two of which are there: ``2 d^2`` probes each have the roots of a polynomial of
    degree ``H`` enclosed at about ``12 H^2`` bits.
    """
    return 4.4 * float(width) ** 2 * (heads / 24) ** 6


def refuse_idle_options(
    request: Request, arithmetic: Arithmetic, width: int, relu: bool = False
) -> None:
    """Refuse a request of which some part would have no effect for this oracle.

    Parameters
    ----------
    request
        What is known or wished.
    arithmetic, width
        Those of the oracle.
    relu
        Whether a ReLU network is taken to follow.

    Raises
    ------
    InputError
        With the option and what to do instead.
    """
    trouble = _relu(request, arithmetic) if relu else _attention(request, arithmetic, width)
    trouble = trouble or _token_bound(request, arithmetic)
    if trouble is None and request.rank is not None and request.rank >= width:
        trouble = (
            f"--rank {request.rank} says nothing at width {width}: leave it out, or give a rank "
            "below the width"
        )
    if trouble is not None:
        raise InputError(trouble)


def _relu(request: Request, arithmetic: Arithmetic) -> str | None:
    """What is wrong with a request for attention with a ReLU network."""
    if arithmetic is Arithmetic.BALLS:
        return "--relu is for floating-point oracles: hinges are searched in floats"
    idle = [
        name
        for name, given in (
            ("--rank", request.rank is not None),
            ("--noise", request.noise is not None),
            ("--shorter", request.shorter),
            ("--precision coarse", not request.full),
        )
        if given
    ]
    if idle:
        return f"{' and '.join(idle)} would change nothing with --relu: leave it out"
    return None


def _token_bound(request: Request, arithmetic: Arithmetic) -> str | None:
    """Tokens far below one, their parts and squares must be numbers of the arithmetic."""
    bound = request.token_bound
    least = 2.0**-40 if arithmetic in (Arithmetic.FLOAT32, Arithmetic.BFLOAT16) else 2.0**-300
    if bound is not None and bound < least:
        return (
            f"--token-bound {bound:.3g} is too small for {arithmetic.value}, where tokens get lost "
            f"in rounding: give {least:.1g} or more"
        )
    return None


def _attention(request: Request, arithmetic: Arithmetic, width: int) -> str | None:
    """What is wrong with a request for attention alone."""
    balls = arithmetic is Arithmetic.BALLS
    several = (request.heads or request.heads_at_most or 1) > 1
    if request.noise is not None:
        if balls:
            return "--noise is for floating-point oracles: a ball encloses its error"
        if several:
            return "--noise is for one head: no guarantee is known for more"
        if request.rank is not None:
            return (
                "--rank would change nothing with --noise: the guarantee needs all d + d^2 "
                "queries; leave out one of them"
            )
    one = request.one_head or request.noise is not None
    if request.rank is not None and not one:
        if balls:
            return (
                "--rank would change nothing for many heads of a ball oracle, whose number of "
                "queries does not depend on it: leave it out"
            )
        if not request.full:
            return (
                "--precision coarse would change nothing with --rank: the method for low rank has "
                "one precision; leave out one of them"
            )
    if not request.full and balls:
        return (
            "--precision coarse would change nothing for a ball oracle: enclosures come as "
            "narrow as its bits allow; leave it out"
        )
    if not request.full and one:
        return (
            "--precision coarse would change nothing for one head: every query is needed; "
            "leave it out"
        )
    if balls and several:
        count = request.heads or request.heads_at_most or 1
        seconds = ball_seconds(count, width)
        if seconds > LONGEST:
            option = "--heads" if request.heads else "--heads-at-most"
            hours = f"{seconds / 3600:.1g}" if seconds < 36e6 else "thousands of"
            return (
                f"{option} {count} would take about {hours} hours of ball arithmetic at width "
                f"{width}, nearly all for roots of that degree: give a smaller number, or leave it "
                "out and 2, 4, 8, ... heads are tried"
            )
    if request.shorter and not balls:
        return (
            "--shorter is for ball oracles: the method for floats has no shorter form; leave it "
            "out, or give --precision coarse for fewer queries of many heads"
        )
    if request.shorter and one:
        return (
            "--shorter would change nothing for one head: d + d^2 queries are the shortest; "
            "leave it out"
        )
    if width == 1 and request.shorter:
        return (
            "--shorter would change nothing at width 1: both algorithms ask 2 H + 1 queries; "
            "leave it out"
        )
    if width == 1 and not request.full:
        return (
            "--precision coarse would change nothing at width 1: steps are read in full at once; "
            "leave it out"
        )
    return None
