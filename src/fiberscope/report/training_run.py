"""What a monitored run says, gathered from its records: curves, distances, and totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

from fiberscope.errors import InputError
from fiberscope.training.record import Direction, Measurement, Record, Start, read_records

SCHEMA = "fiberscope/training-report/1"

SAMPLED = "sums are over the measured steps only; steps between them are not in them"
NOT_ADDITIVE = (
    "mechanisms are not orthogonal to each other, so their shares need not add up to the joint one"
)


@dataclass(frozen=True)
class Curve:
    """Values by step."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """The value at the last measured step."""
        return self.values[-1]

    @property
    def mean(self) -> float:
        """Mean over the measured steps."""
        return sum(self.values) / len(self.values)

    @property
    def largest(self) -> float:
        """The largest value."""
        return max(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, "steps": list(self.steps), "values": list(self.values)}


@dataclass(frozen=True)
class MechanismCurves:
    """One mechanism: its share of the update in every place, and in all of them together."""

    name: str
    together: Curve
    places: tuple[Curve, ...]


@dataclass(frozen=True)
class Distances:
    """Lengths of the measured updates, added up: along fibers, and across them.

    Attributes
    ----------
    along, across
        Sum of ``norm * sqrt(share)`` and of ``norm * sqrt(1 - share)``.
    wasted
        Sum of the squared invisible parts over the sum of squared norms.
    """

    along: float
    across: float
    wasted: float | None


@dataclass(frozen=True)
class TrainingRun:
    """A run as `fiberscope training report` shows it.

    Attributes
    ----------
    path
        The file.
    starts
        Its start records; more than one where the run was continued.
    measurements
        In the order of steps.
    joint
        Invisible share of the update.
    decay, adaptive
        Shares of the decoupled weight decay and of the rest, where they are known.
    gradient
        The gradient's share: a self-check, zero but for rounding.
    mechanisms
        By falling mean share.
    along, across
        Distances moved along fibers and across them, added up to each step.
    imbalances
        By place and mechanism.
    dead_biases
        Drift of biases without any effect.
    losses
        If the run told them.
    update, decayed, adapted
        Totals of the update and of its parts.
    repeated
        Measurements left out because a resumed run took their steps once more.
    """

    path: Path
    starts: tuple[Start, ...]
    measurements: tuple[Measurement, ...]
    joint: Curve
    decay: Curve | None
    adaptive: Curve | None
    gradient: Curve | None
    mechanisms: tuple[MechanismCurves, ...]
    along: Curve
    across: Curve
    imbalances: tuple[Curve, ...]
    dead_biases: tuple[Curve, ...]
    losses: Curve | None
    update: Distances
    decayed: Distances | None
    adapted: Distances | None
    repeated: int = 0

    @property
    def start(self) -> Start:
        """The latest start record."""
        return self.starts[-1]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that belong beside the numbers."""
        every = {note: None for start in self.starts for note in start.notes}
        notes = [f"{SAMPLED} (one in {self.start.every})" if self.start.every > 1 else ""]
        if not any("not orthogonal" in note for note in every):
            notes.append(NOT_ADDITIVE)
        if len(self.starts) > 1:
            notes.append(
                f"the run was continued (or trained other parameters from some step on): the file "
                f"holds {len(self.starts)} starts, and steps that begin again from 1 are counted "
                "on from the last one"
            )
        if self.repeated:
            notes.append(
                f"{self.repeated} measurements are left out, because a resumed run took their "
                "steps once more"
            )
        if self.measurements and any(m.projected for m in self.measurements):
            notes.append(
                "the invisible part of the updates was removed after it was measured; this agrees "
                "with the plain step to first order only"
            )
        return tuple(note for note in (*notes, *every) if note)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from fiberscope.report.training_html import fragment

        return fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """One JSON object."""
        from fiberscope.verdict import to_plain

        def curve(found: Curve | None) -> dict[str, Any] | None:
            return None if found is None else found.to_dict()

        start = self.start
        return {
            "schema": SCHEMA,
            "file": str(self.path),
            "model": start.model,
            "observable": start.observable,
            "optimizer": start.optimizer,
            "parameters": start.parameters,
            "invisible_dimension": start.invisible,
            "expected_share": start.expected_share,
            "standard_deviation": start.standard_deviation,
            "tolerance": start.tolerance,
            "every": start.every,
            "measurements": len(self.measurements),
            "totals": {
                "update": to_plain(self.update),
                "decay": to_plain(self.decayed),
                "adaptive": to_plain(self.adapted),
            },
            "joint": curve(self.joint),
            "decay": curve(self.decay),
            "adaptive": curve(self.adaptive),
            "gradient": curve(self.gradient),
            "mechanisms": [
                {
                    "name": m.name,
                    "together": m.together.to_dict(),
                    "places": [c.to_dict() for c in m.places],
                }
                for m in self.mechanisms
            ],
            "distance_along": curve(self.along),
            "distance_across": curve(self.across),
            "imbalances": [c.to_dict() for c in self.imbalances],
            "dead_biases": [c.to_dict() for c in self.dead_biases],
            "loss": curve(self.losses),
            "notes": list(self.notes),
        }


def training_run(path: str | Path) -> TrainingRun:
    """Gather the records of a file.

    Raises
    ------
    InputError
        If it is no record of a monitored run, has no start, or nothing was measured.
    """
    return gathered(Path(path), read_records(path))


