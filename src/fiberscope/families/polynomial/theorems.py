"""Theorems on identifiability as data: what each concludes, and its hypotheses one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import comb, prod

from fiberscope.families.polynomial.activation import Polynomial
from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.families.polynomial.bounds import upper_bound
from fiberscope.families.polynomial.two_layers import block_finite, block_one_orbit, kruskal_holds


class Notion(Enum):
    """Three notions of identifiability, from weak to strong; each value is a sentence."""

    FINITE = "the generic fiber is finitely many orbits of neuron permutations and rescalings"
    ONE_ORBIT = "the generic fiber is one orbit of neuron permutations and rescalings"
    EVERY = (
        "every network without inactive, redundant or (monomials) collinear neurons is determined "
        "up to neuron permutations and rescalings"
    )


Hypotheses = tuple[tuple[str, bool], ...]
Checker = Callable[[Architecture], Iterator[tuple[str, bool]]]


@dataclass(frozen=True)
class Theorem:
    """A theorem, its source, what it concludes, and a checker of its hypotheses.

    Attributes
    ----------
    conclusions
        Notion -> answer that the theorem gives when all hypotheses hold.
    hypotheses
        Yields every hypothesis in words with its truth for an architecture.
    """

    name: str
    source: str
    conclusions: dict[Notion, bool]
    hypotheses: Checker

    def check(self, architecture: Architecture) -> Application:
        """Check all hypotheses up to the first that fails."""
        checked: list[tuple[str, bool]] = []
        for text, holds in self.hypotheses(architecture):
            checked.append((text, holds))
            if not holds:
                break
        return Application(self, tuple(checked))


@dataclass(frozen=True)
class Application:
    """A theorem with its hypotheses checked for one architecture."""

    theorem: Theorem
    hypotheses: Hypotheses

    @property
    def applies(self) -> bool:
        """True when every hypothesis holds."""
        return all(holds for _, holds in self.hypotheses)


@dataclass(frozen=True)
class Answer:
    """Answer for one notion: yes, no, or None when no theorem covers the case."""

    notion: Notion
    answer: bool | None
    by: str = "not covered"
    source: str = ""
    hypotheses: Hypotheses = ()


USEVICH = "Usevich, Borsoi, Dérand, Clausel 2025"
KOHN = "Kohn, Marchetti, Massarenti, Mella 2026"


def _plain(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield "monomial activations", a.kind is ActivationKind.MONOMIAL
    yield "no biases", not a.bias


def _biased(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield "monomial activations", a.kind is ActivationKind.MONOMIAL
    yield "biases in every layer", a.bias
    yield "at least one hidden layer", a.layers >= 2


def _linear(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield "no hidden layer", a.layers == 1


def _width_one(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    yield "every hidden width is 1", a.layers >= 2 and all(d == 1 for d in a.hidden)


def _two_layer(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    yield "one hidden layer", a.layers == 2


def _block(a: Architecture, orbit: bool, wanted: bool) -> Iterator[tuple[str, bool]]:
    yield from _two_layer(a)
    decide = block_one_orbit if orbit else block_finite
    found = decide(a.widths[0], a.widths[1], a.widths[2], a.degrees[0])
    yield f"decided by: {found.by or 'nothing'}", found.answer is wanted


def _kruskal(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _two_layer(a)
    yield "d_0, d_1 >= 2", min(a.widths[:2]) >= 2
    yield (
        "r >= (2 d_1 - min(d_2, d_1)) / (min(d_1, d_0) - 1)",
        kruskal_holds(a.widths[0], a.widths[1], a.widths[2], a.degrees[0]),
    )


def narrowest(a: Architecture) -> tuple[int, ...]:
    """``min(d_0, ..., d_l)`` for every layer ``l``."""
    return tuple(min(a.widths[: layer + 1]) for layer in range(a.layers + 1))


def _localisation(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    yield "at least one hidden layer", a.layers >= 2
    least = narrowest(a)
    for layer in range(1, a.layers):
        block = (least[layer - 1], a.widths[layer], a.widths[layer + 1])
        found = block_finite(*block, a.degrees[layer - 1])
        yield (
            f"the block {block} of degree {a.degrees[layer - 1]} is finitely identifiable "
            f"({found.by or 'open'})",
            found.answer is True,
        )


def _pyramidal(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    widths = a.widths[:-1]
    yield "at least one hidden layer", a.layers >= 2
    yield "d_0 >= ... >= d_(L-1)", all(x >= y for x, y in pairwise(widths))
    yield "d_(L-1) >= 2", widths[-1] >= 2
    yield "d_L >= 2, or r_(L-1) >= 3", a.widths[-1] >= 2 or a.degrees[-1] >= 3


def _linear_degree(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    yield "at least one hidden layer", a.layers >= 2
    yield "d_0, ..., d_(L-1) >= 2", min(a.widths[:-1]) >= 2
    yield (
        "r_l >= 2 d_l - 1 for every hidden layer",
        all(r >= 2 * d - 1 for r, d in zip(a.degrees, a.hidden, strict=True)),
    )


def _bottleneck(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    yield "at least one hidden layer", a.layers >= 2
    candidates = [
        b
        for b in range(1, a.layers)
        if a.widths[b] >= 2
        and all(a.widths[i] >= a.widths[i + 1] for i in range(b))
        and all(a.widths[i] <= a.widths[i + 1] for i in range(b, a.layers))
        and all(
            a.widths[layer] <= a.degrees[layer - 1] * (a.widths[b] - 1)
            for layer in range(b + 1, a.layers)
        )
    ]
    yield "widths fall to d_b >= 2, then rise, with d_l <= r_l (d_b - 1)", bool(candidates)


def _several_outputs(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _linear_degree(a)
    yield "at least two outputs", a.widths[-1] >= 2


def _pointwise_shallow(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _two_layer(a)
    yield "d_0, d_1 >= 2", min(a.widths[:2]) >= 2
    yield "r >= 2 d_1 - 1", a.degrees[0] >= 2 * a.widths[1] - 1


def _biased_blocks(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _biased(a)
    least = narrowest(a)
    for layer in range(1, a.layers):
        block = (least[layer - 1] + 1, a.widths[layer] + 1, a.widths[layer + 1])
        found = block_finite(*block, a.degrees[layer - 1])
        yield (
            f"the homogenised block {block} of degree {a.degrees[layer - 1]} is finitely "
            f"identifiable ({found.by or 'open'})",
            found.answer is True,
        )


def _biased_degrees(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _biased(a)
    least = narrowest(a)
    for layer in range(1, a.layers):
        d, r = a.widths[layer], a.degrees[layer - 1]
        yield (
            f"layer {layer}: r >= (2(d+1) - min(d+1, d_next)) / min(d, least width before)",
            r * min(d, least[layer - 1]) >= 2 * (d + 1) - min(d + 1, a.widths[layer + 1]),
        )


def _biased_shallow(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _biased_degrees(a)
    yield "one hidden layer", a.layers == 2


def _bounds(a: Architecture) -> Iterator[tuple[str, bool]]:
    bound = upper_bound(a)
    yield f"upper bound {bound.value} < {a.effective} ({bound.reason})", bound.value < a.effective


def _crowded(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _plain(a)
    crowded = [
        layer
        for layer in range(1, a.layers)
        if a.widths[layer]
        > comb(a.widths[layer - 1] + a.degrees[layer - 1] - 1, a.degrees[layer - 1])
    ]
    where = f"layer {crowded[0]}" if crowded else "a layer"
    yield f"{where} has more neurons than its inputs have monomials", bool(crowded)


def _origin(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield "no biases", not a.bias
    yield "at least one hidden layer", a.layers >= 2
    named = a.named
    yield (
        "the activation vanishes at zero and is no monomial",
        a.kind is ActivationKind.GENERIC_THROUGH_ORIGIN
        or (named is not None and named.through_origin and not named.is_monomial),
    )


def _origin_width_one(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _origin(a)
    yield "every hidden width is 1", all(d == 1 for d in a.hidden)
    yield (
        "the two highest coefficients are not zero",
        a.named is None or bool(a.named.coefficients[-2]),
    )


def growing_degree(hidden: int, before: int) -> int:
    """Degree that suffices for a hidden layer, ``before`` being the degree of its inputs.

    The bound for ``k = 2 d`` polynomials of degree at most ``m`` through the origin. For one
    hidden layer it is ``8 d^2`` (the printed ``7 d^2`` does not follow from the theorem).
    """
    return hidden * (6 * hidden * before + 2 * hidden - before + 1)


def _growing(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _origin(a)
    yield "generic activations", a.kind is ActivationKind.GENERIC_THROUGH_ORIGIN
    for layer in range(1, a.layers):
        needed = growing_degree(a.widths[layer], prod(a.degrees[: layer - 1]))
        yield f"layer {layer}: degree >= {needed}", a.degrees[layer - 1] >= needed


def _explicit(a: Architecture) -> Iterator[tuple[str, bool]]:
    yield from _origin(a)
    count = 2 * max(a.hidden)
    reason = explicit_activation(a.named, count) if a.named is not None else ""
    yield f"an activation known to work for {count} polynomials: {reason or 'no'}", bool(reason)


def explicit_activation(sigma: Polynomial, count: int) -> str:
    """Why ``sigma`` keeps any ``count`` polynomials through the origin independent, or ''.

    ``f^l`` with ``l > k(k-2)`` and ``f`` through the origin with its two highest coefficients not
    zero; ``a ((b z + 1)^r - 1)`` with ``r >= k^2 - 1``.
    """
    if not sigma.through_origin or sigma.degree < 2:
        return ""
    if sigma.is_shifted_monomial and sigma.centre and sigma.degree >= count**2 - 1:
        return f"a shifted power of degree {sigma.degree} >= {count**2 - 1}"
    exponent, root = sigma.as_power()
    enough = exponent > count * (count - 2)
    if enough and root.degree >= 2 and root.coefficients[-2]:
        return f"({root})^{exponent} with {exponent} > {count * (count - 2)}"
    return ""


YES = True
ALL = {Notion.FINITE: YES, Notion.ONE_ORBIT: YES, Notion.EVERY: YES}
GENERIC = {Notion.FINITE: YES, Notion.ONE_ORBIT: YES}
FINITE = {Notion.FINITE: YES}
INFINITE = {Notion.FINITE: False, Notion.ONE_ORBIT: False, Notion.EVERY: False}

THEOREMS: tuple[Theorem, ...] = (
    Theorem("a linear map is its matrix", "elementary", ALL, _linear),
    Theorem("hidden widths one", "elementary", ALL, _width_one),
    Theorem(
        "pointwise Kruskal condition for one hidden layer",
        f"{USEVICH}, Prop. 35",
        ALL,
        _pointwise_shallow,
    ),
    Theorem("explicit activation", f"{KOHN}, Remark 4.2", ALL, _explicit),
    Theorem("growing degrees", f"{KOHN}, Remark 4.2", ALL, _growing),
    Theorem("hidden widths one", f"{KOHN}, Remark 4.2", ALL, _origin_width_one),
    Theorem("Kruskal bound for one hidden layer", f"{USEVICH}, Prop. 12", GENERIC, _kruskal),
    Theorem(
        "uniqueness for one hidden layer",
        "see the hypotheses",
        GENERIC,
        lambda a: _block(a, orbit=True, wanted=True),
    ),
    Theorem("degrees 2 d_l - 1", "Massarenti, Mella 2025", GENERIC, _several_outputs),
    Theorem("biases, one hidden layer", f"{USEVICH}, Cor. 28", GENERIC, _biased_shallow),
    Theorem("localisation in two-layer blocks", f"{USEVICH}, Thm 11", FINITE, _localisation),
    Theorem("pyramidal widths", f"{USEVICH}, Cor. 16", FINITE, _pyramidal),
    Theorem("degrees 2 d_l - 1", f"{USEVICH}, Cor. 17", FINITE, _linear_degree),
    Theorem("bottleneck", f"{USEVICH}, Cor. 19", FINITE, _bottleneck),
    Theorem("biases", f"{USEVICH}, Cor. 28", FINITE, _biased_degrees),
    Theorem("biases, homogenised blocks", f"{USEVICH}, Prop. 27", FINITE, _biased_blocks),
    Theorem("crowded layer", f"{USEVICH}, Remark 18", INFINITE, _crowded),
    Theorem("upper bound of the dimension", "bounds of this package", INFINITE, _bounds),
    Theorem(
        "several decompositions for one hidden layer, over the complex numbers",
        "see the hypotheses",
        {Notion.ONE_ORBIT: False, Notion.EVERY: False},
        lambda a: _block(a, orbit=True, wanted=False),
    ),
)
"""All theorems, strongest conclusions first."""


def answers(architecture: Architecture) -> dict[Notion, Answer]:
    """For each notion the first theorem that decides it, or 'not covered'."""
    found = {notion: Answer(notion, None) for notion in Notion}
    for theorem in THEOREMS:
        open_notions = [n for n in theorem.conclusions if found[n].answer is None]
        if not open_notions:
            continue
        application = theorem.check(architecture)
        if application.applies:
            for notion in open_notions:
                found[notion] = Answer(
                    notion,
                    theorem.conclusions[notion],
                    theorem.name,
                    theorem.source,
                    application.hypotheses,
                )
    return found
