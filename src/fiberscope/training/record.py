"""What a monitored run leaves behind: one JSON line for its start, one for every measurement.

The file is JSON lines in UTF-8. The first line is a :class:`Start` (``"record": "start"``), every
later one a :class:`Measurement` (``"record": "measurement"``); both carry the schema name. A run
that is continued into the same file writes another start. Numbers that do not exist are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite
from pathlib import Path
from typing import Any

from fiberscope.errors import InputError

SCHEMA = "fiberscope/training/1"

SELF_CHECK = 1e-4
"""Invisible share of a gradient above which it is no rounding, not even that of bfloat16."""


@dataclass(frozen=True)
class ItemRecord:
    """One symmetry of one layer, as the start of a run lists it.

    Attributes
    ----------
    mechanism
        Name in the catalogue of mechanisms, such as ``"query/key basis change"``.
    layer
        Layer index, None when it belongs to no layer.
    where
        The place in words, such as ``"layer 0 attention"``.
    dimension
        Dimension of its orbit at generic weights.
    """

    mechanism: str
    layer: int | None
    where: str
    dimension: int


@dataclass(frozen=True)
class Start:
    """The first line: what is measured.

    Attributes
    ----------
    model, observable, optimizer
        Class of the model, what is observed of it, class of the optimizer.
    parameters
        Number P of free parameters: trained by the optimizer, tied ones once.
    frozen
        Number of the other parameters.
    invisible
        Dimension k of the span of the exact tangents at generic weights.
    expected_share, standard_deviation
        Share of a random direction: ``k/P`` and ``sqrt(2k(P-k)/(P^2(P+2)))``.
    tolerance
        Largest error of a joint share.
    every, project
        Steps between measurements; whether the invisible part of every update is removed.
    items
        The symmetries in use, in the order of ``Measurement.item_shares``.
    balances
        Indices into ``items`` of the entries of ``Measurement.balances``.
    dead_biases
        Indices into ``items`` of the entries of ``Measurement.dead_bias_drifts``.
    notes
        Sentences about what the shares do not say, and what was left out and why.
    """

    model: str
    observable: str
    optimizer: str
    parameters: int
    frozen: int
    invisible: int
    expected_share: float
    standard_deviation: float
    tolerance: float
    every: int
    project: bool
    items: tuple[ItemRecord, ...]
    balances: tuple[int, ...]
    dead_biases: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Direction:
    """A direction in parameter space and how much of it is invisible.

    Attributes
    ----------
    norm
        Euclidean norm.
    share
        Squared norm of the invisible part over the squared norm, in [0, 1]; None for a direction
        of norm zero. The invisible distance is ``norm * sqrt(share)``, the visible one
        ``norm * sqrt(1 - share)``.
    """

    norm: float
    share: float | None


@dataclass(frozen=True)
class Balance:
    """How far the two sides of one symmetry are from equal size, and how the difference moved.

    For queries and keys the difference is ``W_Q W_Q^T - W_K W_K^T`` in every head, weights taken as
    ``(head width, inputs)`` with the bias as one more column, which gradient flow conserves; with
    rotary positions, what the rotations leave of it.

    Attributes
    ----------
    imbalance
        Norm of the difference over the sum of the norms of the two sides, in [0, 1].
    difference
        Norm of the difference.
    drift
        Norm of what the difference has changed by since the first measurement.
    """

    imbalance: float
    difference: float
    drift: float


@dataclass(frozen=True)
class Measurement:
    """One measured step; the weights are those before it.

    Attributes
    ----------
    step
        Number of the optimizer step, from 1.
    update
        Difference of the stored weights: after the step minus before.
    decay, adaptive
        Its decoupled weight decay ``-lr * weight_decay * theta`` and the rest; None where the
        optimizer has no decoupled decay, or it is not known.
    gradient
        The gradient that the step used: a self-check, its share is zero but for rounding.
    item_shares
        Share of the update along each symmetry alone, in the order of ``Start.items``. Mechanisms
        are not orthogonal, so these need not add up to ``update.share``.
    balances
        In the order of ``Start.balances``.
    dead_bias_drifts
        Root mean square of what biases without any effect have moved by since the first
        measurement, in the order of ``Start.dead_biases``.
    learning_rates
        One a parameter group.
    loss
        If the caller told it.
    seconds
        Time that the measurement took.
    iterations
        Conjugate-gradient iterations of all joint projections together.
    projected
        Whether the invisible part was then removed from the update (``update`` is before that).
    """

    step: int
    update: Direction
    decay: Direction | None
    adaptive: Direction | None
    gradient: Direction | None
    item_shares: tuple[float, ...]
    balances: tuple[Balance, ...]
    dead_bias_drifts: tuple[float, ...]
    learning_rates: tuple[float, ...]
    loss: float | None
    seconds: float
    iterations: int
    projected: bool


Record = Start | Measurement


def to_line(record: Record) -> str:
    """One line of JSON, without the line feed."""
    kind = "start" if isinstance(record, Start) else "measurement"
    return json.dumps({"schema": SCHEMA, "record": kind} | asdict(record), allow_nan=False)


def from_line(line: str, where: str = "line") -> Record:
    """Read one line.

    Raises
    ------
    InputError
        If the line is not a record of this schema.
    """
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON; give a file that a monitor wrote") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            f"{where} is not a record of {SCHEMA}; give a file that this version's monitor wrote"
        )
    try:
        if data["record"] == "start":
            start = _start(data)
            _check_start(start)
            return start
        if data["record"] == "measurement":
            measurement = _measurement(data)
            _check_measurement(measurement)
            return measurement
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where} lacks or garbles a field: {error!r}; the file is damaged") from (
            error
        )
    raise InputError(f"{where} is a record of unknown kind {data['record']!r}")


def read_records(path: str | Path) -> Iterator[Record]:
    """Read the records of a file one after the other.

    A last line that was cut off while it was written (a killed run) is passed over.

    Raises
    ------
    InputError
        If the file cannot be read or a line is no record.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith("\n"):
                    try:
                        yield from_line(line)
                    except InputError:
                        return
                elif line.strip():
                    yield from_line(line, f"{path}, line {number},")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; give a file of JSON lines") from error


