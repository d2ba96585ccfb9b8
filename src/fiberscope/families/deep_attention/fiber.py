"""The complete fiber of a deep attention network, by the theorem that covers it, or 'open'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.effective import EffectiveParameters
from fiberscope.families.deep_attention.hypotheses import ScoreFacts, all_facts
from fiberscope.families.deep_attention.local_evidence import LocalEvidence, local_evidence
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.orders import contact_orders, taylor_orders
from fiberscope.verdict import Status, to_plain


@dataclass(frozen=True)
class Hypothesis:
    """One condition, whether it holds, and the number behind it."""

    condition: str
    holds: bool
    value: str = ""


@dataclass(frozen=True)
class FiberResult:
    """All effective parameters with the same function, as far as is known.

    Attributes
    ----------
    outcome
        ``complete`` where a theorem gives the whole fiber, else ``open``.
    status
        ``THEOREM`` or ``BOUNDED``.
    theorem
        What is applied.
    hypotheses
        Its conditions, checked.
    fiber
        The fiber in words.
    readout_determined
        Whether ``L`` is determined (it always is).
    determined_scores
        Layers whose score is determined, up to the signs below.
    free_signs
        Layers whose score is determined up to its sign only.
    free_scores
        Layers whose score can be anything.
    undecided_scores
        Layers about which nothing is claimed.
    taylor_order
        Sharp degree at which the Taylor coefficients at the zero input identify the point locally,
        None where no theorem states one.
    fiber_order
        Least known degree at which they determine the whole fiber; ``fiber_order_is_sharp`` tells
        whether a lower degree provably does not.
    sign_order
        Degree that resolves the signs, where all symmetric parts are nonzero.
    contact_orders
        Powers of ``t`` of every layer's scores as all queries and keys shrink together.
    evidence
        Certified local bounds, in open cases or when asked for.
    """

    outcome: str
    status: Status
    theorem: str
    hypotheses: tuple[Hypothesis, ...]
    fiber: str
    readout_determined: bool
    determined_scores: tuple[int, ...]
    free_signs: tuple[int, ...]
    free_scores: tuple[int, ...]
    undecided_scores: tuple[int, ...]
    taylor_order: int | None = None
    fiber_order: int | None = None
    fiber_order_is_sharp: bool = False
    sign_order: int | None = None
    contact_orders: tuple[int, ...] | None = None
    evidence: LocalEvidence | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


@dataclass(frozen=True)
class _Case:
    """A classification before its orders are filled in; layers count from 1."""

    theorem: str
    last: int
    kind: str


def classify_fiber(
    effective: EffectiveParameters,
    normalizers: Sequence[Normalizer],
    tokens: int,
    *,
    tolerance: float = 0.0,
    evidence: bool = False,
    seed: int = 0,
) -> FiberResult:
    """Find the complete fiber of the function, or say that the case is open.

    Layers are recovered one by one: layer ``i`` is determined where every earlier layer passes
    contrast on. Contrast is followed on lines (Konda, Theorems 1 and 2), in generic planes
    (Proposition C.6) or in full-dimensional clouds (C.5); a layer with zero score, or a skew one
    for two tokens and odd ``log phi``, erases every later score (Theorem 2). A stack whose
    singular layers need different kinds of clouds is not covered by any theorem.

    Parameters
    ----------
    effective
        ``L`` and the scores, exact.
    normalizers
        One a layer.
    tokens
        Number of tokens, at least two.
    tolerance
        See :func:`~fiberscope.families.deep_attention.hypotheses.score_facts`.
    evidence
        Compute certified local bounds also where a theorem applies.
    seed
        Seeds their random inputs.

    Raises
    ------
    InputError
        If the tolerance is not in ``[0, 1)``.
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"the tolerance is a share of a score, from 0 to below 1, not {tolerance}")
    chosen = tuple(normalizers)
    facts = all_facts(effective, chosen, tolerance)
    depth, width = effective.depth, effective.width
    readout = bool(np.any(effective.readout != 0))
    checks = _hypotheses(readout, facts, tokens, width)
    if not readout:
        layers = tuple(range(1, depth + 1))
        return FiberResult(
            outcome="complete",
            status=Status.THEOREM,
            theorem="zero readout (Theorem 2, last part)",
            hypotheses=checks,
            fiber="L = 0 is determined; every score can be anything.",
            readout_determined=True,
            determined_scores=(),
            free_signs=(),
            free_scores=layers,
            undecided_scores=(),
            fiber_order=1,
            fiber_order_is_sharp=True,
        )
    case = _case(facts, tokens, width)
    if case is None:
        return _open(effective, chosen, facts, tokens, checks, seed)
    determined = tuple(range(1, case.last + 1))
    signs = tuple(i for i in determined if facts[i - 1].even and not facts[i - 1].zero)
    free = tuple(range(case.last + 1, depth + 1))
    orders = _orders(case, facts, tokens)
    local = None
    if evidence:
        local = local_evidence(effective, chosen, tokens, len(free) * width**2, seed)
    return FiberResult(
        outcome="complete",
        status=Status.THEOREM,
        theorem=case.theorem,
        hypotheses=checks,
        fiber=_words(determined, signs, free),
        readout_determined=True,
        determined_scores=determined,
        free_signs=signs,
        free_scores=free,
        undecided_scores=(),
        evidence=local,
        **orders,
    )


