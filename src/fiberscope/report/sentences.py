"""Sentences that the terminal and the HTML page share."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.inspection import WeightFindings
from fiberscope.checkpoints.inspection.slow_planes import SLOW_TURN, SlowPlanes
from fiberscope.checkpoints.ledger import Mechanism
from fiberscope.report.inspect_json import breaking
from fiberscope.report.inspection_report import InspectionReport
from fiberscope.report.mechanisms import CATALOGUE
from fiberscope.report.numerals import count, real, share

_OBSERVABLES = {
    Observable.LOGITS: "the logits",
    Observable.PROBABILITIES: "the output probabilities",
    Observable.HIDDEN: "the last hidden state",
}

UPPER_BOUND = "An upper bound, because a condition fails (see Conditions below)."
NO_WEIGHTS = "No weights were given: only the architecture was inspected."
NOTHING_EXCEPTIONAL = (
    "Nothing: no rank-deficient or nearly deficient head, no dead or duplicate neuron, no zero or "
    "identical row, no zero gain, no equal gains that let the stream turn."
)
NOTHING_EXCEPTIONAL_NORMALISED = (
    NOTHING_EXCEPTIONAL + " Queries and keys are normalised here: of them only gains and silent "
    "heads were examined."
)


def nothing_exceptional(weights: WeightFindings) -> str:
    """What was looked for in vain; normalised queries and keys have no product to examine."""
    normalised = any(heads.query_key is None for heads in weights.conditioning)
    return NOTHING_EXCEPTIONAL_NORMALISED if normalised else NOTHING_EXCEPTIONAL


def observable_words(observable: Observable) -> str:
    """What is observed, in words."""
    return _OBSERVABLES[observable]


def headline(report: InspectionReport) -> str:
    """The three numbers that matter, in one sentence."""
    found = report.ledger
    observed = observable_words(found.observable)
    verb = "determine" if observed.endswith("s") else "determines"
    bound, least = ("", "") if report.is_exact else ("at most ", "at least ")
    return (
        f"{count(found.parameters)} parameters; {observed} {verb} {bound}"
        f"{count(found.identified)} of them; {least}{count(found.undetermined)} "
        f"({share(found.undetermined, found.parameters)}) have no effect on "
        f"{'them' if observed.endswith('s') else 'it'}."
    )


def architecture_line(report: InspectionReport) -> str:
    """Class, sizes, tying, number formats."""
    laid_out, weights = report.ledger.architecture, report.inspection.weights
    sizes = ", ".join(f"{name} {value}" for name, value in laid_out.sizes.items())
    parts = [f"{laid_out.name} ({laid_out.family})"]
    if sizes:
        parts.append(sizes)
    if laid_out.head is not None:
        parts.append("tied embeddings" if laid_out.tied else "untied embeddings")
    parts.append("no weights" if weights is None else f"weights in {', '.join(weights.dtypes)}")
    return "; ".join(parts)


def slow_planes_sentence(slow: SlowPlanes | None) -> str:
    """Rotary planes that hardly turn, or nothing."""
    if slow is None:
        return ""
    return (
        f"{slow.planes} of {slow.of} rotary planes turn less than {SLOW_TURN:g} rad over "
        f"{slow.tokens:,} tokens: nearly unrotated, so that nearly a whole basis change acts on "
        "them."
    )


def approximate_sentence(weights: WeightFindings | None) -> str:
    """What sets the approximate symmetries apart."""
    text = "Broken only by the epsilon inside a norm; not part of the numbers above."
    if weights is not None and weights.breaking:
        text += (
            " A change of scale by 1 % changes what the norm returns by 1 % times the size of the "
            "breaking, estimated from the weights."
        )
    return text


def plain_approximate(mechanism: Mechanism, weights: WeightFindings | None) -> str:
    """An approximate mechanism in words, with the size of its breaking when weights are there."""
    text = CATALOGUE[mechanism.name].plain
    most = breaking(mechanism, weights)
    if most is None:
        return text
    return f"{text} Size of the breaking: about {real(most.size)} ({most.where})."
