"""Frozen results: a value never travels without its status, evidence and assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np


class Status(Enum):
    """How far a value can be trusted; each member is a sentence."""

    CERTIFIED = "Proved in this run by exact or ball arithmetic: both bounds meet."
    BOUNDED = "Proved bounds in this run leave a gap."
    THEOREM = "Follows from a cited theorem whose hypotheses were checked."
    NUMERICAL = "Found in floating point, with the gap or tolerance stated."
    NOT_PROVIDED = "No analysis answers this here yet."

    @property
    def word(self) -> str:
        """The status as one lower-case word, as used in JSON."""
        return self.name.lower()


class Outcome(Enum):
    """The three answers to *same fiber?*, each with its exit code."""

    SAME = "The two parameters lie in one fiber; the witness carries one to the other."
    DIFFERENT = "The two parameters lie in different fibers."
    UNDECIDED = "The evidence does not decide; the reason is stated."

    @property
    def exit_code(self) -> int:
        """Exit code of the command line: 0 SAME, 1 DIFFERENT, 2 UNDECIDED."""
        return {"SAME": 0, "DIFFERENT": 1, "UNDECIDED": 2}[self.name]


@dataclass(frozen=True)
class Evidence:
    """One reason for a value: the rule or check, where it comes from, and how far it goes."""

    claim: str
    status: Status
    source: str = ""
    assumptions: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


@dataclass(frozen=True)
class Verdict:
    """A value with its status, evidence, tolerance or gap, and what was assumed."""

    value: Any
    status: Status
    evidence: tuple[Evidence, ...] = ()
    assumptions: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


def to_plain(value: Any) -> Any:
    """Turn results (dataclasses, enums, arrays, paths) into plain data that JSON can carry.

    Statuses become their lower-case words, other enums their names, arrays nested lists, and
    the floats that JSON has not become the strings ``inf``, ``-inf`` and ``nan``.
    """
    if isinstance(value, Status):
        return value.word
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted((to_plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value
