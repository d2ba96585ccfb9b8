"""The verdict on an alignment: every statistic, and what could have hidden a move."""

from __future__ import annotations

import numpy as np

from fiberscope.checkpoints.equality.alignment import Alignment, Progress, align
from fiberscope.checkpoints.equality.circuits import VACUOUS
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.frame import Frame, Freedom, freedom
from fiberscope.checkpoints.equality.open_coordinates import open_coordinates, open_directions
from fiberscope.checkpoints.equality.statistic import SAME_MAX, Statistic, allowance
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger import Ledger, ledger
from fiberscope.verdict import Outcome

BLURRED = 100.0
"""Roundings (rms) beyond which a difference is one although rounding blurs a circuit."""
CONCLUSIVE = 1e-4
"""Relative difference of a table that no fitted frame causes, however little determines it."""


def decided(
    first: StoredModel, second: StoredModel, progress: Progress | None, threads: int = 1
) -> tuple[Alignment, Outcome, str, str]:
    """Align the first to the second, and decide: alignment, verdict, reason, first difference."""
    acting = ledger(first.architecture, first.wiring.observable)
    folded = FoldedModel(first), FoldedModel(second)
    found = align(*folded, acting, progress, threads)
    tables = {part.label for part in (*folded[1].tables, *folded[1].kept)}
    outcome, reason, name = _decide(found, tables)
    kept = zip(folded[0].kept, folded[1].kept, strict=True)
    orderly = {b.label for a, b in kept if _agree_in_some_order(a, b)}
    by_frame = name not in tables or name in orderly
    if outcome is Outcome.DIFFERENT and by_frame and _renames(found.frame, acting):
        # Tables that differ do so under every renaming; what comes later may be its fault.
        open_ = _open(folded, found.frame)
        if open_:
            return found, Outcome.UNDECIDED, _undetermined(open_, found.frame), ""
    return found, outcome, reason, name


def _agree_in_some_order(a: Vectors, b: Vectors) -> bool:
    """Whether a renaming with signs may carry one kept vector to the other."""
    values, spreads = [], []
    for array in (a.array, b.array):
        order = np.abs(array.value).argsort(axis=-1)
        values.append(np.take_along_axis(np.abs(array.value), order, -1))
        spreads.append(np.take_along_axis(array.variance, order, -1))
    floor = np.square(allowance(1.0)) * np.square(values[1]).mean()
    apart = np.square(values[0] - values[1])
    return bool((apart <= SAME_MAX**2 * (spreads[0] + spreads[1] + floor)).all())


def _open(models: tuple[FoldedModel, FoldedModel], frame: Frame) -> int:
    """Coordinates, or directions inside blocks, that the tables of either model leave open."""
    if not frame.blocks:
        return max(open_coordinates(model) for model in models)
    columns = [columns for _, columns in frame.blocks]
    return open_directions(models[0], columns)


def _renames(frame: Frame, acting: Ledger) -> bool:
    return freedom(acting)[0] is Freedom.COORDINATES and not frame.undetermined


def _undetermined(count: int, frame: Frame) -> str:
    return (
        "the frame of the residual stream is not determined: the tables leave "
        f"{count} of {len(frame.matrix)} directions open, and with the frame tried the models "
        "differ"
    )


def _first(found: Alignment, differing: list[Statistic]) -> Statistic:
    """The part to name. Embeddings are added up, and a constant of one counts in another.

    One changed row of a short table moves its mean, and so every row of the table that takes it:
    of tables the one that differs most has changed.
    """
    tables = [part for part in found.statistics[: found.tables] if part.is_different]
    return max(tables, key=lambda part: part.rms) if tables else differing[0]


def _decide(found: Alignment, tables: set[str]) -> tuple[Outcome, str, str]:
    """Verdict, reason, and the first difference.

    ``tables`` names the tensors that determine the frame: where they differ, by more than a frame
    fitted to nearly empty directions could cause, they do so in every frame.
    """
    differing = [part for part in found.statistics if part.is_different]
    open_ = [part for part in found.statistics if not part.is_same and not part.is_different]
    if found.mismatches or differing:
        apart = [p for p in differing if p.name in tables and p.relative > CONCLUSIVE]
        if found.frame.undetermined and not apart:
            return Outcome.UNDECIDED, _undetermined(found.frame.undetermined, found.frame), ""
        share, circuit = found.uncertainty
        if not differing and share > VACUOUS:
            # What counts as live is as uncertain as what rounding blurs.
            return (
                Outcome.UNDECIDED,
                f"{found.mismatches[0]}; but rounding leaves {circuit} uncertain by {share:.0%}, "
                "and with it what is dead",
                "",
            )
        if not differing:
            return Outcome.DIFFERENT, found.mismatches[0], found.mismatches[0].split(":")[0]
        part = apart[0] if found.frame.undetermined else _first(found, differing)
        if share > VACUOUS and max(one.rms for one in differing) < BLURRED:
            # The basis of a circuit that rounding blurs is as uncertain as the circuit.
            return (
                Outcome.UNDECIDED,
                f"{part.name} differs by {part.rms:.3g} roundings (root mean square), but rounding "
                f"leaves {circuit} uncertain by {share:.0%}, and with it what was fitted",
                "",
            )
        return (
            Outcome.DIFFERENT,
            f"{part.name} differs by {part.rms:.3g} roundings (root mean square; "
            f"{part.largest:.3g} at most), {part.relative:.2g} of its size",
            part.name,
        )
    if open_:
        part = max(open_, key=lambda one: one.rms)
        return (
            Outcome.UNDECIDED,
            f"{part.name} is off by {part.rms:.2f} roundings (root mean square; {part.largest:.1f} "
            "at most): more than rounding usually leaves, less than a difference shows",
            "",
        )
    if found.reasons:
        return Outcome.UNDECIDED, found.reasons[0], ""
    share, circuit = found.uncertainty
    if share > VACUOUS:
        return (
            Outcome.UNDECIDED,
            f"all stored numbers agree within rounding, but that rounding leaves {circuit} "
            f"uncertain by {share:.0%}, so agreement says too little about the function",
            "",
        )
    return Outcome.SAME, "every stored number lies within rounding of an exact move", ""
