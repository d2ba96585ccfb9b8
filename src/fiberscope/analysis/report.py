"""Outcome of the contract check: every check with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fiberscope.verdict import to_plain


class CheckOutcome(Enum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_PROVIDED = "not provided"


@dataclass(frozen=True)
class Check:
    """One check: what should hold, what came out, and the numbers."""

    name: str
    outcome: CheckOutcome
    claim: str
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = ", ".join(f"{key} {_short(value)}" for key, value in self.statistics.items())
        return f"{self.outcome.value:12} {self.name}: {self.claim}" + (
            f" ({numbers})" if numbers else ""
        )


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class ContractReport:
    """All checks of one family.

    Attributes
    ----------
    family, seed
        What was checked, and the seed that repeats it.
    checks
        In the order in which they ran.
    dimension, nullity, unexplained
        Functional dimension at the generic point, parameters minus that, and what the symmetries
        leave of it.
    """

    family: str
    seed: int
    checks: tuple[Check, ...]
    dimension: int
    nullity: int
    unexplained: int

    def _with(self, outcome: CheckOutcome) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome is outcome)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that failed."""
        return self._with(CheckOutcome.FAILED)

    @property
    def passed(self) -> tuple[Check, ...]:
        """Checks that passed."""
        return self._with(CheckOutcome.PASSED)

    @property
    def not_provided(self) -> tuple[Check, ...]:
        """Checks that the family offers nothing for."""
        return self._with(CheckOutcome.NOT_PROVIDED)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)

    def __str__(self) -> str:
        head = (
            f"{self.family}: {len(self.passed)} passed, {len(self.failed)} failed, "
            f"{len(self.not_provided)} not provided (seed {self.seed})"
        )
        return "\n".join([head, *(f"  {check}" for check in self.checks)])


class ContractError(AssertionError):
    """A family breaks the contract; the message lists every failed check with its numbers."""

    def __init__(self, report: ContractReport) -> None:
        self.report = report
        lines = "\n".join(f"  {check}" for check in report.failed)
        super().__init__(f"{report.family} breaks the contract (seed {report.seed}):\n{lines}")
