"""`compare` for checkpoints: SAME with a witness, DIFFERENT with a distance, or UNDECIDED."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality.alignment import Alignment, Progress, align
from fiberscope.checkpoints.equality.distance import Distance, distance
from fiberscope.checkpoints.equality.explanation import explanation
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.frame import Frame, Freedom, freedom
from fiberscope.checkpoints.equality.heads import VACUOUS
from fiberscope.checkpoints.equality.noisy import Noisy, rounding_variance
from fiberscope.checkpoints.equality.open_coordinates import open_coordinates, open_directions
from fiberscope.checkpoints.equality.settings import differences
from fiberscope.checkpoints.equality.statistic import Statistic, statistic
from fiberscope.checkpoints.equality.stored import FORMATS, StoredModel
from fiberscope.checkpoints.equality.tying import brought_together
from fiberscope.checkpoints.equality.witness import witness_of
from fiberscope.checkpoints.forward import (
    Deviation,
    deviation,
    output_width,
    outputs,
    probe_inputs,
)
from fiberscope.checkpoints.ledger import Ledger, ledger
from fiberscope.checkpoints.moves.witness import Witness
from fiberscope.checkpoints.processes import results
from fiberscope.checkpoints.threads import limited
from fiberscope.errors import InputError
from fiberscope.verdict import Outcome

LARGEST_WITNESS = 60_000_000
"""Parameters up to which a witness is built unasked; it needs both models in float64."""
FORKED = 20_000_000
"""Parameters from which several processes pay."""
CLEARLY = 1000.0
"""Roundings (rms) beyond which the direction of comparison cannot matter."""
CONCLUSIVE = 1e-4
"""Relative difference of a table that no fitted frame causes, however little determines it."""
_PREFERRED = (Outcome.SAME, Outcome.UNDECIDED, Outcome.DIFFERENT)
DRAWS = 4
"""Draws of the storage rounding with which a witness's arrival is judged."""


@dataclass(frozen=True)
class CheckpointComparison:
    """Whether two checkpoints are one function, and on what grounds.

    Attributes
    ----------
    outcome
        SAME: the second's stored numbers lie within storage rounding of an exact move of the
        first (a backward error; numerical evidence). DIFFERENT: they do not, whatever the move.
        UNDECIDED: the reason says what is missing.
    reason
        The grounds in one sentence.
    statistics
        One per circuit or tensor, in the order of the network, in roundings of the storage.
    first_difference
        For DIFFERENT, the first circuit or tensor that differs after the best alignment.
    distance
        For DIFFERENT, the distance modulo symmetry (an upper bound) and its background.
    forward_error
        Deviation of the outputs on probe inputs in float64.
    uncertainty
        Largest relative rounding uncertainty of a circuit's product, and the circuit.
    witness
        For SAME, the transformation, re-applied and checked; None where there is none to write.
    explanation
        For DIFFERENT, what would explain it.
    formats
        Storage of both models.
    """

    outcome: Outcome
    reason: str
    statistics: tuple[Statistic, ...] = ()
    first_difference: str = ""
    distance: Distance | None = None
    forward_error: Deviation | None = None
    uncertainty: tuple[float, str] = (0.0, "")
    witness: Witness | None = None
    explanation: str = ""
    formats: tuple[str, str] = ("", "")
    notes: tuple[str, ...] = ()
    frame: str = ""
    alignment: Alignment | None = field(default=None, repr=False)

    @property
    def worst(self) -> Statistic | None:
        """The statistic farthest from rounding."""
        return max(self.statistics, key=lambda one: one.rms, default=None)


