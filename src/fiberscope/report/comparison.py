"""The comparison of two checkpoints as JSON and on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fiberscope.checkpoints.equality.comparison import CheckpointComparison
from fiberscope.checkpoints.equality.statistic import Statistic
from fiberscope.verdict import Outcome

if TYPE_CHECKING:
    from rich.console import Group

ROWS = 12


def comparison_json(found: CheckpointComparison) -> dict[str, Any]:
    """Plain data; the keys are described in docs/compare.md."""
    error, apart = found.forward_error, found.distance
    return {
        "schema": "fiberscope/compare/1",
        "family": "checkpoint",
        "verdict": found.outcome.name,
        "meaning": found.outcome.value,
        "status": "numerical",
        "reason": found.reason,
        "distance": None
        if apart is None
        else {
            "relative": _finite(apart.relative),
            "shuffled_weights": _finite(apart.shuffled),
            "meaning": "upper bound modulo the compact group in balanced frames, relative to the "
            "norm of the first model",
        },
        "first_difference": found.first_difference or None,
        "explanation": found.explanation or None,
        "statistics": [_statistic(part) for part in found.statistics],
        "forward_error": None
        if error is None
        else {
            "largest": _finite(error.largest),
            "relative": _finite(error.relative),
            "outputs": error.outputs,
        },
        "product_uncertainty": {
            "relative": found.uncertainty[0],
            "circuit": found.uncertainty[1] or None,
        },
        "frame": found.frame or None,
        "mechanisms": mechanisms(found),
        "formats": list(found.formats),
        "notes": list(found.notes),
    }


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def _statistic(part: Statistic) -> dict[str, Any]:
    return {
        "name": part.name,
        "rms": part.rms,
        "max": part.largest,
        "count": part.count,
        "relative": part.relative,
        "verdict": _word(part),
    }


def _word(part: Statistic) -> str:
    if part.is_same:
        return "same"
    return "different" if part.is_different else "undecided"


def mechanisms(found: CheckpointComparison) -> list[dict[str, Any]]:
    """What the witness does, mechanism by mechanism; without one, what the alignment shows."""
    if found.outcome is not Outcome.SAME:
        return []
    if found.witness is not None:
        return [
            {
                "mechanism": one.mechanism,
                "places": one.places,
                "size": one.size,
                "condition": one.condition,
            }
            for one in found.witness.mechanisms()
            if one.size > 0
        ]
    aligned = found.alignment
    if aligned is None:
        return []
    listed: list[dict[str, Any]] = [
        {"mechanism": f"frame: {aligned.frame.how}", "places": 1, "size": None, "condition": 1.0}
    ]
    for name, part in (("heads", aligned.heads), ("neurons", aligned.neurons)):
        listed.append({"mechanism": name, "places": len(part), "size": None, "condition": None})
    return listed


def comparison_table(found: CheckpointComparison, first: str, second: str) -> Group:
    """What a terminal shows."""
    from rich.console import Group
    from rich.table import Table

    head = Table(title="Comparison of two checkpoints", show_header=False)
    head.add_row("first", f"{first} ({found.formats[0]})")
    head.add_row("second", f"{second} ({found.formats[1]})")
    head.add_row("verdict", f"{found.outcome.name}: {found.reason}")
    if found.first_difference:
        head.add_row("first difference", found.first_difference)
    if found.explanation:
        head.add_row("explanation", found.explanation)
    if found.distance is not None:
        head.add_row(
            "distance",
            f"at most {found.distance.relative:.3g} of the first model's norm modulo symmetry "
            f"(shuffled weights: {found.distance.shuffled:.3g})",
        )
    if found.forward_error is not None:
        head.add_row(
            "outputs",
            f"differ by at most {found.forward_error.largest:.2e} on probe inputs in float64 "
            f"({found.forward_error.relative:.1e} of their size)",
        )
    if found.uncertainty[1]:
        head.add_row(
            "rounding allows",
            f"{found.uncertainty[0]:.1e} of the product of {found.uncertainty[1]}",
        )
    for one in mechanisms(found):
        size = "" if one["size"] is None else f", size {one['size']:.2g}"
        condition = one["condition"]
        stretched = f", condition {condition:.3g}" if condition and condition > 1 else ""
        head.add_row("moved by", f"{one['mechanism']} ({one['places']} places{size}{stretched})")
    for note in found.notes:
        head.add_row("note", note)
    return Group(head, _statistics(found.statistics)) if found.statistics else Group(head)


def _statistics(statistics: tuple[Statistic, ...]) -> Any:
    from rich.table import Table

    shown = sorted(statistics, key=lambda part: -part.rms)[:ROWS]
    title = f"Residuals in roundings (expected rms 1): the {len(shown)} largest"
    title += f" of {len(statistics)}" if len(statistics) > len(shown) else ""
    table = Table(title=title)
    table.add_column("circuit or tensor")
    for column in ("rms", "max", "numbers", "relative", ""):
        table.add_column(column, justify="right")
    for part in shown:
        table.add_row(
            part.name,
            f"{part.rms:.2f}" if part.rms < 1000 else f"{part.rms:.1e}",
            f"{part.largest:.1f}" if part.largest < 1000 else f"{part.largest:.1e}",
            f"{part.count:,}",
            f"{part.relative:.1e}",
            _word(part),
        )
    return table
