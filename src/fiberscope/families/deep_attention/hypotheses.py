"""What the theorems ask of effective parameters, decided exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

import numpy as np

from fiberscope.families.deep_attention.effective import EffectiveParameters, Exact
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.numbers.fields import RationalField


@dataclass(frozen=True)
class ScoreFacts:
    """What matters of one score and its normalizer.

    Attributes
    ----------
    zero, skew, two_plane, invertible
        Whether ``M = 0``; ``sym M = 0``; ``det(U^T M U)`` is not identically zero over ``d x 2``
        matrices ``U``; ``M`` is invertible.
    rounded
        Whether ``skew`` holds within a tolerance only.
    symmetric_share
        ``|sym M| / |M|`` (Frobenius), zero for a zero score: how far a nonskew score is from skew.
    degree
        First nonconstant degree ``k`` of ``log phi``.
    slope, curvature, even, log_odd
        ``h'(0) != 0``, ``h''(0) != 0``, ``phi`` even, ``log phi`` odd.
    first_even, first_odd
        First even and odd degrees of ``log phi`` with a nonzero coefficient, None without one.
    log_monomial
        False where ``log phi`` is known to have two nonzero coefficients.
    """

    zero: bool
    skew: bool
    two_plane: bool
    invertible: bool
    rounded: bool
    symmetric_share: float
    degree: int
    slope: bool
    curvature: bool
    even: bool
    log_odd: bool
    first_even: int | None
    first_odd: int | None
    log_monomial: bool

    @property
    def sign_known(self) -> bool:
        """Whether it is known if the score and its negative act alike.

        Finite Taylor data without an odd term, of a normalizer that is not declared even, leave
        that open.
        """
        return self.zero or self.even or self.first_odd is not None

    def passes_line(self, tokens: int) -> bool:
        """Whether tokens on a line leave the layer with contrast (the sufficient conditions).

        A nonskew score does (A.3); a nonzero skew one with nonzero slope does where the curvature
        is nonzero (B.1), and for two tokens exactly where ``log phi`` has an even term (B.2).
        """
        if not self.skew:
            return True
        if self.zero or not self.slope:
            return False
        return self.curvature or (tokens == 2 and self.first_even is not None)

    def passes_plane(self, tokens: int, width: int) -> bool:
        """Whether generic clouds in a plane do (Proposition C.6)."""
        return self.slope and self.two_plane and tokens >= 3 and width >= 2

    def passes_covariance(self, tokens: int, width: int) -> bool:
        """Whether full-dimensional clouds do (Proposition C.5)."""
        return self.slope and self.invertible and tokens >= width + 1


def norm_squared(matrix: Exact) -> Fraction:
    """Exact squared Frobenius norm."""
    return sum((Fraction(x) * x for x in matrix.reshape(-1)), Fraction(0))


def two_plane_polynomial_vanishes(score: Exact) -> bool:
    """Whether ``det(U^T M U)`` is the zero polynomial in ``U = [a b]``.

    Its coefficients are ``M_ij M_kl - M_il M_kj``, symmetrised in ``(i, j)`` and in ``(k, l)``.
    """
    outer = np.multiply.outer(score, score)
    tensor = outer - outer.transpose(0, 3, 2, 1)
    symmetric = tensor + tensor.transpose(1, 0, 2, 3)
    symmetric = symmetric + symmetric.transpose(0, 1, 3, 2)
    return not np.any(symmetric != 0)


def score_facts(score: Exact, phi: Normalizer, tolerance: float = 0.0) -> ScoreFacts:
    """Decide the hypotheses for one layer.

    Parameters
    ----------
    score
        ``M_i``, exact.
    phi
        The layer's normalizer.
    tolerance
        A symmetric part of at most this share of the score counts as zero; 0 decides exactly.
    """
    size = norm_squared(score)
    symmetric = (score + score.T) / Fraction(2)
    squared = norm_squared(symmetric) / size if size else Fraction(0)
    # Compared as fractions: the float of a tiny share can be zero.
    skew = squared <= Fraction(tolerance) ** 2
    decided = (score - score.T) / Fraction(2) if skew and size and tolerance else score
    return ScoreFacts(
        zero=size == 0,
        skew=skew,
        two_plane=score.shape[0] >= 2 and not two_plane_polynomial_vanishes(decided),
        invertible=RationalField().rank(decided) == score.shape[0],
        rounded=skew and squared > 0,
        symmetric_share=sqrt(float(squared)),
        degree=phi.contact_degree,
        slope=phi.has_slope,
        curvature=phi.has_curvature,
        even=phi.even,
        log_odd=phi.log_odd,
        first_even=None if phi.log_odd else phi.first_degree(parity=0),
        first_odd=None if phi.even else phi.first_degree(parity=1),
        log_monomial=phi.second_degree() is None,
    )


def all_facts(
    effective: EffectiveParameters, normalizers: tuple[Normalizer, ...], tolerance: float = 0.0
) -> list[ScoreFacts]:
    """Facts of every layer."""
    return [
        score_facts(score, phi, tolerance)
        for score, phi in zip(effective.scores, normalizers, strict=True)
    ]