def _hypotheses(
    readout: bool, facts: Sequence[ScoreFacts], tokens: int, width: int
) -> tuple[Hypothesis, ...]:
    checks = [
        Hypothesis("L != 0", readout),
        Hypothesis("two tokens", tokens == 2, f"{tokens} tokens"),
        Hypothesis("n >= d + 1", tokens >= width + 1, f"n = {tokens}, d = {width}"),
    ]
    for i, fact in enumerate(facts, start=1):
        share = f"|sym M| / |M| = {fact.symmetric_share:.3g}"
        checks += [
            Hypothesis(f"M_{i} != 0", not fact.zero),
            Hypothesis(f"sym M_{i} != 0", not fact.skew, share),
            Hypothesis(f"det(U^T M_{i} U) not identically 0", fact.two_plane),
            Hypothesis(f"M_{i} invertible", fact.invertible),
            Hypothesis(f"slope h_{i}'(0) != 0", fact.slope, f"first degree {fact.degree}"),
            Hypothesis(f"curvature h_{i}''(0) != 0", fact.curvature),
            Hypothesis(f"phi_{i} even", fact.even),
            Hypothesis(f"log phi_{i} odd", fact.log_odd),
        ]
    return tuple(checks)


def _collapses(fact: ScoreFacts, tokens: int) -> bool:
    """Whether all output tokens provably agree for every input."""
    return fact.zero or (tokens == 2 and fact.skew and fact.log_odd)


def _line_prefix(facts: Sequence[ScoreFacts], tokens: int) -> bool:
    """Whether tokens on lines carry contrast through all layers but the last one given.

    Past a skew score the theorems ask for a nonzero slope of every layer; where only nonskew
    scores come before the last layer (Theorem 1), slopes do not matter.
    """
    prefix = facts[:-1]
    if any(fact.skew for fact in prefix) and not all(fact.slope for fact in facts):
        return False
    return all(fact.passes_line(tokens) for fact in prefix)


def _case(facts: Sequence[ScoreFacts], tokens: int, width: int) -> _Case | None:
    depth = len(facts)
    last = next((i for i, fact in enumerate(facts, start=1) if _collapses(fact, tokens)), depth)
    prefix, final = facts[: last - 1], facts[last - 1]
    # The layer itself is read off the mean: any score with a slope, a nonskew one without.
    if not final.slope and final.skew:
        return None
    if not all(fact.sign_known for fact in facts[:last]):
        return None
    if _line_prefix(facts[:last], tokens):
        if last == depth and not any(fact.skew for fact in prefix):
            return _Case("Theorem 1 (all symmetric parts nonzero)", last, "regular")
        if not any(fact.skew for fact in prefix):
            return _Case("Theorem 1 up to the first collapse, Theorem 2 after it", last, "regular")
        if tokens == 2:
            return _Case("Theorem 2 (ii), two tokens", last, "two tokens")
        if all(fact.curvature for fact in prefix):
            return _Case("Theorem 2 (i), nonzero slopes and curvatures", last, "curvature")
        name = "Lemmas A.3 and B.1 (nonskew scores, and skew ones with slope and curvature)"
        return _Case(name, last, "curvature")
    if not all(fact.slope for fact in facts[:last]):
        return None
    if all(fact.passes_plane(tokens, width) for fact in prefix):
        name = "Corollary 4.1 (depth two)" if depth == 2 else "Proposition C.6 (generic planes)"
        return _Case(name, last, "cloud")
    if all(fact.passes_covariance(tokens, width) for fact in prefix):
        return _Case("Proposition C.5 (invertible prefixes)", last, "cloud")
    return None


def _orders(case: _Case, facts: Sequence[ScoreFacts], tokens: int) -> dict[str, Any]:
    """Taylor, fiber, sign and contact orders that a theorem states for this case.

    All kinds but ``regular`` have nonzero slopes, so their first degrees are 1.
    """
    used, depth = facts[: case.last], len(facts)
    degrees = [fact.degree for fact in used]
    local = taylor_orders(degrees)[-1]
    if case.kind == "cloud":
        order = 2 * 3 ** (case.last - 1) + 1
        betas = tuple(contact_orders(degrees)) if case.last == depth else None
        return {
            "taylor_order": order if case.last == depth else None,
            "fiber_order": order,
            "fiber_order_is_sharp": True,
            "contact_orders": betas,
        }
    if case.kind == "two tokens":
        order = _two_token_order(used)
        return {
            "taylor_order": order if case.last == depth else None,
            "fiber_order": order,
            "fiber_order_is_sharp": True,
        }
    if case.kind == "curvature":
        spread = 0
        for fact in used[:-1]:
            spread = 3 * spread + 2 * fact.skew
        order = 2 * 3 ** (case.last - 1) + 2 * spread + 1
        return {"fiber_order": order, "fiber_order_is_sharp": False}
    all_nonskew = not any(fact.skew for fact in used)
    sign = _sign_order(used) if all_nonskew else None
    linear = all(degree == 1 for degree in degrees)
    collapsed = case.last < depth
    return {
        "taylor_order": None if collapsed else local,
        "fiber_order": sign if sign is not None else (local if linear else None),
        "fiber_order_is_sharp": sign is not None or linear,
        "sign_order": sign,
        "contact_orders": None if collapsed else tuple(contact_orders(degrees)),
    }


