"""A checkpoint as it is compared: roles with their rounding, read one tensor at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.equality.noisy import Noisy, rounded
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.ledger.wiring import Wiring, wire
from fiberscope.checkpoints.opening import open_model
from fiberscope.errors import InputError
from fiberscope.parameters import View

KEPT_BYTES = 64 * 2**20
"""Stored tensors that stay in memory; several roles of a layer can share one."""
SMALL_BYTES = 2**30
"""Models up to this size stay in memory as a whole: every tensor is asked for several times."""
SUMMED = 1 << 16
"""Squares that are added up in their own format: their sum is off by less than a thousandth."""


@dataclass
class StoredModel:
    """An architecture, its wiring, and a way to read its stored tensors.

    Attributes
    ----------
    label
        What to call it in messages: a path, or ``first`` and ``second``.
    load
        Architecture tensor -> array in its stored format.
    dtype
        The coarsest stored format of its tensors.
    """

    label: str
    architecture: Architecture
    wiring: Wiring
    load: Callable[[str], NDArray[Any]]
    dtype: str
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Not handed on to a copy, which may load otherwise.
    _kept: OrderedDict[str, NDArray[Any]] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _bytes: int = field(default=0, init=False, repr=False)
    _squares: dict[str, float | None] = field(default_factory=dict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @classmethod
    def open(cls, location: str | Path, observable: Observable | str | None = None) -> StoredModel:
        """Open a checkpoint on disk.

        Raises
        ------
        InputError
            If it cannot be read, or holds no weights.
        """
        model = open_model(location, observable, prefer_head=True)
        if model.source is None or model.matching is None:
            raise InputError(f"{location} holds no weights; pass the directory or file with them")
        source, stored = model.source, model.matching.stored
        shapes = model.architecture.tensors

        formats = {source.tensors[name].dtype for name in stored.values()}
        # Small models stay in memory as a whole; mapped, they need no copy there.
        widest = max({"float64": 8, "float32": 4}.get(form, 2) for form in formats)
        small = model.architecture.parameters * widest <= SMALL_BYTES
        read = source.mapped if small else source.read

        def load(name: str) -> NDArray[Any]:
            return read(stored[name]).reshape(shapes[name])

        return cls(
            str(location),
            model.architecture,
            wire(model.architecture, model.observable),
            load,
            coarsest(formats),
            model.config,
            model.notes,
        )

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        parameters: Mapping[str, NDArray[Any]],
        observable: Observable | str | None = None,
        label: str = "model",
    ) -> StoredModel:
        """Arrays in memory, each in the format it counts as stored in."""
        chosen = Observable(observable) if observable else architecture.default_observable
        return cls(
            label,
            architecture,
            wire(architecture, chosen),
            lambda name: np.asarray(parameters[name]),
            coarsest({np.asarray(value).dtype.name for value in parameters.values()}),
        )

    def tensor(self, name: str) -> NDArray[Any]:
        """One stored tensor, checked to be finite."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        array = self.load(name)
        squares = _squares(array)
        # Not finite if a number is not; the squares of large numbers may overflow.
        if (squares is None or not np.isfinite(squares)) and not np.isfinite(array).all():
            raise InputError(
                f"{self.label}: tensor {name!r} has NaN or infinite values; "
                "use a checkpoint whose weights are finite"
            )
        limit = KEPT_BYTES
        if self._parameters * array.itemsize <= SMALL_BYTES:
            limit = SMALL_BYTES
        with self._lock:
            self._squares[name] = squares
            if name not in self._kept:  # another thread may have read it at the same time
                while self._kept and array.nbytes + self._bytes > limit:
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes
                self._kept[name] = array
                self._bytes += array.nbytes
        return array

    def squares(self, view: View) -> float | None:
        """At least the squared norm of a role, without the offset; it can be infinite.

        None where the tensor's format makes it take long.
        """
        if view.tensor not in self._squares:
            self.tensor(view.tensor)
        return self._squares[view.tensor]

    @once
    def _parameters(self) -> int:
        return self.architecture.parameters

    def read(self, view: View) -> Noisy:
        """A role with its rounding, offset included."""
        return rounded(view.window(self.tensor(view.tensor)), view.offset)

    def values(self, view: View) -> NDArray[np.float64]:
        """A role without its rounding."""
        window = view.window(self.tensor(view.tensor))
        return np.ascontiguousarray(window, dtype=np.float64) + view.offset

    def stored(self, view: View) -> NDArray[Any]:
        """A role in its stored format, without the offset."""
        return view.window(self.tensor(view.tensor))


def _squares(array: NDArray[Any]) -> float | None:
    """At least the squared norm, in one pass; None for formats where that takes long."""
    if array.dtype not in (np.float32, np.float64) or not array.flags.c_contiguous:
        return None
    flat, total = array.reshape(-1), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, SUMMED):
            some = flat[start : start + SUMMED]
            total += float(np.vdot(some, some))
    # What underflows loses less than the smallest normal number.
    return total * 1.001 + flat.size * float(np.finfo(array.dtype).tiny)


FORMATS = ("float64", "float32", "float16", "bfloat16", "quantised")
"""Storage from fine to coarse."""


def coarsest(formats: set[str]) -> str:
    """The format with the fewest bits; block-quantised ones count as one, the coarsest."""
    known = {name if name in FORMATS else "quantised" for name in formats}
    return max(known, key=FORMATS.index)
