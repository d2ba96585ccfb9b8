"""The report of `inspect` as an object: the same in a terminal, a notebook, JSON and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.inspection import Inspection
from fiberscope.checkpoints.inspection import inspect as inspect_checkpoint
from fiberscope.checkpoints.inspection.inspection import Progress
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.report.verification import TwinCheck, require_twins, verify


@dataclass(frozen=True)
class InspectionReport:
    """What the function of a checkpoint determines about its parameters.

    Attributes
    ----------
    inspection
        The ledger of the architecture and what the weights add to it.
    twin
        The check against a toy of the published class, when it was asked for.
    """

    inspection: Inspection
    twin: TwinCheck | None = None

    @property
    def ledger(self) -> Ledger:
        """Every symmetry of the architecture, with its dimension."""
        return self.inspection.ledger

    @property
    def parameters(self) -> int:
        """Stored parameters, tied ones once."""
        return self.ledger.parameters

    @property
    def identified(self) -> int:
        """Parameters that the observable determines; an upper bound unless ``is_exact``."""
        return self.ledger.identified

    @property
    def undetermined(self) -> int:
        """Dimension of the exact continuous symmetries: ``parameters - identified``."""
        return self.ledger.undetermined

    @property
    def is_exact(self) -> bool:
        """Whether every condition holds, so that ``identified`` is no mere upper bound."""
        return self.inspection.is_exact

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: what ``fiberscope inspect --json`` prints."""
        from fiberscope.report.inspect_json import to_dict

        return to_dict(self)

    def to_text(self, width: int = 100) -> str:
        """The terminal report without colour, at most ``width`` columns wide."""
        from fiberscope.report.inspect_terminal import to_text

        return to_text(self, width)

    def to_html(self) -> str:
        """One self-contained page."""
        from fiberscope.report.inspect_html import page

        return page(self)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from fiberscope.report.inspect_html import fragment

        return fragment(self)


def inspect(
    location: str | Path,
    observable: Observable | str | None = None,
    *,
    check_twin: bool = False,
    seed: int = 0,
    assumed_harmless: Iterable[str] = (),
    progress: Progress | None = None,
) -> InspectionReport:
    """Report what the function of a checkpoint determines about its parameters.

    Parameters
    ----------
    location
        A Hugging Face directory, a bare config.json, a safetensors or GGUF file, or a hub id.
    observable
        ``"logits"``, ``"probabilities"`` or ``"hidden"``; by default logits for classes with a
        head and the last hidden state for the others.
    check_twin
        Also measure a toy of the published class (needs the ``twins`` extra).
    seed
        Seed of the toy's parameters and inputs.
    assumed_harmless
        Keys of config.json that the tables do not know and that change nothing.
    progress
        Called before every step with (steps done, steps in all, what comes next).

    Raises
    ------
    InputError
        For anything wrong with the files or the configuration, in one sentence.
    """
    if check_twin:
        require_twins()
    found = inspect_checkpoint(
        location, observable, assumed_harmless=assumed_harmless, progress=progress
    )
    if not check_twin:
        return InspectionReport(found)
    if progress is not None:
        progress(0, 1, "measuring a toy of the class")
    return InspectionReport(found, verify(found, seed))
