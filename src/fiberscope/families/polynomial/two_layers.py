"""Identifiability of one hidden layer with monomial activation: what theorems decide.

The block ``(n, d, m)`` of degree ``r`` writes ``m`` forms in ``n`` variables as combinations of
``d`` common ``r``-th powers of linear forms. Over the complex numbers; generic real weights lie
in no exceptional set, so a unique decomposition is unique over the reals as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from fiberscope.families.polynomial.bounds import ALEXANDER_HIRSCHOWITZ, TERRACINI, waring_dimension

TWO_DECOMPOSITIONS = frozenset({(3, 6, 9), (4, 4, 8), (6, 3, 9)})
"""``(variables, degree, summands)``: subgeneric cases with exactly two decompositions.

Chiantini, Ottaviani, Vannieuwenhoven (2017).
"""

PERFECT_IDENTIFIABLE = frozenset({(4, 3, 5), (3, 5, 7)})
"""Perfect cases ``variables * summands = C(..)`` with one decomposition, beside binary forms of
odd degree ``2 d - 1``. Galuppi, Mella (2019): there are no others."""

WARING_SOURCE = "Alexander, Hirschowitz 1995"
IDENTIFIABLE_SOURCE = "Chiantini, Ottaviani, Vannieuwenhoven 2017; Galuppi, Mella 2019"
KRUSKAL_SOURCE = "Usevich, Borsoi, Dérand, Clausel 2025, Prop. 12"
TRISECANT_SOURCE = "generalised trisecant lemma"


@dataclass(frozen=True)
class BlockAnswer:
    """Yes, no or open (None), with the theorem that decides it."""

    answer: bool | None
    by: str = ""


OPEN = BlockAnswer(None)


def kruskal_holds(inputs: int, hidden: int, outputs: int, degree: int) -> bool:
    """``r >= (2 d_1 - min(d_2, d_1)) / (min(d_1, d_0) - 1)`` with ``d_0, d_1 >= 2``."""
    if inputs < 2 or hidden < 2:
        return False
    return degree * (min(hidden, inputs) - 1) >= 2 * hidden - min(outputs, hidden)


def block_finite(
    inputs: int,
    hidden: int,
    outputs: int,
    degree: int,
    exceptions: frozenset[tuple[int, int, int]] = ALEXANDER_HIRSCHOWITZ,
) -> BlockAnswer:
    """Tell whether the generic fiber of the block is finitely many orbits.

    ``exceptions`` exists so that a campaign can show that a wrong list is caught.
    """
    if hidden == 1:
        return BlockAnswer(True, "a single power")
    space = comb(inputs + degree - 1, degree)
    if hidden > space:
        return BlockAnswer(False, f"{hidden} powers in a space of dimension {space}")
    if inputs == 1:
        return BlockAnswer(False, "one variable has one power")
    single = _waring_finite(inputs, hidden, degree, exceptions)
    if outputs == 1:
        return BlockAnswer(single, WARING_SOURCE)
    if single:
        return BlockAnswer(True, f"{WARING_SOURCE} (one output suffices)")
    if kruskal_holds(inputs, hidden, outputs, degree):
        return BlockAnswer(True, KRUSKAL_SOURCE)
    if outputs >= hidden and hidden <= space - inputs + 1:
        # The outputs span the span of the powers, which meets the powers in a finite set.
        return BlockAnswer(True, TRISECANT_SOURCE)
    if inputs * hidden + hidden * outputs - hidden > outputs * space:
        return BlockAnswer(False, "more parameters than the ambient space has dimensions")
    if (inputs, degree, hidden, outputs) in TERRACINI:
        return BlockAnswer(False, "Terracini 1915")
    return OPEN


def _waring_finite(
    inputs: int, hidden: int, degree: int, exceptions: frozenset[tuple[int, int, int]]
) -> bool:
    if degree == 2:
        return waring_dimension(inputs, 2, hidden) == inputs * hidden
    exception = (inputs, degree, hidden) in exceptions
    return inputs * hidden <= comb(inputs + degree - 1, degree) and not exception


def block_one_orbit(inputs: int, hidden: int, outputs: int, degree: int) -> BlockAnswer:
    """Tell whether the generic fiber is a single orbit of permutations and rescalings."""
    finite = block_finite(inputs, hidden, outputs, degree)
    if finite.answer is False:
        return finite
    if hidden == 1:
        return BlockAnswer(True, "a single power")
    if kruskal_holds(inputs, hidden, outputs, degree):
        return BlockAnswer(True, KRUSKAL_SOURCE)
    space = comb(inputs + degree - 1, degree)
    if degree >= 3 and inputs * hidden <= space:
        case = (inputs, degree, hidden)
        if inputs * hidden < space:
            unique = case not in TWO_DECOMPOSITIONS and case not in ALEXANDER_HIRSCHOWITZ
        else:
            odd_binary = inputs == 2 and degree == 2 * hidden - 1
            unique = odd_binary or case in PERFECT_IDENTIFIABLE
        if unique or outputs == 1:
            return BlockAnswer(unique, IDENTIFIABLE_SOURCE)
    if outputs >= hidden and hidden <= space - inputs:
        return BlockAnswer(True, TRISECANT_SOURCE)
    return OPEN
