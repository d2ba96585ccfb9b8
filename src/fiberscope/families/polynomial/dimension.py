"""Dimension of the set of functions of a polynomial network, with its proof or its odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

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


class DimensionStatus(Enum):
    """How far the dimension can be trusted; each value is a sentence."""

    PROVED = "A certified lower bound (rank modulo a prime) meets a proved upper bound."
    PROBABLE = "The lower bound is certified; that it is the value has a stated error probability."


@dataclass(frozen=True)
class PolynomialDimension:
    """Dimension of the closure of the set of functions that an architecture can represent.

    Attributes
    ----------
    dimension, status
        The generic rank of the Jacobian, and whether it is proved. It is a certified lower bound
        in any case.
    upper
        Smallest proved upper bound, with its derivation.
    error_probability
        Bound on the probability that the dimension is larger than stated (0 when proved).
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
    def defect(self) -> int:
        """Expected dimension minus dimension."""
        return self.expected - self.dimension

    @property
    def filling(self) -> bool:
        """True when the set of functions is dense in the ambient space."""
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
        Use these primes instead of random ones (the error probability then covers the random
        points only).

    Raises
    ------
    InputError
        If a given prime is not a prime above the total degree, or python-flint is missing.
    """
    for prime in primes:
        check_prime(architecture, prime)
    rng = np.random.default_rng(seed)
    upper = upper_bound(architecture)
    if primes:
        ran = [rank_modulo(architecture, upper.value, rng, prime) for prime in primes]
        counted = len(ran)
    else:
        ran, counted = _random_trials(architecture, upper.value, rng, trials)
    found = max(trial.rank for trial in ran)
    proved = found == upper.value
    # Only the trials with word-size primes count for the odds: the small prime says less.
    odds = 0.0 if proved else error_probability(architecture, found, [not primes] * counted)
    return PolynomialDimension(
        architecture=str(architecture),
        widths=architecture.widths,
        degrees=architecture.degrees,
        parameters=architecture.parameters,
        dimension=found,
        status=DimensionStatus.PROVED if proved else DimensionStatus.PROBABLE,
        upper=upper,
        error_probability=odds,
        effective=architecture.effective,
        ambient=architecture.ambient,
        expected=architecture.expected,
        trials=tuple(ran),
        seed=seed,
        notions=_notions(architecture, found, proved),
    )


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


def _notions(architecture: Architecture, found: int, proved: bool) -> dict[Notion, Answer]:
    """Answers of the theorems, completed by what the rank itself proves."""
    decided = answers(architecture)
    finite = decided[Notion.FINITE]
    if found == architecture.effective:
        by_rank = "the rank modulo a prime equals parameters minus rescalings"
        decided[Notion.FINITE] = Answer(
            Notion.FINITE, True, "certified rank", by_rank, finite.hypotheses
        )
    elif finite.answer is None:
        odds = "" if proved else " (probable: the rank is a certified lower bound only)"
        for notion in Notion:
            decided[notion] = Answer(
                notion,
                False,
                f"rank below parameters minus rescalings{odds}",
                "a continuous family of networks with the same function",
            )
    return decided
