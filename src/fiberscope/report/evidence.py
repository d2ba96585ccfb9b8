"""Why a report can be believed: the rule behind each line, the second route, the twin check."""

from __future__ import annotations

from typing import Any

from fiberscope.checkpoints.ledger import Ledger
from fiberscope.report.mechanisms import CATALOGUE
from fiberscope.report.verification import TwinCheck
from fiberscope.verdict import Evidence, Status

SECOND_ROUTE = "second route"
TWIN = "twin check"


def rules(found: Ledger) -> list[tuple[str, Evidence]]:
    """One entry a mechanism that occurs: the name of its line, and its rule."""
    entries = []
    for name in dict.fromkeys(mechanism.name for mechanism in found.mechanisms()):
        explanation = CATALOGUE[name]
        evidence = Evidence(
            explanation.plain,
            Status.THEOREM,
            explanation.source,
            statistics={"mathematics": explanation.mathematics},
        )
        entries.append((name, evidence))
    return entries


def checks(found: Ledger, twin: TwinCheck | None) -> list[tuple[str, Evidence]]:
    """The checks on the rules: the second route, and the twin when one was measured."""
    entries = [(SECOND_ROUTE, second_route(found))]
    return entries if twin is None else [*entries, (TWIN, twin_evidence(twin))]


def second_route(found: Ledger) -> Evidence:
    """Whether counting effective coordinates gives the same number as the symmetries do."""
    difference = found.identified - found.effective
    failing = [condition.statement for condition in found.conditions if not condition.holds]
    statistics: dict[str, Any] = {
        "identified_by_symmetries": found.identified,
        "effective_coordinates": found.effective,
        "difference": difference,
        "agrees": difference == 0,
    }
    if difference == 0:
        claim = (
            f"counting effective coordinates, which uses no symmetry, gives the same "
            f"{found.effective:,} identified parameters"
        )
        return Evidence(claim, Status.THEOREM, "an independent count", statistics=statistics)
    claim = (
        f"counting effective coordinates gives {found.effective:,} identified parameters, "
        f"{abs(difference):,} {'fewer' if difference > 0 else 'more'} than the symmetries leave"
    )
    if difference > 0 and failing:
        claim += ", because a condition below fails; the smaller number is the better bound"
        return Evidence(claim, Status.THEOREM, "an independent count", statistics=statistics)
    claim += " and no condition explains it: do not trust this report"
    return Evidence(claim, Status.NOT_PROVIDED, "an independent count", statistics=statistics)


def twin_evidence(check: TwinCheck) -> Evidence:
    """What the measured toy says about the rules."""
    measured = f"{check.measured_exact:,} exact and {check.measured_approximate:,} approximate"
    predicted = f"{check.predicted_exact:,} exact and {check.predicted_approximate:,} approximate"
    toy = f"toy {check.name} with {check.parameters:,} parameters, observing {check.observable}"
    if check.agrees:
        claim = f"{toy}: {measured} null directions measured, as the rules predict"
    elif not check.saturated:
        claim = (
            f"{toy}: {measured} null directions measured, but the number still changes with more "
            f"inputs, so it neither confirms nor refutes the {predicted} that the rules predict"
        )
    else:
        claim = f"{toy}: {measured} null directions measured, but the rules predict {predicted}"
    statistics: dict[str, Any] = {
        "agrees": check.agrees,
        "sizes": check.sizes,
        "parameters": check.parameters,
        "predicted_parameters": check.predicted_parameters,
        "predicted_exact": check.predicted_exact,
        "measured_exact": check.measured_exact,
        "predicted_approximate": check.predicted_approximate,
        "measured_approximate": check.measured_approximate,
        "gap": check.gap,
        "saturated": check.saturated,
        "seed": check.seed,
        "seconds": check.seconds,
    }
    source = "Jacobian of the class published in the transformers package, in float64"
    return Evidence(claim, Status.NUMERICAL, source, check.failing, statistics)