def _fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in fields(kind)}


def _start(data: Mapping[str, Any]) -> Start:
    values = _fields(Start, data)
    values["items"] = tuple(ItemRecord(**_fields(ItemRecord, item)) for item in values["items"])
    for name in ("balances", "dead_biases", "notes"):
        values[name] = tuple(values[name])
    return Start(**values)


def _check_start(start: Start) -> None:
    """Raise ValueError where a number cannot be one of a run."""
    for index in (*start.balances, *start.dead_biases):
        if not (isinstance(index, int) and 0 <= index < len(start.items)):
            raise ValueError(f"{index!r} is no entry of items")
    _check_number("expected_share", start.expected_share, 0.0, 1.0)
    _check_number("standard_deviation", start.standard_deviation, 0.0, 1.0)
    for name in ("parameters", "frozen", "invisible", "every"):
        if not isinstance(value := getattr(start, name), int) or value < 0:
            raise ValueError(f"{name} is {value!r}")


def _check_measurement(measurement: Measurement) -> None:
    """Raise ValueError where a number cannot be one of a measurement."""
    if not isinstance(measurement.step, int) or measurement.step < 1:
        raise ValueError(f"step is {measurement.step!r}")
    for name in ("update", "decay", "adaptive", "gradient"):
        part: Direction | None = getattr(measurement, name)
        if part is not None:
            _check_number(f"the norm of {name}", part.norm, 0.0, inf)
            if part.share is not None:
                _check_number(f"the share of {name}", part.share, 0.0, 1.0)
    for share in measurement.item_shares:
        _check_number("an item's share", share, 0.0, 1.0)
    for balance in measurement.balances:
        _check_number("an imbalance", balance.imbalance, 0.0, 1.0 + 1e-9)
    for drift in measurement.dead_bias_drifts:
        _check_number("a dead bias's drift", drift, 0.0, inf)
    if measurement.loss is not None:
        _check_number("loss", measurement.loss, -inf, inf)


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}")
    if not (isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value}")


def _direction(data: Mapping[str, Any] | None) -> Direction | None:
    return None if data is None else Direction(**_fields(Direction, data))


def _measurement(data: Mapping[str, Any]) -> Measurement:
    values = _fields(Measurement, data)
    for name in ("update", "decay", "adaptive", "gradient"):
        values[name] = _direction(values[name])
    if values["update"] is None:
        raise ValueError("update is null")
    values["balances"] = _balances(values["balances"])
    for name in ("item_shares", "dead_bias_drifts", "learning_rates"):
        values[name] = tuple(values[name])
    return Measurement(**values)


def _balances(entries: Iterable[Mapping[str, Any]]) -> tuple[Balance, ...]:
    return tuple(Balance(**_fields(Balance, entry)) for entry in entries)
