"""Dimension of the set of functions of a polynomial network, with its proof or its odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.bounds import UpperBound, upper_bound
from fiberscope.families.polynomial.jacobian_rank import (
    RankTrial,
    check_prime,
    error_probability,
    rank_modulo,
    repeated_rank,
    usable_prime,
)
from fiberscope.families.polynomial.theorems import Answer, Notion, answers
from fiberscope.numbers.prime_kernels import NARROW_RANGE, random_narrow_prime
from fiberscope.verdict import to_plain

DEFAULT_TRIALS = 2

MOST_WEIGHTS = 1_000_000
"""Wider networks are not sampled whole: a subnetwork has to meet the upper bound."""

MOST_ODDS = 1e-6
"""A rank alone says 'no', and a dimension is PROBABLE, only below this error probability."""


class DimensionStatus(Enum):
    """How far the dimension can be trusted; each value is a sentence."""

    PROVED = (
        "A certified lower bound (a rank modulo a prime, or a theorem on finite fibers) meets a "
        "proved upper bound."
    )
    PROBABLE = "The lower bound is certified; that it is the value has a stated error probability."
    LOWER_BOUND = (
        f"Only the lower bound is certified: no error probability below {MOST_ODDS:g} is known."
    )


@dataclass(frozen=True)
class PolynomialDimension:
    """Dimension of the closure of the set of functions that an architecture can represent.

    Attributes
    ----------
    dimension, status
        The generic rank of the Jacobian, and whether it is proved. It is a certified lower bound
        in any case, and nothing more with the status LOWER_BOUND.
    upper
        Smallest proved upper bound, with its derivation.
    error_probability
        Bound on the probability that the dimension is larger than stated (0 when proved, 1 when
        nothing bounds it, as for primes that were chosen instead of drawn).
    effective, ambient, expected
        Parameters minus neuron rescalings; dimension of the ambient space of polynomials; the
        smaller of the two.
    trials
        Every prime with its number of points and rank.
    notions
        The three notions of identifiability, each with the theorem that decides it.
    """

    architecture: str
    widths: tuple[int, ...]
    degrees: tuple[int, ...]
    parameters: int
    dimension: int
    status: DimensionStatus
    upper: UpperBound
    error_probability: float
    effective: int
    ambient: int
    expected: int
    trials: tuple[RankTrial, ...]
    seed: int | tuple[int, ...]
    notions: dict[Notion, Answer]

    @property
    def defect(self) -> int | None:
        """Expected dimension minus dimension; None when only a lower bound is known."""
        if self.status is DimensionStatus.LOWER_BOUND:
            return None
        return self.expected - self.dimension

    @property
    def filling(self) -> bool | None:
        """True when the set of functions is dense in the ambient space; None when unknown."""
        if self.status is DimensionStatus.LOWER_BOUND and self.upper.value == self.ambient:
            return None
        return self.dimension == self.ambient

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = to_plain(self)
        plain["defect"], plain["filling"] = self.defect, self.filling
        plain["status_means"] = self.status.value
        plain["notions"] = {
            notion.name.lower(): {
                "means": notion.value,
                "answer": {True: "yes", False: "no", None: "not covered"}[answer.answer],
                "by": answer.by,
                "source": answer.source,
                "hypotheses": [
                    {"hypothesis": text, "holds": holds} for text, holds in answer.hypotheses
                ],
            }
            for notion, answer in self.notions.items()
        }
        return plain


def dimension(
    architecture: Architecture,
    seed: int | tuple[int, ...] = 0,
    *,
    trials: int = DEFAULT_TRIALS,
    primes: Sequence[int] = (),
) -> PolynomialDimension:
    """Dimension of an architecture: proved upper bounds first, then ranks modulo primes.

    Parameters
    ----------
    seed
        Draws primes, weights and inputs.
    trials
        Most word-size primes to try, after one small one; the first rank that meets the upper
        bound ends the search.
    primes
        Use these primes instead of random ones. Ranks modulo them are certified lower bounds, but
        nothing bounds the odds that a chosen prime is a bad one.

    Raises
    ------
    InputError
        If a given prime is not a prime above the total degree, python-flint is missing, or the
        network is too large.
    """
    for prime in primes:
        check_prime(architecture, prime)
    rng = np.random.default_rng(seed)
    upper = upper_bound(architecture)
    sampled = _sampled(architecture, upper.value)
    if primes:
        ran = [rank_modulo(sampled, upper.value, rng, prime) for prime in primes]
        counted = 0
    else:
        ran, counted = _random_trials(sampled, upper.value, rng, trials)
    if sampled is not architecture and max(trial.rank for trial in ran) < upper.value:
        raise InputError(
            f"{architecture} has {architecture.parameters} parameters, beyond the {MOST_WEIGHTS} "
            "that are sampled, and no narrower network meets the upper bound: use smaller widths"
        )
    found = ranked = max(trial.rank for trial in ran)
    decided = answers(architecture)
    # Only the trials with word-size primes count for the odds: the small prime says less.
    drawn = [trial.prime for trial in ran[len(ran) - counted :]]
    odds = 0.0 if found == upper.value else error_probability(architecture, found, drawn)
    if odds > MOST_ODDS and decided[Notion.FINITE].answer:
        # A theorem that makes the generic fiber finite up to rescalings is a lower bound as well.
        found = max(found, architecture.effective)
    proved = found == upper.value
    odds = 0.0 if proved else odds
    status = DimensionStatus.PROVED if proved else DimensionStatus.PROBABLE
    if odds > MOST_ODDS:
        status = DimensionStatus.LOWER_BOUND
    return PolynomialDimension(
        architecture=str(architecture),
        widths=architecture.widths,
        degrees=architecture.degrees,
        parameters=architecture.parameters,
        dimension=found,
        status=status,
        upper=upper,
        error_probability=odds,
        effective=architecture.effective,
        ambient=architecture.ambient,
        expected=architecture.expected,
        trials=tuple(ran),
        seed=seed,
        notions=_notions(decided, architecture.effective, ranked, status),
    )


def _sampled(architecture: Architecture, bound: int) -> Architecture:
    """The architecture, or a subnetwork of one that is too large to be sampled.

    Neurons without weights make a narrower network part of a wider one, so its dimension is a
    lower bound; and hidden layers wider than the bound are not needed to meet it.
    """
    if architecture.parameters <= MOST_WEIGHTS:
        return architecture
    hidden = tuple(min(width, bound) for width in architecture.hidden)
    narrow = replace(
        architecture, widths=(architecture.widths[0], *hidden, architecture.widths[-1])
    )
    if narrow.parameters > MOST_WEIGHTS:
        raise InputError(
            f"{architecture} has {architecture.parameters} parameters, beyond the {MOST_WEIGHTS} "
            "that are sampled: use smaller widths"
        )
    return narrow


def _random_trials(
    architecture: Architecture, bound: int, rng: np.random.Generator, trials: int
) -> tuple[list[RankTrial], int]:
    """Ranks modulo random primes until one meets the bound; how many count for the odds."""
    ran: list[RankTrial] = []
    if architecture.total_degree < NARROW_RANGE[0]:
        # A rank that meets the bound is a proof whatever the prime, and small ones are faster.
        prime = usable_prime(architecture, rng, draw=random_narrow_prime)
        ran.append(rank_modulo(architecture, bound, rng, prime))
    counted = 0
    while counted < trials and not (ran and ran[-1].rank == bound):
        if ran:
            best = max(ran, key=lambda trial: trial.rank)
            ran.append(repeated_rank(architecture, best, bound, rng))
        else:
            ran.append(rank_modulo(architecture, bound, rng))
        counted += 1
    return ran, counted


def _notions(
    decided: dict[Notion, Answer], effective: int, ranked: int, status: DimensionStatus
) -> dict[Notion, Answer]:
    """Answers of the theorems, completed by what the rank itself proves or makes probable."""
    finite = decided[Notion.FINITE]
    if ranked == effective:
        by_rank = "the rank modulo a prime equals parameters minus rescalings"
        decided[Notion.FINITE] = Answer(
            Notion.FINITE, True, "certified rank", by_rank, finite.hypotheses
        )
    elif finite.answer is None and status is not DimensionStatus.LOWER_BOUND:
        odds = (
            ""
            if status is DimensionStatus.PROVED
            else f" (probable: wrong with the stated odds, below {MOST_ODDS:g})"
        )
        for notion in Notion:
            decided[notion] = Answer(
                notion,
                False,
                f"rank below parameters minus rescalings{odds}",
                "a continuous family of networks with the same function",
            )
    return decided
