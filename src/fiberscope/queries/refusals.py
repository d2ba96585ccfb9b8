"""How a recovery ends without an answer."""

from __future__ import annotations


class NotRecoveredError(Exception):
    """No answer: the reason in one sentence; nothing is claimed about the oracle (UNDECIDED).

    Parameters
    ----------
    reason
        What was tried and where it ended.
    notes
        More to read, one sentence each.
    """

    def __init__(self, reason: str, notes: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.notes = reason, notes


class NotOfThisFormError(Exception):
    """The oracle contradicts an identity of all functions of this form (exit code 1).

    Parameters
    ----------
    test
        Name of the test.
    identity
        What would hold.
    violation, threshold
        The deviation found and the largest that noise explains.
    hint
        What may be tried instead.
    """

    def __init__(
        self, test: str, identity: str, violation: float, threshold: float, hint: str = ""
    ) -> None:
        how = f"by {violation:.2g}, where noise explains {threshold:.2g}"
        if violation == float("inf"):
            how = "with NaN or infinity"
        super().__init__(f"not of this form: {identity} fails ({test}) {how}{hint}")
        self.test, self.identity = test, identity
        self.violation, self.threshold = violation, threshold
