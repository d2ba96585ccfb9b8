"""`compare` for checkpoints: SAME with a witness, DIFFERENT with a distance, or UNDECIDED."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality.alignment import Alignment, Progress, align
from fiberscope.checkpoints.equality.decision import decided
from fiberscope.checkpoints.equality.distance import Distance, distance
from fiberscope.checkpoints.equality.explanation import explanation
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.loops import prepare
from fiberscope.checkpoints.equality.settings import differences
from fiberscope.checkpoints.equality.statistic import Statistic
from fiberscope.checkpoints.equality.stored import FORMATS, StoredModel
from fiberscope.checkpoints.equality.tying import brought_together
from fiberscope.checkpoints.equality.witness_check import backwards, checked_witness, way_back
from fiberscope.checkpoints.forward import (
    Deviation,
    deviation,
    output_width,
    outputs,
    probe_inputs,
)
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.moves.witness import Witness
from fiberscope.checkpoints.threads import in_order, limited, workers
from fiberscope.errors import InputError
from fiberscope.verdict import Outcome

LARGEST_WITNESS = 60_000_000
"""Parameters up to which a witness is built unasked; it needs both models in float64."""
THREADED = 20_000_000
"""Parameters from which several threads pay."""
ALLOWANCE = 2 << 30
"""Bytes that the layers in work may take together."""
CLEARLY = 1000.0
"""Roundings (rms) beyond which the direction of comparison cannot matter."""
_PREFERRED = (Outcome.SAME, Outcome.UNDECIDED, Outcome.DIFFERENT)


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
    threads: int = 1,
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
    threads
        How many may work on large models.

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
        threads=threads,
    )


def compare_models(
    first: StoredModel,
    second: StoredModel,
    *,
    seed: int = 0,
    want_witness: bool = False,
    progress: Progress | None = None,
    threads: int = 1,
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
    threads = min(threads, _affordable(first))
    # Numbers in float64 are not read by loops.
    if first.architecture.parameters >= THREADED and "float64" not in formats:
        if progress is not None:
            progress(0, 1, "loading loops (compiled once, which takes half a minute)")
        prepare()
    if progress is not None:
        progress(0, 1, "outputs on probe inputs")
    error = _forward_error(first, second, seed)
    found, outcome, reason, name = decided(one, other, progress, threads)
    if outcome is not Outcome.SAME:
        # Either of the two may be the copy, and only the copy's rounding is independent noise.
        # Tables that differ that much do so whatever is fitted.
        tables = found.statistics[: found.tables]
        if max((part.rms for part in tables), default=0.0) < CLEARLY:
            again = decided(other, one, progress, threads)
            if _PREFERRED.index(again[1]) < _PREFERRED.index(outcome):
                found, outcome, reason, name = again
                turned = not turned
                one, other = other, one
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
        witness, failed, remarks = checked_witness(one, other, found)
        inverse = backwards(one, other) if witness is not None and len(remarks) > 1 else None
        if inverse is not None:
            witness, failed, remarks = inverse
        if failed and (back := way_back(one, other)) is not None:
            # Heads may be equal, as moves need them, in the numbers of the other model alone.
            witness, remarks = back
            failed, turned = "", not turned
            if turned:
                witness = None
                remarks += (
                    "this witness leads from the second model to the first, whose stored numbers "
                    "its inverse cannot start from: compare in that order to write it",
                )
        if witness is not None and turned:
            witness = witness.inverse()
        if failed:
            return CheckpointComparison(Outcome.UNDECIDED, failed, notes=notes + remarks, **shared)
    return CheckpointComparison(outcome, reason, witness=witness, notes=notes + remarks, **shared)


def _distance(first: StoredModel, second: StoredModel, found: Alignment) -> Distance | None:
    if found.mismatches:
        return None
    return distance(FoldedModel(first), FoldedModel(second), found)


def _explanation(first: StoredModel, second: StoredModel, straight: bool, found: Alignment) -> str:
    acting = ledger(first.architecture, first.wiring.observable)
    if not straight:
        found = align(FoldedModel(first), FoldedModel(second), acting)
    return explanation(first, second, found, acting)


def _affordable(model: StoredModel) -> int:
    """Threads that pay, and whose layers fit the memory together."""
    if model.architecture.parameters < THREADED:
        return 1
    blocks = [
        sum(prod(view.shape) for view in views)
        for views in (
            *((a.query, a.key, a.value, a.output) for a in model.wiring.attentions),
            *(tuple(v for v in (m.gate, m.up, m.down) if v) for m in model.wiring.mlps),
        )
    ]
    # Values and variances of both models, and about as much beside.
    return max(1, ALLOWANCE // (64 * max(blocks, default=1)))


def _forward_error(first: StoredModel, second: StoredModel, seed: int) -> Deviation | None:
    """Outputs of both on the same probe inputs, in float64."""
    length = (
        8 if first.architecture.longest_input is None else min(8, first.architecture.longest_input)
    )
    probe = probe_inputs(first.architecture, seed, 1, length, vocabulary_rows=2000)
    if first.architecture != second.architecture and not _interchangeable(first, second):
        return None
    observable = first.wiring.observable
    tasks = [
        (1, partial(outputs, model.architecture, model.stored, probe, observable))
        for model in (first, second)
    ]
    # Its operations are large: threads do not get into each other's way.
    with limited(1):
        values = list(in_order(tasks, workers()))
    return deviation(values[1], values[0], output_width(first.architecture, probe, observable))


def _interchangeable(first: StoredModel, second: StoredModel) -> bool:
    labels = [[s.label for s in m.architecture.streams] for m in (first, second)]
    return labels[0] == labels[1]
