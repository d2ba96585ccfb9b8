"""Linear independence of compositions ``s(p_1), ..., s(p_k)`` with a polynomial ``s``.

Source: Kohn, Marchetti, Massarenti, Mella, "Linear Independence of Polynomial Compositions and
Identifiability of Deep Neural Networks" (2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.polynomial.activation import Polynomial, good_for_two
from fiberscope.families.polynomial.theorems import KOHN, explicit_activation
from fiberscope.numbers.balls import load_flint
from fiberscope.numbers.prime_field import random_prime
from fiberscope.verdict import to_plain

LARGEST_DEGREE = 200_000
"""Largest degree of a composition that is expanded."""


_NOT_CONSTANT = "pairwise distinct, non-constant compositions"
_THROUGH_ORIGIN = "pairwise distinct, non-zero compositions through the origin"


class Independence(Enum):
    """Answers; each value is a sentence."""

    INDEPENDENT = "The compositions are independent: their rank modulo a prime is full, a proof."
    DEPENDENT = "The compositions are dependent: the relation holds exactly over Q."
    IMPOSSIBLE = "There are more compositions than dimensions to hold them: dependent by counting."


class ConjectureStatus(Enum):
    """What is known for generic activations of this degree and all compositions of this kind."""

    PROVED = "A theorem covers generic activations of this degree."
    REFUTED = "No activation of this degree works for all choices: the degree is too small."
    OPEN = "Neither a theorem nor the degree count decides."


@dataclass(frozen=True)
class IndependenceResult:
    """Answer for one activation and one list of compositions.

    Attributes
    ----------
    answer, rank, prime
        The answer, the rank of the coefficient matrix, and the prime if one proved it.
    relation
        For dependent ones: coprime integers ``c_j`` with ``sum_j c_j s(p_j) = 0``.
    field
        ``Q`` or ``C``. The rank of rational coefficients is the same over both; what the field
        decides is which other compositions an activation has to stand.
    conjecture, conjecture_by
        Status for generic activations of this degree, with the theorem or the count.
    this_activation
        What is known of this activation for all choices of ``k`` compositions over the field.
    good_activations
        Explicit activations that work for every choice of ``k``.
    """

    activation: str
    compositions: tuple[str, ...]
    answer: Independence
    rank: int
    prime: int | None
    relation: tuple[int, ...] | None
    field: str
    conjecture: ConjectureStatus
    conjecture_by: str
    this_activation: str
    good_activations: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = to_plain(self)
        plain["answer_means"] = self.answer.value
        plain["conjecture_means"] = self.conjecture.value
        return plain


def independence(
    activation: Polynomial, compositions: Sequence[Polynomial], field: str = "Q", seed: int = 0
) -> IndependenceResult:
    """Decide independence: full rank modulo a prime proves it, else an exact kernel over Q.

    Raises
    ------
    InputError
        If nothing is composed, the activation is constant, or the degrees are out of reach.
    """
    if activation.degree < 1:
        raise InputError(f"the activation {activation} is constant: give one of degree at least 1")
    if not compositions:
        raise InputError("no compositions are given: for instance --compose 'z,2*z+1'")
    if field not in {"Q", "C"}:
        raise InputError(f"the field {field!r} is not known: use Q or C")
    largest = activation.degree * max(p.degree for p in compositions)
    if largest > LARGEST_DEGREE:
        raise InputError(
            f"a composition has degree {largest}: at most {LARGEST_DEGREE} can be expanded"
        )
    count = len(compositions)
    origin = activation.through_origin and all(p.through_origin for p in compositions)
    space = max(largest, 0) + (0 if origin else 1)
    prime: int | None
    rank, prime = _rank_modulo(activation, compositions, seed)
    relation = None
    if rank == count:
        answer = Independence.INDEPENDENT
    else:
        prime = None
        relation, rank = _exact_relation(activation, compositions)
        answer = Independence.IMPOSSIBLE if count > space else Independence.DEPENDENT
        if relation is None:
            # The prime divided a minor; the exact elimination has the last word.
            answer = Independence.INDEPENDENT
    status, by = conjecture(activation.degree, compositions, origin)
    refuted = answer is not Independence.INDEPENDENT and _eligible(compositions)
    known = known_of(activation, count, origin, field)
    if refuted:
        known = "fails for these compositions already: they satisfy the relation over Q"
    return IndependenceResult(
        str(activation),
        tuple(str(p) for p in compositions),
        answer,
        rank,
        prime,
        relation,
        field,
        status,
        by,
        known,
        good_activations(count, origin),
    )


def conjecture(
    degree: int, compositions: Sequence[Polynomial], origin: bool
) -> tuple[ConjectureStatus, str]:
    """Status for generic activations of a degree and all compositions of the given kind.

    The kind: how many, whether their degrees are equal, the largest degree, and with ``origin``
    that they and the activations vanish at zero.
    """
    count, most = len(compositions), max(p.degree for p in compositions)
    equal = len({p.degree for p in compositions}) == 1
    if len(set(compositions)) < count:
        return ConjectureStatus.REFUTED, "equal compositions are dependent for every activation"
    if origin and any(p.degree < 0 for p in compositions):
        return ConjectureStatus.REFUTED, "every activation through the origin sends 0 to 0"
    if sum(p.degree < 1 for p in compositions) > 1:
        return ConjectureStatus.REFUTED, "two constants are dependent for every activation"
    if count < 2 and most >= 1:
        return ConjectureStatus.PROVED, "a single composition that is not constant"
    space = degree if origin else degree + 1
    if space < count:
        kind = "multiples of z" if origin else "shifts of z"
        return (
            ConjectureStatus.REFUTED,
            f"{count} {kind} give polynomials in a space of dimension {space}",
        )
    if any(p.degree < 1 for p in compositions):
        return ConjectureStatus.OPEN, "the theorems want non-constant compositions"
    if count == 2 and degree >= (2 if origin else 3):
        return ConjectureStatus.PROVED, f"{KOHN}: two compositions"
    square = count**2
    if origin:
        rules = [
            (equal, square * (most + 1), "Thm 3.4, equal degrees"),
            (True, count * (3 * count * most + count - most + 1) / 2, "Thm 3.5"),
        ]
    else:
        rules = [
            (equal, square * (most + 2) - 1, "Thm 2.3, equal degrees"),
            (True, count * (3 * count * most + 4 * count - most) / 2, "Thm 2.5"),
        ]
    for applies, needed, name in rules:
        if applies and degree >= needed:
            return ConjectureStatus.PROVED, f"{KOHN}, {name}: degree >= {needed:g}"
    least = min(needed for applies, needed, _ in rules if applies)
    return ConjectureStatus.OPEN, f"the theorems need degree {least:g}"


def _eligible(compositions: Sequence[Polynomial]) -> bool:
    """Tell whether compositions are among those that theorems and conjectures speak of."""
    return len(set(compositions)) == len(compositions) and all(p.degree >= 1 for p in compositions)


def known_of(activation: Polynomial, count: int, origin: bool, field: str) -> str:
    """What is known of one activation for all choices of ``count`` compositions."""
    if count < 2:
        return "works for every non-constant composition: its image is not zero"
    failure = failing_pair(activation, field, origin)
    if failure:
        return f"fails over {field} for two compositions already: {failure}"
    if origin:
        reason = explicit_activation(activation, count)
        if reason:
            return f"works for all choices of {_THROUGH_ORIGIN}: {reason}"
        if count == 2 and activation.degree >= 2 and activation.coefficients[-2]:
            return f"works for all pairs of {_THROUGH_ORIGIN}: two highest coefficients not zero"
    exponent, root = activation.as_power()
    if good_for_two(root) and exponent > count * (count - 2):
        power = f"({root})^{exponent}" if exponent > 1 else "its Delta2 and Delta3 are not zero"
        return f"works for all choices of {_NOT_CONSTANT}: {power}"
    return "not covered for all choices"


def failing_pair(activation: Polynomial, field: str, origin: bool) -> str:
    """Two compositions, the same for both up to a factor, read off a rotational symmetry.

    With ``s(c + z)`` supported on exponents ``a mod m``, ``c + z`` and ``c + w z`` for an ``m``-th
    root of unity ``w`` are proportional after composition: over Q for even ``m``, over C for any.
    """
    if activation.degree < 2:
        return ""
    centre = Fraction(0) if origin else activation.centre
    moved = sorted(activation(Polynomial.of([centre, 1])).exponents)
    period = int(np.gcd.reduce([e - moved[0] for e in moved])) if len(moved) > 1 else 0
    at = str(Polynomial.of([centre, 1]))
    if period == 0:
        return f"{at} and {Polynomial.of([centre, 2])} (a power is homogeneous)"
    if period % 2 == 0:
        return f"{at} and {Polynomial.of([centre, -1])}"
    if field == "C" and period > 1:
        return f"z -> {at} and its rotation by a primitive {period}-th root of unity"
    return ""


def good_activations(count: int, origin: bool) -> tuple[str, ...]:
    """Explicit activations that keep every ``count`` compositions independent."""
    exponent = max(count * (count - 2), 0) + 1
    power = "" if exponent == 1 else f"^{exponent}"
    found = [f"(z^3+z+1){power} for {_NOT_CONSTANT}"]
    if origin:
        found = [
            f"(z^2+z){power} for {_THROUGH_ORIGIN}",
            f"(z^3+z^2+z){power} for {_THROUGH_ORIGIN}",
            f"(z+1)^{max(count**2 - 1, 2)}-1 for {_THROUGH_ORIGIN}",
        ]
    return tuple(found)


def _rank_modulo(
    activation: Polynomial, compositions: Sequence[Polynomial], seed: int
) -> tuple[int, int]:
    flint = load_flint()
    rng = np.random.default_rng(seed)
    while True:
        prime = random_prime(rng)
        try:
            sigma = flint.nmod_poly(_residues(activation, prime), prime)
            composed = [sigma(flint.nmod_poly(_residues(p, prime), prime)) for p in compositions]
        except ZeroDivisionError:
            # The prime divides a denominator: draw another one.
            continue
        width = max([c.length() for c in composed] + [1])
        entries = [int(c[i]) for c in composed for i in range(width)]
        return int(flint.nmod_mat(len(composed), width, entries, prime).rank()), prime


def _residues(polynomial: Polynomial, prime: int) -> list[int]:
    found = []
    for c in polynomial.coefficients:
        if c.denominator % prime == 0:
            raise ZeroDivisionError
        found.append(c.numerator * pow(c.denominator, -1, prime) % prime)
    return found


def _exact_relation(
    activation: Polynomial, compositions: Sequence[Polynomial]
) -> tuple[tuple[int, ...] | None, int]:
    """First relation over Q as coprime integers, and the exact rank."""
    flint = load_flint()

    def exact(polynomial: Polynomial) -> Any:
        return flint.fmpq_poly(
            [flint.fmpq(c.numerator, c.denominator) for c in polynomial.coefficients]
        )

    sigma = exact(activation)
    composed = [sigma(exact(p)) for p in compositions]
    height = max([c.length() for c in composed] + [1])
    columns = len(composed)
    entries = [c[i] for i in range(height) for c in composed]
    reduced, rank = flint.fmpq_mat(height, columns, entries).rref()
    if rank == columns:
        return None, int(rank)
    pivots = []
    for row in range(rank):
        pivots.append(next(j for j in range(columns) if reduced[row, j] != 0))
    free = next(j for j in range(columns) if j not in pivots)
    relation = [Fraction(0)] * columns
    relation[free] = Fraction(1)
    for row, pivot in enumerate(pivots):
        value = reduced[row, free]
        relation[pivot] = -Fraction(int(value.p), int(value.q))
    common = lcm(*(c.denominator for c in relation))
    whole = [int(c * common) for c in relation]
    divisor = int(np.gcd.reduce([abs(c) for c in whole if c], dtype=object))
    sign = -1 if next(c for c in whole if c) < 0 else 1
    return tuple(sign * c // divisor for c in whole), int(rank)
