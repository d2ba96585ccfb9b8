"""Proved upper bounds for the dimension of the set of functions of a polynomial network.

Every bound holds for the generic rank of the parameter map, over any field of characteristic
zero. They are combined by dynamic programming over all intervals of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb, prod
from typing import NamedTuple

from fiberscope.families.polynomial.architecture import ActivationKind, Architecture

ALEXANDER_HIRSCHOWITZ = frozenset({(3, 4, 5), (4, 4, 9), (5, 4, 14), (5, 3, 7)})
"""Defective cases ``(variables, degree, summands)`` of Waring's problem beside the quadrics.

Alexander, Hirschowitz (1995). Each is defective by one.
"""

TERRACINI = {(3, 3, 5, 2): 19}
"""``(variables, degree, summands, outputs) -> dimension`` of simultaneous Waring exceptions.

Terracini (1915): two plane cubics as combinations of five common cubes.
"""


@dataclass(frozen=True)
class UpperBound:
    """A proved upper bound and why it holds."""

    value: int
    reason: str


def waring_dimension(variables: int, degree: int, summands: int) -> int:
    """Dimension of the sums of ``summands`` powers of linear forms (Alexander-Hirschowitz).

    This is the dimension of the architecture ``(variables, summands, 1)`` with monomial
    activation: ``min(variables * summands, C(variables + degree - 1, degree))`` except quadrics,
    where symmetric matrices of rank at most ``summands`` are counted, and the four exceptions.
    """
    space = comb(variables + degree - 1, degree)
    if degree == 2:
        used = min(summands, variables)
        return used * variables - used * (used - 1) // 2
    exception = (variables, degree, summands) in ALEXANDER_HIRSCHOWITZ
    return min(variables * summands, space) - exception


def upper_bound(architecture: Architecture) -> UpperBound:
    """Smallest proved upper bound for the dimension, with its derivation in words."""
    best = _best(architecture)
    return UpperBound(best.value, best.why())


class _Candidate(NamedTuple):
    """A bound whose words are only put together when they are wanted."""

    value: int
    why: Callable[[], str]


_Table = dict[tuple[int, int], _Candidate]


def _best(architecture: Architecture) -> _Candidate:
    table: _Table = {}
    for length in range(1, architecture.layers + 1):
        for start in range(architecture.layers - length + 1):
            table[start, start + length] = min(
                _candidates(architecture, start, start + length, table), key=_value
            )
    whole = table[0, architecture.layers]
    return min((whole, *_crowded(architecture)), key=_value)


def _value(candidate: _Candidate) -> int:
    return candidate.value


def _crowded(architecture: Architecture) -> Iterator[_Candidate]:
    """Replace a layer with more neurons than there are forms by the space of all forms.

    Whatever follows the layer only sees linear combinations of its features, hence of the forms.
    """
    if not architecture.homogeneous:
        return
    for layer in range(1, architecture.layers):
        inputs, degree = architecture.widths[0], prod(architecture.degrees[:layer])
        forms = comb(inputs + degree - 1, degree)
        if forms < architecture.widths[layer]:
            rest = replace(
                architecture,
                widths=(forms, *architecture.widths[layer + 1 :]),
                degrees=architecture.degrees[layer:],
            )
            yield _seen_through(layer, forms, rest)


def _seen_through(layer: int, forms: int, rest: Architecture) -> _Candidate:
    best = _best(rest)
    return _Candidate(
        best.value,
        lambda: f"layer {layer} sees only {forms} forms, so at most {rest}: {best.why()}",
    )


def _candidates(
    architecture: Architecture, start: int, stop: int, table: _Table
) -> Iterator[_Candidate]:
    widths = architecture.widths[start : stop + 1]
    if architecture.homogeneous:
        moves = sum(widths[1:-1])
        effective = sum(a * b for a, b in pairwise(widths)) - moves
        total = prod(architecture.degrees[start : stop - 1])
        ambient = widths[-1] * comb(widths[0] + total - 1, total)
    else:
        part = architecture.part(start, stop)
        moves, effective, ambient = part.symmetry_dimension, part.effective, part.ambient
    yield _Candidate(
        effective, lambda: "number of parameters" + (" minus the neuron rescalings" * bool(moves))
    )
    yield _Candidate(ambient, lambda: "dimension of the ambient space of polynomials")
    if stop - start == 2:
        yield from _two_layers(architecture, widths, architecture.degrees[start])
    for middle in range(start + 1, stop):
        yield _split(architecture, middle, table[start, middle], table[middle, stop])
        yield from _hilbert(architecture, start, middle, stop, table[start, middle])


def _two_layers(
    architecture: Architecture, widths: tuple[int, ...], degree: int
) -> Iterator[_Candidate]:
    """Bounds that hold for one hidden layer only."""
    inputs, hidden, outputs = widths
    if architecture.homogeneous:
        if outputs == 1:
            dimension = waring_dimension(inputs, degree, hidden)
            yield _Candidate(dimension, lambda: "Alexander-Hirschowitz")
        elif (inputs, degree, hidden, outputs) in TERRACINI:
            known = TERRACINI[inputs, degree, hidden, outputs]
            yield _Candidate(known, lambda: "Terracini's simultaneous cubics")
    elif degree == 2 and outputs == 1 and hidden <= inputs + 1:
        # The quadratic part of w . s(W x + b) is a symmetric matrix of rank at most `hidden` in
        # (x, 1); an output bias (and constants of the activation) add at most one dimension.
        matrices = hidden * (inputs + 1) - hidden * (hidden - 1) // 2
        yield _Candidate(
            matrices + architecture.bias, lambda: "symmetric matrices of bounded rank (O(b))"
        )


def _split(
    architecture: Architecture, middle: int, left: _Candidate, right: _Candidate
) -> _Candidate:
    """``dim <= left + right - (rescalings of the middle layer)``."""
    shared = architecture.widths[middle] if architecture.layer_scales(middle) else 0

    def why() -> str:
        reason = f"split at layer {middle}: {left.value} + {right.value}"
        if shared:
            reason += f" - {shared}"
        details = [
            f"{what} by {words}"
            for what, words in (("left", left.why()), ("right", right.why()))
            if not words.startswith("number of parameters")
        ]
        return reason + (" (" + "; ".join(details) + ")" if details else "")

    return _Candidate(left.value + right.value - shared, why)


def _hilbert(
    architecture: Architecture, start: int, middle: int, stop: int, left: _Candidate
) -> Iterator[_Candidate]:
    """``dim <= left + outputs * H(s) - rescalings``.

    ``H(s)`` bounds the number of independent polynomials of degree ``s`` on the image of the
    layers up to the activated middle one: the layers after it only see such polynomials, ``s``
    being their total degree.
    """
    # Without homogeneity an affine image is seen as a projective one with one more coordinate.
    extra = 0 if architecture.homogeneous else 1
    shared = architecture.widths[middle] if architecture.layer_scales(middle) else 0
    seen = prod(architecture.degrees[middle : stop - 1])
    coordinates = architecture.widths[middle] + extra
    through_origin = (
        architecture.kind is ActivationKind.GENERIC_THROUGH_ORIGIN and not architecture.bias
    )
    for source in range(start, middle):
        variables = architecture.widths[source] + extra
        if variables > coordinates:
            continue
        degree = prod(architecture.degrees[source:middle])
        value, surface = comb(coordinates + seen - 1, seen), 0
        if variables == coordinates - 1:
            # The image lies in a hypersurface of degree at most degree^(variables - 1).
            surface = degree ** (variables - 1)
            if seen >= surface:
                value -= comb(coordinates + seen - surface - 1, seen - surface)
            else:
                surface = 0
        value = min(value, comb(variables + degree * seen - 1, degree * seen)) - through_origin
        yield _on_the_image(middle, surface, left.value, architecture.widths[stop], value, shared)


def _on_the_image(
    middle: int, surface: int, left: int, outputs: int, value: int, shared: int
) -> _Candidate:
    def why() -> str:
        what = f"a hypersurface of degree at most {surface}" if surface else "all"
        reason = f"Hilbert function at layer {middle} ({what}): {left} + {outputs} * {value}"
        return reason + (f" - {shared}" if shared else "")

    return _Candidate(left + outputs * value - shared, why)