def compare_checkpoints(
    first: str | Path,
    second: str | Path,
    observable: Observable | str | None = None,
    *,
    seed: int = 0,
    want_witness: bool = False,
    progress: Progress | None = None,
    processes: int = 1,
) -> CheckpointComparison:
    """Compare two checkpoints on disk.

    Parameters
    ----------
    observable
        What is observed of both; by default logits, or the hidden state of models without a head.
    seed
        Seed of the probe inputs.
    want_witness
        Build the witness whatever the size of the models.
    processes
        How many may work on large models; more than one only on Linux, in programs without threads.

    Raises
    ------
    InputError
        For anything wrong with either of them, in one sentence.
    """
    one = StoredModel.open(first, observable)
    other = StoredModel.open(second, observable or one.wiring.observable)
    return compare_models(
        one,
        other,
        seed=seed,
        want_witness=want_witness,
        progress=progress,
        processes=processes,
    )


def compare_models(
    first: StoredModel,
    second: StoredModel,
    *,
    seed: int = 0,
    want_witness: bool = False,
    progress: Progress | None = None,
    processes: int = 1,
) -> CheckpointComparison:
    """Compare two opened models; see :class:`CheckpointComparison`."""
    first, second, notes = brought_together(first, second)
    formats = (first.dtype, second.dtype)
    if first.wiring.observable is not second.wiring.observable:
        raise InputError(
            f"{first.label} is observed by its {first.wiring.observable.value}, {second.label} by "
            f"its {second.wiring.observable.value}; name one for both with --observable"
        )
    hidden = first.wiring.observable is Observable.HIDDEN
    if hidden and (first.architecture.head or second.architecture.head):
        notes += (
            "only the hidden state is observed, so heads are not compared; "
            "--observable logits compares them too",
        )
    if apart := differences(first.architecture, second.architecture, with_head=not hidden):
        more = f" (and {len(apart) - 1} more)" if len(apart) > 1 else ""
        return CheckpointComparison(
            Outcome.DIFFERENT,
            f"the architectures differ: {apart[0]}{more}",
            first_difference=apart[0],
            formats=formats,
            notes=notes,
        )
    # Residuals are measured in the coordinates of the coarser storage, where rounding is
    # independent from number to number; carried over it would not be.
    turned = FORMATS.index(first.dtype) > FORMATS.index(second.dtype)
    one, other = (second, first) if turned else (first, second)
    if first.architecture.parameters < FORKED:
        processes = 1
    found, outcome, reason, name = _aligned(one, other, progress, processes)
    if outcome is not Outcome.SAME:
        # Either of the two may be the copy, and only the copy's rounding is independent noise.
        worst = max((part.rms for part in found.statistics), default=0.0)
        if worst < CLEARLY:
            again = _aligned(other, one, progress, processes)
            if _PREFERRED.index(again[1]) < _PREFERRED.index(outcome):
                found, outcome, reason, name = again
                turned = not turned
                one, other = other, one
    error = _forward_error(first, second, seed, processes)
    shared: dict[str, Any] = {
        "statistics": tuple(found.statistics),
        "forward_error": error,
        "uncertainty": found.uncertainty,
        "formats": formats,
        "frame": found.frame.how,
        "alignment": found,
    }
    if outcome is Outcome.DIFFERENT:
        return CheckpointComparison(
            outcome,
            reason,
            first_difference=name,
            distance=_distance(one, other, found),
            explanation=_explanation(first, second, one is first, found),
            notes=notes,
            **shared,
        )
    if outcome is Outcome.UNDECIDED:
        return CheckpointComparison(outcome, reason, notes=notes, **shared)
    witness: Witness | None = None
    remarks: tuple[str, ...] = ()
    if want_witness or first.architecture.parameters <= LARGEST_WITNESS:
        witness, failed, remarks = _witness(one, other, found)
        backwards = _backwards(one, other) if witness is not None and len(remarks) > 1 else None
        if backwards is not None:
            witness, failed, remarks = backwards
        if witness is not None and turned:
            witness = witness.inverse()
        if failed:
            return CheckpointComparison(Outcome.UNDECIDED, failed, notes=notes + remarks, **shared)
    return CheckpointComparison(outcome, reason, witness=witness, notes=notes + remarks, **shared)


