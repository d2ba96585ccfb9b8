"""`canonicalize`: write the canonical representative of a checkpoint, its function verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.canonical.form import CanonicalForm
from fiberscope.checkpoints.canonical.frame import COARSE
from fiberscope.checkpoints.canonical.places import NotUnique
from fiberscope.checkpoints.canonical.points import Style
from fiberscope.checkpoints.canonical.styles import style_named
from fiberscope.checkpoints.canonical.workspace import Workspace
from fiberscope.checkpoints.forward import (
    Deviation,
    deviation_of,
    probe_inputs,
    stored_numbers,
)
from fiberscope.checkpoints.inspection.roles import storage_epsilon
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.opening import OpenModel, open_model
from fiberscope.checkpoints.writing import (
    FORMATS,
    Written,
    check_output,
    copy_checkpoint,
    write_checkpoint,
)
from fiberscope.errors import InputError

Progress = Callable[[int, int, str], None]

PROBE_SEED, PROBE_SEQUENCES, PROBE_LENGTH, PROBE_ROWS = 0, 2, 8, 2048
ROUNDINGS, LARGEST_EXACT, LARGEST_STORED = 1e4, 1e-9, 1.0
"""Relative deviations of the outputs beyond which nothing is written: so many spacings of the
storage, but at least the second number and at most the third."""
IN_MEMORY = 50_000_000
"""Parameters up to which a form that is stored coarsely is also evaluated before it is rounded."""


@dataclass(frozen=True)
class Canonicalization:
    """What was written, how far its outputs are, and where the form is not unique.

    Attributes
    ----------
    written
        The checkpoint in place.
    unchanged
        Whether the input was canonical already within its storage, so that it was copied.
    deviation
        Largest difference of the outputs on probe inputs, evaluated in float64 from the stored
        numbers of both checkpoints.
    exact_deviation
        The same before the form is rounded to 16 bits, which would hide all but gross errors; None
        for wider formats, where the first says as much, and for large models.
    not_unique
        Places where rounding or exact freedom decides between representatives.
    dead
        Dead parameters that were set to zero, by kind.
    """

    source: Path
    architecture: str
    observable: Observable
    style: str
    drop: bool
    written: Written
    unchanged: bool
    changed_tensors: int
    tensors: int
    deviation: Deviation
    exact_deviation: Deviation | None
    not_unique: tuple[NotUnique, ...]
    dead: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def ties(self) -> int:
        """Number of places where the form is not unique."""
        return sum(place.count for place in self.not_unique)


def canonicalize(
    location: str | Path,
    target: Path,
    *,
    observable: Observable | str | None = None,
    style: str = "canonical",
    drop: bool = False,
    keep_unread: bool = False,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Canonicalization:
    """Write the canonical representative of a checkpoint.

    All checkpoints that differ by symmetries of the architecture have the same one, up to the
    rounding of their storage and the places listed as not unique. A file that is canonical already,
    within the rounding of its storage, is copied byte for byte.

    Parameters
    ----------
    location
        As `open_model` takes it.
    target
        The directory to create.
    observable
        What stays the same; by default what the class computes.
    style
        ``canonical``, or one of its parts: see `style_named`.
    drop
        Set to zero what feeds only zeros: neurons and heads without effect.
    keep_unread
        Leave parameters that nothing reads as they are (they are set to zero otherwise).
    dtype
        One storage format for all tensors; by default each keeps its own.
    overwrite
        Replace an earlier output.

    Raises
    ------
    InputError
        For anything wrong with the input, the style or the output, in one sentence.
    """
    model = open_model(location, observable, prefer_head=True)
    if model.source is None or model.matching is None:
        raise InputError(f"{location} holds no weights; pass the directory or file with them")
    if dtype is not None and dtype not in FORMATS:
        raise InputError(f"{dtype!r} is no storage format; use one of {', '.join(FORMATS)}")
    check_output(model, target, overwrite=overwrite)
    wiring = wire(model.architecture, model.observable)
    parts = style_named(style, wiring, drop=drop, keep_unread=keep_unread)
    items = ledger(model.architecture, model.observable).items
    work = workspace_of(model, dtype, narrow=True)
    form = CanonicalForm(wiring, items, work, parts)
    verify = _Verification(
        model, lambda: CanonicalForm(wiring, items, workspace_of(model), parts).tensors()
    )
    record = {
        "action": "canonicalize",
        "source": Path(model.checkpoint.path).name,
        "style": style,
        "drop": drop,
        "keep_unread": keep_unread,
        "observable": model.observable.value,
    }
    first = _until_moved(form, progress)
    converting = dtype is not None and any(
        model.source.tensors[name].dtype != dtype for name in model.matching.stored.values()
    )
    if first is None and not converting and model.source.format == "safetensors":
        unchanged = True
        written = copy_checkpoint(model, target, overwrite=overwrite, verify=verify)
    else:
        unchanged = False
        tensors = first if first is not None else _stored(form)
        written = write_checkpoint(
            model, target, tensors, record, dtype=dtype, overwrite=overwrite, verify=verify
        )
    return Canonicalization(
        model.checkpoint.path,
        model.architecture.name,
        model.observable,
        style,
        drop,
        written,
        unchanged,
        len(form.work.moved),
        len(model.architecture.tensors),
        verify.deviation,
        verify.exact,
        tuple(form.places.found),
        dict(form.places.dead),
        (*model.notes, *written.notes),
    )


def canonical_parameters(
    architecture: Architecture,
    parameters: Mapping[str, NDArray[Any]],
    observable: Observable | str | None = None,
    style: Style | None = None,
) -> tuple[dict[str, NDArray[Any]], CanonicalForm]:
    """The canonical representative of arrays in memory, and the form with its findings.

    Tensors that change come in float64, the others as given.
    """
    chosen = Observable(observable) if observable else architecture.default_observable
    work = Workspace(
        architecture,
        lambda name: np.asarray(parameters[name]),
        lambda name: np.asarray(parameters[name]).dtype.name,
    )
    form = CanonicalForm(
        wire(architecture, chosen), ledger(architecture, chosen).items, work, style
    )
    return dict(form.tensors()), form


def workspace_of(model: OpenModel, target: str | None = None, *, narrow: bool = False) -> Workspace:
    """A workspace on an opened checkpoint, which will be written in a format or in its own."""
    source, matching = model.source, model.matching
    assert source is not None and matching is not None
    return Workspace(
        model.architecture,
        lambda name: source.read(matching.stored[name]),
        lambda name: source.tensors[matching.stored[name]].dtype,
        target,
        narrow=narrow,
        label=str(model.checkpoint.path),
    )


def _until_moved(
    form: CanonicalForm, progress: Progress | None
) -> Iterator[tuple[str, NDArray[Any]]] | None:
    """All tensors, computed up to the first that changes; None when none does.

    Nothing is held while nothing has changed: what is unchanged is read again.
    """
    tensors = form.tensors(progress)
    passed: list[str] = []
    for name, array in tensors:
        if name in form.work.moved:
            again = ((old, form.work.release(old)) for old in passed)
            return chain(again, [(name, array)], tensors)
        passed.append(name)
    return None


def _stored(form: CanonicalForm) -> Iterator[tuple[str, NDArray[Any]]]:
    """All tensors as stored."""
    for name in form.wiring.architecture.tensors:
        yield name, form.work.release(name)


class _Verification:
    """Compares outputs before and after; called with the complete directory."""

    def __init__(
        self, model: OpenModel, exactly: Callable[[], Iterator[tuple[str, NDArray[Any]]]]
    ) -> None:
        self.model, self.exactly = model, exactly
        self.deviation = Deviation(0.0, 0.0, 0)
        self.exact: Deviation | None = None

    def __call__(self, directory: Path) -> None:
        model = self.model
        architecture, observable = model.architecture, model.observable
        again = open_model(directory, observable, prefer_head=True)
        assert model.source is not None and model.matching is not None
        assert again.source is not None and again.matching is not None
        length = min(PROBE_LENGTH, architecture.longest_input or PROBE_LENGTH)
        probe = probe_inputs(
            architecture, PROBE_SEED, PROBE_SEQUENCES, length, vocabulary_rows=PROBE_ROWS
        )
        before = stored_numbers(model.source, model.matching.stored)
        after = stored_numbers(again.source, again.matching.stored)
        self.deviation = deviation_of(architecture, before, after, probe, observable)
        formats = {again.source.tensors[name].dtype for name in again.matching.stored.values()}
        spacing = max(storage_epsilon(name) for name in formats)
        if spacing >= COARSE and self.deviation.largest and architecture.parameters <= IN_MEMORY:
            exact = {name: np.array(array) for name, array in self.exactly()}
            self.exact = deviation_of(
                architecture, before, lambda view: view.read(exact), probe, observable
            )
            if not self.exact.relative <= 1e-6:
                raise InputError(
                    f"the canonical form would change the outputs by {self.exact.relative:.1e} of "
                    "their size even unrounded, so it is not written; its weights are too "
                    "ill-conditioned"
                )
        allowed = min(max(ROUNDINGS * spacing, LARGEST_EXACT), LARGEST_STORED)
        if not self.deviation.relative <= allowed:
            raise InputError(
                f"stored as {' and '.join(sorted(formats))}, the canonical form would change the "
                f"outputs by {self.deviation.relative:.1e} of their size, so it is not written; "
                "choose a wider --dtype"
            )
