"""Proved upper bounds for the dimension of the set of functions of a polynomial network.

Every bound holds for the generic rank of the parameter map, over any field of characteristic
zero. They are combined by dynamic programming over all intervals of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb, prod

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
    layers = architecture.layers
    table: dict[tuple[int, int], UpperBound] = {}
    for length in range(1, layers + 1):
        for start in range(layers - length + 1):
            stop = start + length
            candidates = _candidates(architecture, start, stop, table)
            table[start, stop] = min(candidates, key=lambda bound: bound.value)
    crowded = _crowded(architecture) if architecture.homogeneous else ()
    return min((table[0, layers], *crowded), key=lambda bound: bound.value)


def _crowded(architecture: Architecture) -> Iterator[UpperBound]:
    """Replace a layer with more neurons than there are forms by the space of all forms.

    Whatever follows the layer only sees linear combinations of its features, hence of the forms.
    """
    for layer in range(1, architecture.layers):
        inputs, degree = architecture.widths[0], prod(architecture.degrees[:layer])
        forms = comb(inputs + degree - 1, degree)
        if forms < architecture.widths[layer]:
            rest = replace(
                architecture,
                widths=(forms, *architecture.widths[layer + 1 :]),
                degrees=architecture.degrees[layer:],
            )
            bound = upper_bound(rest)
            yield UpperBound(
                bound.value,
                f"layer {layer} sees only {forms} forms, so at most {rest}: {bound.reason}",
            )


def _candidates(
    architecture: Architecture, start: int, stop: int, table: dict[tuple[int, int], UpperBound]
) -> Iterator[UpperBound]:
    whole = architecture if stop - start == architecture.layers else architecture.part(start, stop)
    reason = "number of parameters"
    if whole.symmetry_dimension:
        reason += " minus the neuron rescalings"
    yield UpperBound(whole.effective, reason)
    yield UpperBound(whole.ambient, "dimension of the ambient space of polynomials")
    if stop - start == 2:
        yield from _two_layers(whole)
    for middle in range(start + 1, stop):
        yield _split(architecture, start, middle, stop, table)
        yield from _hilbert(architecture, start, middle, stop, table)


def _two_layers(block: Architecture) -> Iterator[UpperBound]:
    """Bounds that hold for one hidden layer only."""
    inputs, hidden, outputs = block.widths
    degree = block.degrees[0]
    if block.homogeneous:
        if outputs == 1:
            yield UpperBound(waring_dimension(inputs, degree, hidden), "Alexander-Hirschowitz")
        elif (inputs, degree, hidden, outputs) in TERRACINI:
            yield UpperBound(
                TERRACINI[inputs, degree, hidden, outputs], "Terracini's simultaneous cubics"
            )
    elif degree == 2 and outputs == 1 and hidden <= inputs + 1:
        # The quadratic part of w . s(W x + b) is a symmetric matrix of rank at most `hidden` in
        # (x, 1); an output bias (and constants of the activation) add at most one dimension.
        matrices = hidden * (inputs + 1) - hidden * (hidden - 1) // 2
        yield UpperBound(matrices + block.bias, "symmetric matrices of bounded rank (O(b))")


def _split(
    architecture: Architecture,
    start: int,
    middle: int,
    stop: int,
    table: dict[tuple[int, int], UpperBound],
) -> UpperBound:
    """``dim <= left + right - (rescalings of the middle layer)``."""
    left, right = table[start, middle], table[middle, stop]
    shared = architecture.widths[middle] if architecture.layer_scales(middle) else 0
    reason = f"split at layer {middle}: {left.value} + {right.value}"
    if shared:
        reason += f" - {shared}"
    details = [
        f"{what} by {bound.reason}"
        for what, bound in (("left", left), ("right", right))
        if not bound.reason.startswith("number of parameters")
    ]
    if details:
        reason += " (" + "; ".join(details) + ")"
    return UpperBound(left.value + right.value - shared, reason)


def _hilbert(
    architecture: Architecture,
    start: int,
    middle: int,
    stop: int,
    table: dict[tuple[int, int], UpperBound],
) -> Iterator[UpperBound]:
    """``dim <= left + outputs * H(s) - rescalings``.

    ``H(s)`` bounds the number of independent polynomials of degree ``s`` on the image of the
    layers up to the activated middle one: the layers after it only see such polynomials, ``s``
    being their total degree.
    """
    # Without homogeneity an affine image is seen as a projective one with one more coordinate.
    extra = 0 if architecture.homogeneous else 1
    left = table[start, middle]
    shared = architecture.widths[middle] if architecture.layer_scales(middle) else 0
    outputs = architecture.widths[stop]
    seen = prod(architecture.degrees[middle : stop - 1])
    coordinates = architecture.widths[middle] + extra
    through_origin = (
        architecture.kind is ActivationKind.GENERIC_THROUGH_ORIGIN and not architecture.bias
    )
    for source in range(start, middle):
        variables = architecture.widths[source] + extra
        degree = prod(architecture.degrees[source:middle])
        if variables > coordinates:
            continue
        value, what = comb(coordinates + seen - 1, seen), "all"
        if variables == coordinates - 1:
            # The image lies in a hypersurface of degree at most degree^(variables - 1).
            surface = degree ** (variables - 1)
            if seen >= surface:
                value -= comb(coordinates + seen - surface - 1, seen - surface)
                what = f"a hypersurface of degree at most {surface}"
        value = min(value, comb(variables + degree * seen - 1, degree * seen))
        value -= through_origin
        yield UpperBound(
            left.value + outputs * value - shared,
            f"Hilbert function at layer {middle} ({what}): {left.value} + {outputs} * {value}"
            + (f" - {shared}" if shared else ""),
        )
