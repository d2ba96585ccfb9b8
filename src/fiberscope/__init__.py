"""What a model's behaviour determines about its parameters, and how strongly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fiberscope import training
    from fiberscope.analysis import check_family, dimension
    from fiberscope.checkpoints.architecture.program import Observable
    from fiberscope.checkpoints.canonical.canonicalize import canonicalize
    from fiberscope.checkpoints.equality.comparison import (
        compare_checkpoints,
        compare_models,
    )
    from fiberscope.checkpoints.fingerprint.fingerprint import fingerprint
    from fiberscope.checkpoints.moves.transform import transform
    from fiberscope.errors import InputError
    from fiberscope.report.inspection_report import InspectionReport, inspect
    from fiberscope.verdict import Evidence, Outcome, Status, Verdict

_PUBLIC = {
    "Evidence": "fiberscope.verdict",
    "InputError": "fiberscope.errors",
    "InspectionReport": "fiberscope.report.inspection_report",
    "Observable": "fiberscope.checkpoints.architecture.program",
    "Outcome": "fiberscope.verdict",
    "Status": "fiberscope.verdict",
    "Verdict": "fiberscope.verdict",
    "canonicalize": "fiberscope.checkpoints.canonical.canonicalize",
    "check_family": "fiberscope.analysis",
    "compare_checkpoints": "fiberscope.checkpoints.equality.comparison",
    "compare_models": "fiberscope.checkpoints.equality.comparison",
    "dimension": "fiberscope.analysis",
    "fingerprint": "fiberscope.checkpoints.fingerprint.fingerprint",
    "inspect": "fiberscope.report.inspection_report",
    "transform": "fiberscope.checkpoints.moves.transform",
}
"""Public name -> the module that defines it; imported on first use, so that the command line and
``import fiberscope`` stay instant."""

__all__ = [
    "Evidence",
    "InputError",
    "InspectionReport",
    "Observable",
    "Outcome",
    "Status",
    "Verdict",
    "__version__",
    "canonicalize",
    "check_family",
    "compare_checkpoints",
    "compare_models",
    "dimension",
    "fingerprint",
    "inspect",
    "training",
    "transform",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or the subpackage ``training``, on first use."""
    if name == "training":
        return importlib.import_module("fiberscope.training")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fiberscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