def _sign_order(facts: Sequence[ScoreFacts]) -> int | None:
    """``max_i (2 alpha_{i-1} + 2 s_i - 1)`` (Proposition C.4)."""
    alpha, best = 1, 0
    for fact in facts:
        signal = fact.degree if fact.even else fact.first_odd
        if signal is None:
            return None
        best = max(best, 2 * alpha + 2 * signal - 1)
        alpha = 3 * alpha + 2 * fact.degree - 2
    return best


def _two_token_order(facts: Sequence[ScoreFacts]) -> int | None:
    """``2 alpha_{s-1} + 1`` (Proposition C.3)."""
    alpha = 1
    for fact in facts[:-1]:
        if not fact.skew:
            alpha = 3 * alpha
        elif fact.first_even is None:
            return None
        else:
            alpha = (fact.first_even + 1) * alpha + fact.first_even
    return 2 * alpha + 1


def _layers(layers: Sequence[int]) -> str:
    return ", ".join(f"M_{i}" for i in layers)


def _words(determined: Sequence[int], signs: Sequence[int], free: Sequence[int]) -> str:
    fixed = [i for i in determined if i not in signs]
    parts = [f"L{', ' + _layers(fixed) if fixed else ''} determined"]
    if signs:
        parts.append(f"{_layers(signs)} determined up to independent signs")
    if free:
        parts.append(
            f"{_layers(free)} can be anything: layer {free[0] - 1} makes all tokens agree, so "
            "later scores are unobservable"
        )
    return "; ".join(parts) + "."


def _open(
    effective: EffectiveParameters,
    normalizers: tuple[Normalizer, ...],
    facts: Sequence[ScoreFacts],
    tokens: int,
    checks: tuple[Hypothesis, ...],
    seed: int,
) -> FiberResult:
    depth, width = effective.depth, effective.width
    determined = _determined_prefix(facts, tokens, width)
    signs = tuple(i for i in range(1, determined + 1) if facts[i - 1].even)
    collapse = next((i for i, fact in enumerate(facts, start=1) if _collapses(fact, tokens)), depth)
    free = tuple(range(collapse + 1, depth + 1))
    undecided = tuple(range(determined + 1, collapse + 1))
    fixed = [i for i in range(1, determined + 1) if i not in signs]
    known = f"L{', ' + _layers(fixed) if fixed else ''} determined"
    if signs:
        known += f"; {_layers(signs)} determined up to independent signs"
    if free:
        known += f"; {_layers(free)} can be anything"
    used = facts[:collapse]
    if not all(fact.sign_known for fact in used):
        reason = "the Taylor data of a normalizer do not tell whether a score's sign is visible"
    elif any(fact.skew and not fact.slope for fact in used):
        reason = "a normalizer without slope meets a score without symmetric part"
    elif any(fact.skew for fact in used) and not all(fact.slope for fact in used):
        reason = "behind a score without symmetric part every layer must have a slope"
    else:
        reason = "singular layers need different kinds of clouds"
    return FiberResult(
        outcome="open",
        status=Status.BOUNDED,
        theorem=f"none: {reason}",
        hypotheses=checks,
        fiber=f"{known}; open: whether the function determines {_layers(undecided)}.",
        readout_determined=True,
        determined_scores=tuple(range(1, determined + 1)),
        free_signs=signs,
        free_scores=free,
        undecided_scores=undecided,
        evidence=local_evidence(effective, normalizers, tokens, len(free) * width**2, seed),
    )


def _determined_prefix(facts: Sequence[ScoreFacts], tokens: int, width: int) -> int:
    """Largest ``j`` such that layers up to ``j`` are determined by one kind of cloud."""
    best = 0
    for j in range(1, len(facts) + 1):
        used, layer = facts[:j], facts[j - 1]
        if not layer.sign_known or not (layer.slope or not layer.skew):
            break
        slopes = all(fact.slope for fact in used)
        if (
            _line_prefix(used, tokens)
            or (slopes and all(fact.passes_plane(tokens, width) for fact in used[:-1]))
            or (slopes and all(fact.passes_covariance(tokens, width) for fact in used[:-1]))
        ):
            best = j
    return best