def _aligned(
    first: StoredModel, second: StoredModel, progress: Progress | None, processes: int = 1
) -> tuple[Alignment, Outcome, str, str]:
    """Align the first to the second, and decide."""
    acting = ledger(first.architecture, first.wiring.observable)
    folded = FoldedModel(first), FoldedModel(second)
    found = align(*folded, acting, progress, processes)
    tables = {part.label for part in (*folded[1].tables, *folded[1].kept)}
    outcome, reason, name = _decide(found, tables)
    if outcome is Outcome.DIFFERENT and name not in tables and _renames(found.frame, acting):
        # Tables that differ do so under every renaming; what comes later may be its fault.
        open_ = _open(folded, found.frame)
        if open_:
            return found, Outcome.UNDECIDED, _undetermined(open_, found.frame), ""
    return found, outcome, reason, name


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


def _distance(first: StoredModel, second: StoredModel, found: Alignment) -> Distance | None:
    if found.mismatches:
        return None
    return distance(FoldedModel(first), FoldedModel(second), found)


def _explanation(first: StoredModel, second: StoredModel, straight: bool, found: Alignment) -> str:
    acting = ledger(first.architecture, first.wiring.observable)
    if not straight:
        found = align(FoldedModel(first), FoldedModel(second), acting)
    return explanation(first, second, found, acting)


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
        if not differing or (found.mismatches and not differing):
            return Outcome.DIFFERENT, found.mismatches[0], found.mismatches[0].split(":")[0]
        part = apart[0] if found.frame.undetermined else differing[0]
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


def _forward_error(
    first: StoredModel, second: StoredModel, seed: int, processes: int
) -> Deviation | None:
    """Outputs of both on the same probe inputs, in float64."""
    length = (
        8 if first.architecture.longest_input is None else min(8, first.architecture.longest_input)
    )
    probe = probe_inputs(first.architecture, seed, 1, length, vocabulary_rows=2000)
    if first.architecture != second.architecture and not _interchangeable(first, second):
        return None
    observable = first.wiring.observable
    tasks = [
        partial(outputs, model.architecture, model.stored, probe, observable)
        for model in (first, second)
    ]
    with limited(1):
        values = list(results(tasks, processes))
    return deviation(values[1], values[0], output_width(first.architecture, probe, observable))


def _interchangeable(first: StoredModel, second: StoredModel) -> bool:
    labels = [[s.label for s in m.architecture.streams] for m in (first, second)]
    return labels[0] == labels[1]


def _witness(
    first: StoredModel, second: StoredModel, found: Alignment
) -> tuple[Witness | None, str, tuple[str, ...]]:
    """The witness, why it failed its check (empty when it passed), and remarks."""
    if first.architecture.tensors != second.architecture.tensors:
        return None, "", ("the layouts differ, so the witness has no file form",)
    names = first.architecture.tensors
    a = {name: first.tensor(name).astype(np.float64) for name in names}
    b = {name: second.tensor(name).astype(np.float64) for name in names}
    witness, left = witness_of(found, first.architecture, first.wiring.observable, a, b)
    failed, remarks = check(witness, found, first, second, a, b)
    return witness, failed, left + remarks


def _backwards(
    first: StoredModel, second: StoredModel
) -> tuple[Witness, str, tuple[str, ...]] | None:
    """The inverse of a witness from the second model to the first, where that one does it all.

    Equal heads or neurons can be merged by moves that need them to be equal, and only the inverse
    of such a move splits one into several.
    """
    found, outcome, _, _ = _aligned(second, first, None, 1)
    if outcome is not Outcome.SAME:
        return None
    witness, failed, remarks = _witness(second, first, found)
    if witness is None or failed or len(remarks) != 1:
        return None
    try:
        inverse = witness.inverse()
        start = {
            name: first.tensor(name).astype(np.float64) for name in witness.architecture.tensors
        }
        inverse.apply(start)
    except InputError:
        return None
    return inverse, "", (f"built from the second model to the first: {remarks[0]}",)


