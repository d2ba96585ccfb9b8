"""The complete fiber of a deep attention network, by the theorem that covers it, or 'open'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.effective import EffectiveParameters
from fiberscope.families.deep_attention.fiber_orders import Case, fiber_orders
from fiberscope.families.deep_attention.hypotheses import ScoreFacts, all_facts
from fiberscope.families.deep_attention.local_evidence import LocalEvidence, local_evidence
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.two_points import two_point_walk
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
        ``THEOREM``, ``BOUNDED`` where the case is open, or ``NUMERICAL`` where a tolerance changed
        a hypothesis (see ``rounded_scores``).
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
        Certified local bounds at the exact point, in open cases or when asked for.
    rounded_scores
        Layers whose score a tolerance replaced by its skew part: the answer is the fiber of that
        network, near the given one.
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
    rounded_scores: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


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
    rounded = tuple(i for i, fact in enumerate(facts, start=1) if fact.rounded)
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
    case = _case(facts, tokens, width) or _two_point_case(facts, tokens)
    if case is None:
        return _open(effective, chosen, facts, tokens, checks, seed, (rounded, tolerance))
    determined = tuple(range(1, case.last + 1))
    signs = tuple(i for i in determined if facts[i - 1].even and not facts[i - 1].zero)
    free = tuple(range(case.last + 1, depth + 1))
    orders = fiber_orders(case, facts)
    local = None
    if evidence:
        # What a rounded score erases need not be free at the exact point.
        proved_free = 0 if rounded else len(free) * width**2
        local = local_evidence(effective, chosen, tokens, proved_free, seed)
    return FiberResult(
        outcome="complete",
        status=Status.NUMERICAL if rounded else Status.THEOREM,
        theorem=case.theorem,
        hypotheses=checks,
        fiber=_rounding(rounded, tolerance) + _words(determined, signs, free),
        readout_determined=True,
        determined_scores=determined,
        free_signs=signs,
        free_scores=free,
        undecided_scores=(),
        evidence=local,
        rounded_scores=rounded,
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
        share = f"|sym M| / |M| = {_share(fact)}"
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


def _share(fact: ScoreFacts) -> str:
    if fact.symmetric_share == 0 and not fact.skew:
        return "below 1e-161"
    return f"{fact.symmetric_share:.3g}"


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


def _case(facts: Sequence[ScoreFacts], tokens: int, width: int) -> Case | None:
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
            return Case("Theorem 1 (all symmetric parts nonzero)", last, "regular")
        if not any(fact.skew for fact in prefix):
            return Case("Theorem 1 up to the first collapse, Theorem 2 after it", last, "regular")
        if tokens == 2:
            return Case("Theorem 2 (ii), two tokens", last, "two tokens")
        if all(fact.curvature for fact in prefix):
            return Case("Theorem 2 (i), nonzero slopes and curvatures", last, "curvature")
        name = "Lemmas A.3 and B.1 (nonskew scores, and skew ones with slope and curvature)"
        return Case(name, last, "curvature")
    if not all(fact.slope for fact in facts[:last]):
        return None
    if all(fact.passes_plane(tokens, width) for fact in prefix):
        name = "Corollary 4.1 (depth two)" if depth == 2 else "Proposition C.6 (generic planes)"
        return Case(name, last, "cloud")
    if all(fact.passes_covariance(tokens, width) for fact in prefix):
        return Case("Proposition C.5 (invertible prefixes)", last, "cloud")
    return None


def _two_point_case(facts: Sequence[ScoreFacts], tokens: int) -> Case | None:
    last, collapsed = two_point_walk(facts, tokens)
    if last < len(facts) and not collapsed:
        return None
    name = "clouds at two points (Appendices A and B, carried on; proof in the documentation)"
    return Case(name, last, "two points")


def _layers(layers: Sequence[int]) -> str:
    return ", ".join(f"M_{i}" for i in layers)


def _rounding(rounded: Sequence[int], tolerance: float) -> str:
    if not rounded:
        return ""
    return f"With {_layers(rounded)} taken as skew (tolerance {tolerance:g}): "


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
    rounding: tuple[tuple[int, ...], float],
) -> FiberResult:
    depth, width = effective.depth, effective.width
    determined = max(_determined_prefix(facts, tokens, width), two_point_walk(facts, tokens)[0])
    known_layers = range(1, determined + 1)
    signs = tuple(i for i in known_layers if facts[i - 1].even and not facts[i - 1].zero)
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
    rounded, tolerance = rounding
    if not all(fact.sign_known for fact in used):
        reason = "the Taylor data of a normalizer do not tell whether a score's sign is visible"
    elif any(fact.skew and not fact.slope for fact in used):
        reason = "a normalizer without slope meets a score without symmetric part"
    elif any(fact.skew for fact in used) and not all(fact.slope for fact in used):
        reason = "behind a score without symmetric part every layer must have a slope"
    else:
        reason = "singular layers need different kinds of clouds"
    start = _rounding(rounded, tolerance)
    proved_free = 0 if rounded else len(free) * width**2
    return FiberResult(
        outcome="open",
        status=Status.NUMERICAL if rounded else Status.BOUNDED,
        theorem=f"none: {reason}",
        hypotheses=checks,
        fiber=f"{start}{known}; open: whether the function determines {_layers(undecided)}.",
        readout_determined=True,
        determined_scores=tuple(range(1, determined + 1)),
        free_signs=signs,
        free_scores=free,
        undecided_scores=undecided,
        evidence=local_evidence(effective, normalizers, tokens, proved_free, seed),
        rounded_scores=rounded,
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
