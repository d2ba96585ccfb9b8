"""Why a recovery gives no answer: each reason has a name, and none of them is a wrong answer."""

from __future__ import annotations

from enum import Enum

from fiberscope.queries.result import NotRecoveredError


class Reason(Enum):
    """The reasons for giving no answer; each member is a sentence."""

    MORE_HEADS = "The function has more heads than the stated bound, or is not of this form."
    NOT_OF_THIS_FORM = "The answers contradict every sum of attention heads of this width."
    PRECISION = "The oracle's digits, or the stated limit on them, do not resolve the heads."
    COINCIDENCE = "Every redraw met heads that agree on a probe; they may agree everywhere."
    NO_CIRCLE = "No scan found steps that separate into single heads."
    TOO_MANY_HEADS = "There are more heads than this method separates at this width."
    CHECK_FAILED = "Fresh queries disagree with every answer that was found."
    RANK = "The heads have a larger rank than the stated bound."
    HIDDEN_HEADS = "Heads that the odd part does not show could not be found otherwise."
    NO_NEURONS = "The readout on top of the attention could not be determined."
    QUERIES = "The stated number of queries is used up."


class RecoveryRefusedError(NotRecoveredError):
    """No answer is given, for a named reason.

    Parameters
    ----------
    kind
        Which of the named reasons.
    detail
        A sentence with what was seen.
    """

    def __init__(self, kind: Reason, detail: str = "") -> None:
        self.kind, self.detail = kind, detail
        super().__init__(f"{kind.value} {detail}".strip())