def check(
    witness: Witness,
    found: Alignment,
    first: StoredModel,
    second: StoredModel,
    a: Mapping[str, NDArray[Any]],
    b: Mapping[str, NDArray[Any]],
) -> tuple[str, tuple[str, ...]]:
    """Re-apply a witness: it must keep the function of the first and arrive at the second."""
    moved = witness.apply(a)
    observable = first.wiring.observable
    length = min(8, first.architecture.longest_input or 8)
    probe = probe_inputs(first.architecture, 1, 1, length, vocabulary_rows=500)
    before = outputs(first.architecture, lambda view: view.read(a), probe, observable)
    after = outputs(first.architecture, lambda view: view.read(moved), probe, observable)
    kept = deviation(after, before, output_width(first.architecture, probe, observable))
    condition = max((step.condition for step in witness.describe()), default=1.0)
    # Outputs that hardly vary are known to the rounding of their own size only.
    size = float(np.sqrt(np.square(before).mean())) if before.size else 0.0
    change = kept.largest / max(kept.scale, size) if kept.largest else 0.0
    allowed = max(1e-10 * kept.scale, 1e-13 * size) * max(1.0, condition)
    if not kept.largest <= allowed:
        return (
            "the witness, re-applied, changes the outputs of the first model by "
            f"{change:.1e} of their size, so it is not trusted",
            (),
        )
    missed = _missed(witness, found, first, second, a, b, moved, condition)
    remark = f"the witness re-applied keeps the outputs to {change:.1e}"
    if missed:
        names = ", ".join(missed[:3]) + (", ..." if len(missed) > 3 else "")
        remark += (
            f"; in {len(missed)} tensors ({names}) it does not arrive at the stored numbers: what "
            "differs there has no effect, or is a move that witnesses cannot express"
        )
    else:
        remark += " and arrives at every stored number of the second within rounding"
    return "", (remark,)


def _missed(
    witness: Witness,
    found: Alignment,
    first: StoredModel,
    second: StoredModel,
    a: Mapping[str, NDArray[Any]],
    b: Mapping[str, NDArray[Any]],
    moved: Mapping[str, NDArray[Any]],
    condition: float,
) -> list[str]:
    """Tensors at which the witness does not arrive within the rounding of both models."""
    rng = np.random.default_rng(0)

    def shaken(model: StoredModel, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        # Zeros stay zeros: moves of unread columns and equal gains rest on them.
        return {
            name: np.where(
                value == 0,
                0.0,
                value
                + np.sqrt(rounding_variance(model.tensor(name))) * rng.standard_normal(value.shape),
            )
            for name, value in values.items()
        }

    # What the rounding of either model does to the result, seen in draws, averaged over rows.
    spread: dict[str, Any] = dict.fromkeys(a, 0.0)
    architecture, observable = first.architecture, first.wiring.observable
    for _ in range(DRAWS):
        other, _ = witness_of(found, architecture, observable, a, shaken(second, b))
        # Shaken numbers that a step takes as equal or zero need not be so: no premise is checked.
        again = witness.apply(shaken(first, a), tolerance=np.inf)
        for result in (again, other.apply(a, tolerance=np.inf)):
            for name in a:
                spread[name] = spread[name] + np.square(result[name] - moved[name]) / DRAWS
    missed = []
    for name, value in moved.items():
        stored = second.tensor(name)
        rows = (stored.shape[0], -1) if stored.ndim > 1 else (1, -1)
        target = Noisy(stored.astype(np.float64), rounding_variance(stored)).reshaped(*rows)
        passed = spread[name].reshape(rows)
        passed = np.broadcast_to(passed.mean(axis=-1, keepdims=True), passed.shape)
        part = statistic(
            name,
            target,
            Noisy(value.reshape(rows), passed),
            rotated=True,
            condition=condition**2,
            leverage=1.0,
        )
        if part.is_different:
            missed.append(name)
    return missed