def gathered(path: Path, records: Iterable[Record]) -> TrainingRun:
    """Gather records; see `training_run`."""
    starts: list[Start] = []
    measured: list[tuple[Start, Measurement]] = []
    fresh, offset, repeated = False, 0, 0
    for record in records:
        if isinstance(record, Start):
            starts.append(record)
            fresh = True
            continue
        if not starts:
            raise InputError(f"{path} begins without a start; give a file that a monitor wrote")
        last = measured[-1][1].step if measured else 0
        if fresh and offset + record.step <= last:
            if record.step == 1:  # A monitor that counts from one measures its first step.
                offset = last
            else:  # A run that was resumed from a checkpoint takes some steps once more.
                kept = [(s, m) for s, m in measured if m.step < offset + record.step]
                repeated += len(measured) - len(kept)
                measured = kept
        fresh = False
        _check_lengths(path, starts[-1], record)
        measured.append((starts[-1], replace(record, step=offset + record.step)))
    if not measured:
        raise InputError(
            f"{path} holds no measurement; train for at least one measured step, or measure more "
            "often"
        )
    only = tuple(measurement for _, measurement in measured)
    return TrainingRun(
        path,
        tuple(starts),
        only,
        _shares("update", only, lambda m: m.update) or Curve("update", (only[0].step,), (0.0,)),
        _shares("decay", only, lambda m: m.decay),
        _shares("adaptive", only, lambda m: m.adaptive),
        _shares("gradient", only, lambda m: m.gradient),
        _mechanisms(measured),
        *_paths(only),
        _imbalances(measured),
        _drifts(measured),
        _losses(only),
        _distances([m.update for m in only]),
        _total([m.decay for m in only]),
        _total([m.adaptive for m in only]),
        repeated,
    )


def _check_lengths(path: Path, start: Start, record: Measurement) -> None:
    """Refuse a measurement that does not go with its start."""
    pairs = (
        (start.items, record.item_shares),
        (start.balances, record.balances),
        (start.dead_biases, record.dead_bias_drifts),
    )
    if any(len(first) != len(second) for first, second in pairs):
        raise InputError(
            f"{path}: the measurement of step {record.step} lists other mechanisms than the start "
            "before it; the file is damaged or was put together from several runs"
        )


Part = Callable[[Measurement], Direction | None]


def _shares(name: str, measurements: Sequence[Measurement], part: Part) -> Curve | None:
    found = [
        (m.step, direction.share)
        for m in measurements
        if (direction := part(m)) is not None and direction.share is not None
    ]
    return _curve(name, found)


def _curve(name: str, points: Sequence[tuple[int, float]]) -> Curve | None:
    if not points:
        return None
    return Curve(name, tuple(step for step, _ in points), tuple(value for _, value in points))


def _mechanisms(measured: Sequence[tuple[Start, Measurement]]) -> tuple[MechanismCurves, ...]:
    places: dict[str, dict[str, list[tuple[int, float]]]] = {}
    together: dict[str, dict[int, float]] = {}
    for start, measurement in measured:
        for item, share in zip(start.items, measurement.item_shares, strict=True):
            step = measurement.step
            places.setdefault(item.mechanism, {}).setdefault(item.where, []).append((step, share))
            sums = together.setdefault(item.mechanism, {})
            sums[step] = sums.get(step, 0.0) + share
    found = []
    for name, sums in together.items():
        curves = [_curve(where, points) for where, points in places[name].items()]
        whole = _curve(name, sorted(sums.items()))
        assert whole is not None
        found.append(MechanismCurves(name, whole, tuple(c for c in curves if c is not None)))
    return tuple(sorted(found, key=lambda m: -m.together.mean))


def _paths(measurements: Sequence[Measurement]) -> tuple[Curve, Curve]:
    along, across = [], []
    sums = [0.0, 0.0]
    for m in measurements:
        share = m.update.share or 0.0
        sums[0] += m.update.norm * sqrt(min(1.0, max(0.0, share)))
        sums[1] += m.update.norm * sqrt(min(1.0, max(0.0, 1 - share)))
        along.append(sums[0])
        across.append(sums[1])
    steps = tuple(m.step for m in measurements)
    return Curve("along fibers", steps, tuple(along)), Curve("across fibers", steps, tuple(across))


def _distances(directions: Sequence[Direction]) -> Distances:
    squares = sum(d.norm**2 for d in directions)
    invisible = sum(d.norm**2 * (d.share or 0.0) for d in directions)
    return Distances(
        sum(d.norm * sqrt(max(0.0, d.share or 0.0)) for d in directions),
        sum(d.norm * sqrt(max(0.0, 1 - (d.share or 0.0))) for d in directions),
        invisible / squares if squares > 0 else None,
    )


def _total(directions: Sequence[Direction | None]) -> Distances | None:
    known = [direction for direction in directions if direction is not None]
    return _distances(known) if known else None


def _imbalances(measured: Sequence[tuple[Start, Measurement]]) -> tuple[Curve, ...]:
    found: dict[str, list[tuple[int, float]]] = {}
    for start, measurement in measured:
        for index, balance in zip(start.balances, measurement.balances, strict=True):
            item = start.items[index]
            name = f"{item.where}: {item.mechanism}"
            found.setdefault(name, []).append((measurement.step, balance.imbalance))
    return _curves(found)


def _drifts(measured: Sequence[tuple[Start, Measurement]]) -> tuple[Curve, ...]:
    found: dict[str, list[tuple[int, float]]] = {}
    for start, measurement in measured:
        for index, drift in zip(start.dead_biases, measurement.dead_bias_drifts, strict=True):
            found.setdefault(start.items[index].where, []).append((measurement.step, drift))
    return _curves(found)


def _curves(found: dict[str, list[tuple[int, float]]]) -> tuple[Curve, ...]:
    curves = (_curve(name, points) for name, points in found.items())
    return tuple(curve for curve in curves if curve is not None)


def _losses(measurements: Sequence[Measurement]) -> Curve | None:
    return _curve("loss", [(m.step, m.loss) for m in measurements if m.loss is not None])
