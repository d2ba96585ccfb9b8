"""Witnesses are re-applied before they are given: function kept, and stored numbers reached."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.alignment import Alignment
from fiberscope.checkpoints.equality.circuits import VACUOUS
from fiberscope.checkpoints.equality.decision import decided
from fiberscope.checkpoints.equality.noisy import Noisy, rounding_variance
from fiberscope.checkpoints.equality.statistic import statistic
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.equality.witness import witness_of
from fiberscope.checkpoints.forward import Probe, deviation, output_width, outputs, probe_inputs
from fiberscope.checkpoints.moves.witness import Witness
from fiberscope.errors import InputError
from fiberscope.parameters import View
from fiberscope.verdict import Outcome

DRAWS = 4
"""Draws of the storage rounding with which a witness's arrival is judged."""
ROUNDINGS = 32.0
"""Roundings of float64 that the steps of a witness may bring into each number."""


def checked_witness(
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


def backwards(
    first: StoredModel, second: StoredModel
) -> tuple[Witness, str, tuple[str, ...]] | None:
    """The inverse of a witness from the second model to the first, where that one does it all.

    Equal heads or neurons can be merged by moves that need them to be equal, and only the inverse
    of such a move splits one into several.
    """
    back = way_back(first, second)
    if back is None or len(back[1]) != 1:
        return None
    witness, remarks = back
    try:
        inverse = witness.inverse()
        start = {
            name: first.tensor(name).astype(np.float64) for name in witness.architecture.tensors
        }
        inverse.apply(start)
    except InputError:
        return None
    return inverse, "", (f"built from the second model to the first: {remarks[0]}",)


def way_back(first: StoredModel, second: StoredModel) -> tuple[Witness, tuple[str, ...]] | None:
    """A witness from the second model to the first that passes its check, and remarks."""
    found, outcome, _, _ = decided(second, first, None, 1)
    if outcome is not Outcome.SAME:
        return None
    witness, failed, remarks = checked_witness(second, first, found)
    return None if witness is None or failed else (witness, remarks)


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
        # Huge numbers that cancel: the outputs are not known better than float64 holds these.
        blurred = (_blurred(first, x, probe, y) for x, y in ((a, before), (moved, after)))
        allowed = min(ROUNDINGS * max(blurred), VACUOUS * kept.scale)
    if not kept.largest <= allowed:
        return (
            "the witness, re-applied, changes the outputs of the first model by "
            f"{change:.1e} of their size, so it is not trusted",
            (),
        )
    missed = _missed(found, first, second, a, b, moved, condition)
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


def _read(values: Mapping[str, NDArray[Any]], view: View) -> NDArray[Any]:
    return view.read(values)


def _blurred(
    model: StoredModel, values: Mapping[str, NDArray[Any]], probe: Probe, exact: NDArray[Any]
) -> float:
    """How far the rounding of all numbers in float64 moves the outputs."""
    rng = np.random.default_rng(2)
    observable, found = model.wiring.observable, 0.0
    for _ in range(DRAWS):
        other = {
            name: value * (1 + 2.0**-53 * rng.uniform(-1, 1, value.shape))
            for name, value in values.items()
        }
        again = outputs(model.architecture, partial(_read, other), probe, observable)
        width = output_width(model.architecture, probe, observable)
        found = max(found, deviation(again, exact, width).largest)
    return found


def _missed(
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
    whole, _ = witness_of(found, architecture, observable, a, b)
    reached = whole.apply(a)
    for _ in range(DRAWS):
        other, _ = witness_of(found, architecture, observable, a, shaken(second, b))
        # What is set to the second's numbers at the end takes the rounding of the rest along.
        start = shaken(first, a)
        own, _ = witness_of(found, architecture, observable, start, b)
        # Shaken numbers that a step takes as equal or zero need not be so: no premise is checked,
        # and where steps are left out for it, the others are taken as they are.
        if [step.key for step in own.steps] != [step.key for step in whole.steps]:
            own = whole
        again = own.apply(start, tolerance=np.inf)
        for result in (again, other.apply(a, tolerance=np.inf)):
            for name in a:
                spread[name] = spread[name] + np.square(result[name] - reached[name]) / DRAWS
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
