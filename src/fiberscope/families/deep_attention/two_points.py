"""Layers determined by clouds whose tokens sit at two points, with any first degrees.

Every layer keeps such a cloud at two points of one line. With shares ``p`` and ``1 - p`` of the
tokens at them, difference ``delta z`` and mean ``m``, a skew score ``M`` meets only the numbers
``0`` and ``+-u``, ``u = delta m^T M z``. With ``a = p + (1 - p) phi(-u)``,
``b = p phi(u) + 1 - p`` it moves the mean along ``z`` by

``p (1 - p) delta [p (1 - phi(-u)) / a + (1 - p) (phi(u) - 1) / b]``

while the new difference is ``p (1 - p) delta (1 - phi(u) phi(-u)) / (a b)``. For ``p = 1/2`` this
is Konda's (B.1). With ``log phi = c_k u^k + ...``, ``e`` and ``o`` its first even and odd degrees,
and ``delta`` of order ``r`` in the spread:

- the mean moves by ``p (1 - p) c_k (1 - p - (-1)^k p) delta u^k + ...``: at order ``(k + 1) r``
  for ``p != 1/2`` (three tokens or more), at order ``(o + 1) r`` for ``p = 1/2``. Later layers move
  it from order ``2 (e + 1) r`` on, so this reads ``(m^T M z)^k``, or ``(m^T M z)^o``, off;
- negating ``M`` changes the mean at order ``(o + 1) r``;
- the difference that leaves has order ``(e + 1) r``, and is zero where ``log phi`` is odd.

That a competing score is skew too follows from the signature ``H`` (A.2). Nonskew scores, and all
scores under a normalizer with a slope, are read off as in Appendices A and B.
"""

from __future__ import annotations

from collections.abc import Sequence

from fiberscope.families.deep_attention.hypotheses import ScoreFacts


def two_point_walk(facts: Sequence[ScoreFacts], tokens: int) -> tuple[int, bool]:
    """Number of first layers determined one after the other, and whether the last one collapses.

    Two tokens hide a skew score behind an even normalizer from the mean; the next layer then shows
    ``(m^T M z)^(2 e) H``. If its score is not skew this fixes ``M`` up to a factor ``f``, by unique
    factorization (``m^T M z`` is irreducible), and ``H`` up to ``f^(-2 e)``; the factor is ``+-1``
    unless that layer's ``log phi`` is a monomial.

    Parameters
    ----------
    facts
        One a layer.
    tokens
        Number of tokens, at least two.

    Returns
    -------
    tuple
        ``(j, collapsed)``: layers ``1 .. j`` are determined, up to signs at even normalizers;
        ``collapsed`` tells that layer ``j`` provably makes all tokens agree, for every input.
    """
    layer, depth = 0, len(facts)
    while layer < depth:
        fact = facts[layer]
        if not _seen(fact, tokens, last=layer == depth - 1):
            if layer + 1 < depth and _seen_through(fact, facts[layer + 1], tokens):
                layer += 2
                continue
            return layer, False
        layer += 1
        if fact.zero or (tokens == 2 and fact.skew and fact.log_odd):
            return layer, True
        if fact.skew and fact.first_even is None:
            return layer, False
    return depth, False


def _seen(fact: ScoreFacts, tokens: int, *, last: bool) -> bool:
    """Whether a layer that contrast reaches is determined, up to its sign if that is invisible."""
    if not fact.sign_known:
        return False
    if fact.slope or not fact.skew or last:
        # The last layer's difference is observed too, not its mean alone.
        return True
    odd, even = fact.first_odd, fact.first_even
    if tokens == 2:
        return odd is not None and (even is None or odd <= 2 * even)
    if fact.degree % 2 == 1 or fact.zero or fact.even:
        return True
    return odd is not None and odd <= 2 * fact.degree


def _seen_through(fact: ScoreFacts, after: ScoreFacts, tokens: int) -> bool:
    """Whether a skew score that two tokens hide shows in the next layer, together with it."""
    hidden = tokens == 2 and fact.skew and not fact.zero and fact.even
    return hidden and not after.skew and after.sign_known and not after.log_monomial
