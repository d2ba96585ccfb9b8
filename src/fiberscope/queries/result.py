"""What a recovery returns: heads with their precision, its cost, and what stays open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.final_check import FinalCheck
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.refusals import NotOfThisFormError as NotOfThisFormError
from fiberscope.queries.refusals import NotRecoveredError as NotRecoveredError
from fiberscope.queries.session import Purpose, QueryCount
from fiberscope.verdict import Evidence, to_plain

PRECISION_DEFINITION = (
    "bits of a head: -log2 of the larger of |W' - W|_F / |W|_F and |v' - v|_2 / |v|_2, "
    "where W', v' are returned and W, v true (1 replaces |W|_F where W is zero within its error)"
)
AMBIGUITY = (
    "Only the set of (W, v) is determined: heads with equal W show only the sum of their v, heads "
    "whose v vanishes or cancels do not show at all, and the order of heads is a convention. "
    "W and v themselves have no further freedom; factors of W (keys and queries) are not seen."
)


class BoundKind(Enum):
    """How far a stated precision can be trusted; each member is a sentence."""

    CERTIFIED = "Enclosures in ball arithmetic contain the true heads, for an oracle of this form."
    CONDITIONAL = (
        "Estimated: holds if the oracle is of this form and its errors are as measured or declared."
    )


@dataclass(frozen=True)
class Precision:
    """Bits of every head (see :data:`PRECISION_DEFINITION`), in the order of the heads.

    Attributes
    ----------
    W, v
        Bits of the score matrix and of the value vector of each head, lower bounds in the sense of
        ``kind``.
    kind
        Certified or conditional.
    how
        How the bound was obtained, one sentence.
    """

    W: tuple[float, ...]
    v: tuple[float, ...]
    kind: BoundKind
    how: str

    @property
    def bits(self) -> float | None:
        """Of the worst head; None without heads."""
        return min((*self.W, *self.v), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "worst_head_bits": to_plain(self.bits),
            "W_bits": to_plain(self.W),
            "v_bits": to_plain(self.v),
            "kind": self.kind.name.lower(),
            "meaning": self.kind.value,
            "how": self.how,
            "definition": PRECISION_DEFINITION,
        }


@dataclass(frozen=True)
class Estimate:
    """What a method hands back before the final check.

    Attributes
    ----------
    heads
        In canonical form.
    precision
        In the order of ``heads``.
    method
        Its name, as documented.
    notes
        What the reader should know: fallbacks used, weak heads, limits met.
    evidence
        Claims with their status.
    explained
        Relative error that the final check may grant; default what ``precision`` states.
    further_head
        Behind noise: 2-norm of the values of a further head relative to this one's, below which it
        would not have been seen (None where nothing was measured on that).
    """

    heads: AttentionHeads
    precision: Precision
    method: str
    notes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    explained: float | None = None
    further_head: float | None = None


@dataclass(frozen=True)
class Recovery:
    """An estimate that passed the final check, with all that it cost."""

    estimate: Estimate
    noise: NoiseLevel
    queries: Mapping[Purpose, QueryCount]
    final_check: FinalCheck
    ambiguity: str = AMBIGUITY
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> AttentionHeads:
        """The heads."""
        return self.estimate.heads

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: float64 (midpoints of balls), and enclosures as decimal strings."""
        middle = self.heads.middle()
        enclosures = None
        if self.heads.in_balls:
            enclosures = {"W": _strings(self.heads.W), "v": _strings(self.heads.v)}
        return {
            "heads": self.heads.count,
            "width": self.heads.width,
            "W": to_plain(middle.W),
            "v": to_plain(middle.v),
            "enclosures": enclosures,
            "method": self.estimate.method,
            "precision": self.estimate.precision.to_dict(),
            "queries": queries_to_dict(self.queries),
            "noise": to_plain(self.noise),
            "final_check": to_plain(self.final_check),
            "ambiguity": self.ambiguity,
            "notes": list(self.estimate.notes),
            "evidence": to_plain(self.estimate.evidence),
            "smallest_visible_further_head": to_plain(self.estimate.further_head),
            **to_plain(self.statistics),
        }


def _strings(values: NDArray[Any]) -> Any:
    """Nested lists of ``[middle +/- radius]`` in decimals; each encloses its ball."""
    if values.ndim == 1:
        return [value.str(40) for value in values.tolist()]
    return [_strings(part) for part in values]


def queries_to_dict(counts: Mapping[Purpose, QueryCount]) -> dict[str, Any]:
    """Queries and greatest length by purpose, and in all."""
    plain: dict[str, Any] = {p.value: to_plain(count) for p, count in counts.items()}
    plain["total"] = {
        "queries": sum(count.queries for count in counts.values()),
        "longest": int(np.max([count.longest for count in counts.values()])),
    }
    return plain
