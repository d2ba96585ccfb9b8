"""Fingerprints: a short vector of invariants, each with its error under the file's rounding."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.noisy import Noisy, rounding_variance
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.fingerprint.invariants import Selection, invariants
from fiberscope.errors import InputError
from fiberscope.parameters import View

SCHEMA = "fiberscope/fingerprint/1"
DRAWS = 10
"""Perturbations of the weights, as large as their rounding, from which the errors are taken."""
SAFETY = 1.5
"""Factor on an error that so few draws can have underestimated."""
THRESHOLD = 10.0
"""Errors by which two numbers must differ to be different.

With an error from ten draws and the factor above, chance exceeds it once in 30 million numbers.
"""
_CHUNK = 1 << 20
ARITHMETIC = 32 * float(np.finfo(np.float64).eps)
"""Relative rounding that the arithmetic of a move may add to a row, whatever the storage."""


class Resemblance(Enum):
    """The two answers that fingerprints can give."""

    DIFFERENT = "A number that no exact symmetry changes differs by more than its rounding."
    POSSIBLY_THE_SAME = "No number differs beyond its rounding, which proves nothing."


@dataclass(frozen=True)
class Invariant:
    """A number, and the standard error that the file's own rounding gives it."""

    name: str
    value: float
    error: float


@dataclass(frozen=True)
class Fingerprint:
    """Invariants of one checkpoint.

    Attributes
    ----------
    architecture, observable
        The class and what is observed of it: numbers of others are not comparable.
    tokens
        Vocabulary size, or None.
    dtype
        The coarsest storage format.
    invariants
        The numbers.
    left_out
        Why some are missing.
    """

    architecture: str
    observable: str
    tokens: int | None
    dtype: str
    invariants: tuple[Invariant, ...]
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "architecture": self.architecture,
            "observable": self.observable,
            "tokens": self.tokens,
            "dtype": self.dtype,
            "invariants": [
                {"name": i.name, "value": i.value, "error": i.error} for i in self.invariants
            ],
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Fingerprint:
        """Read what `to_dict` wrote.

        Raises
        ------
        InputError
            If it is something else.
        """
        if data.get("schema") != SCHEMA:
            raise InputError(
                f"{where} is no fingerprint; pass a model, or what fiberscope fingerprint --json "
                "printed"
            )
        try:
            found = tuple(
                Invariant(str(i["name"]), float(i["value"]), float(i["error"]))
                for i in data["invariants"]
            )
            tokens = data["tokens"]
            return cls(
                str(data["architecture"]),
                str(data["observable"]),
                None if tokens is None else int(tokens),
                str(data["dtype"]),
                found,
                tuple(str(entry) for entry in data["left_out"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where} is a damaged fingerprint; make it anew") from error


@dataclass(frozen=True)
class Likeness:
    """What two fingerprints say of each other.

    Attributes
    ----------
    largest
        The largest difference of two numbers, in units of its error.
    name
        The number that has it.
    compared
        How many numbers both have.
    """

    resemblance: Resemblance
    reason: str
    largest: float
    name: str
    compared: int


def fingerprint(location: str | Path, observable: Observable | str | None = None) -> Fingerprint:
    """Compute the fingerprint of a checkpoint.

    Raises
    ------
    InputError
        As `open_model`, and for a location without weights.
    """
    return fingerprint_of(StoredModel.open(location, observable))


def fingerprint_of(model: StoredModel) -> Fingerprint:
    """Compute the fingerprint of a checkpoint that is open, or of arrays in memory.

    Every number is computed from the stored weights and again from weights perturbed at random
    within their rounding; the root mean square of the differences is its error. That counts
    whatever a common factor (a gain) does to many numbers, and how an ill-conditioned change of
    basis enlarges the rounding of what it multiplies.
    """
    selection = Selection()
    stored = invariants(Rows(FoldedModel(model), model, None), selection, decide=True)
    squares = dict.fromkeys(stored.numbers, 0.0)
    for draw in range(DRAWS):
        moved = invariants(
            Rows(FoldedModel(_perturbed(model, draw)), model, draw), selection, decide=False
        )
        for name, value in moved.numbers.items():
            squares[name] += (value - stored.numbers[name]) ** 2
    found = tuple(
        Invariant(name, value, SAFETY * float(np.sqrt(squares[name] / DRAWS)))
        for name, value in stored.numbers.items()
    )
    return Fingerprint(
        model.architecture.name,
        model.wiring.observable.value,
        model.architecture.tokens,
        model.dtype,
        found,
        tuple(stored.left_out),
    )


class Rows:
    """A neutral form, and some rows of its tables without the others."""

    def __init__(self, folded: FoldedModel, stored: StoredModel, draw: int | None) -> None:
        self.folded, self._stored, self._draw = folded, stored, draw

    def read(self, view: View, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rows of a view in float64, offset included."""
        window = self._stored.stored(view)[indices]
        rows = window.astype(np.float64) + view.offset
        if self._draw is not None:
            rows += _noise(window, np.random.default_rng([self._draw, _number(view.tensor)]))
        return rows


class _Exact(StoredModel):
    """A model whose numbers count as exact: their variances would never be looked at."""

    def read(self, view: View) -> Noisy:
        """A role without rounding, offset included."""
        return Noisy.exact(self.values(view))


def _perturbed(model: StoredModel, draw: int) -> StoredModel:
    """The model with every number moved at random within its rounding, in float64."""

    def load(name: str) -> NDArray[np.float64]:
        values = model.load(name)
        rng = np.random.default_rng([draw, _number(name)])
        result = np.array(values, dtype=np.float64)
        if not values.ndim:
            return result
        step = max(1, _CHUNK // max(1, values[0].size))
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            result[part] += _noise(values[part], rng)
        return result

    return _Exact(
        model.label, model.architecture, model.wiring, load, "float64", model.config, model.notes
    )


def _noise(stored: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    """Uniform noise of the variance of the rounding; arithmetic on rows may add a little."""
    size = np.sqrt(np.square(stored.astype(np.float64)).mean(axis=-1, keepdims=True))
    deviation = np.hypot(np.sqrt(rounding_variance(stored)), ARITHMETIC * size)
    return np.asarray(deviation * rng.uniform(-(3**0.5), 3**0.5, stored.shape))


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


def resemblance(first: Fingerprint, second: Fingerprint) -> Likeness:
    """Compare two fingerprints.

    Raises
    ------
    InputError
        If they are of different classes or observables, or share no number.
    """
    for what in ("architecture", "observable"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            raise InputError(
                f"the fingerprints are of {one} and of {other}, so their numbers mean different "
                "things; compare models of one class and observable"
            )
    if first.tokens != second.tokens:
        reason = f"they read {first.tokens} and {second.tokens} different tokens"
        return Likeness(Resemblance.DIFFERENT, reason, float("inf"), "tokens", 0)
    others = {i.name: i for i in second.invariants}
    pairs = [(i, others[i.name]) for i in first.invariants if i.name in others]
    if not pairs:
        raise InputError("the fingerprints share no number; compare models of one shape")
    worst, name = 0.0, pairs[0][0].name
    for one, other in pairs:
        gap = abs(one.value - other.value)
        error = float(np.hypot(one.error, other.error))
        ratio = gap / error if error else (float("inf") if gap else 0.0)
        if ratio > worst:
            worst, name = ratio, one.name
    if worst > THRESHOLD:
        reason = f"{name} differs by {worst:.3g} times its error"
        return Likeness(Resemblance.DIFFERENT, reason, worst, name, len(pairs))
    reason = f"{len(pairs)} numbers agree within their rounding (largest: {worst:.2g} errors)"
    return Likeness(Resemblance.POSSIBLY_THE_SAME, reason, worst, name, len(pairs))
