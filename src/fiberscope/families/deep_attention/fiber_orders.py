"""Taylor, sign and contact orders of a classified fiber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fiberscope.families.deep_attention.hypotheses import ScoreFacts
from fiberscope.families.deep_attention.orders import contact_orders, taylor_orders


@dataclass(frozen=True)
class Case:
    """A classification before its orders are filled in.

    Attributes
    ----------
    theorem
        What is applied.
    last
        The last determined layer, counted from 1.
    kind
        ``regular``, ``curvature``, ``two tokens``, ``cloud`` or ``two points``.
    """

    theorem: str
    last: int
    kind: str


def fiber_orders(case: Case, facts: Sequence[ScoreFacts]) -> dict[str, Any]:
    """Taylor, fiber, sign and contact orders that a theorem states for this case.

    All kinds but ``regular`` and ``two points`` have nonzero slopes, so their first degrees are 1;
    no theorem states orders for ``two points``.
    """
    if case.kind == "two points":
        return {}
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
