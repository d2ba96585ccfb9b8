"""`transform`: write a checkpoint moved along its symmetries, its function verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.moves.catalogue import Catalogue
from fiberscope.checkpoints.moves.random_move import RandomMove
from fiberscope.checkpoints.moves.streaming import MovedReader, Read, moved_tensors
from fiberscope.checkpoints.moves.witness import MechanismDescription, Witness
from fiberscope.checkpoints.moves.witness_file import load_witness, save_witness
from fiberscope.checkpoints.opening import OpenModel, open_model
from fiberscope.checkpoints.writing import Written, check_output, write_checkpoint
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind

Progress = Callable[[int, int, str], None]

LARGEST_DEVIATION = 1e-6
"""Relative deviation of the outputs before storage beyond which an exact move is not written."""
COARSE = 0.1
"""Relative deviation of the outputs as stored from which on a note says so."""
PROBE_SEQUENCES, PROBE_LENGTH, PROBE_ROWS = 4, 8, 2048
PROBE_SEED = 0


@dataclass(frozen=True)
class Transformation:
    """What was moved, how far, and what it did to the outputs.

    Attributes
    ----------
    written
        The checkpoint in place.
    mechanisms
        What the move does, with its sizes and condition numbers.
    exact_deviation, stored_deviation
        Largest differences of the outputs on probe inputs, computed in float64 from the moved
        weights before and after they are rounded to their storage format; relative to the root mean
        square of the outputs.
    outputs
        Number of outputs compared.
    witness
        The file it was saved to, or None.
    """

    source: Path
    written: Written
    observable: Observable
    seed: int | None
    condition: float | None
    mechanisms: tuple[MechanismDescription, ...]
    exact_deviation: float
    stored_deviation: float
    outputs: int
    approximate: tuple[str, ...]
    witness: Path | None
    notes: tuple[str, ...]


def float64_reader(model: OpenModel) -> Read:
    """Read an opened model's tensors by the architecture's names, as new float64 arrays.

    Raises
    ------
    InputError
        If only a configuration was opened.
    """
    source, matching = model.source, model.matching
    if source is None or matching is None:
        raise InputError(
            f"{model.checkpoint.path} has no weights to move; pass the directory of a model"
        )
    shapes = model.architecture.tensors

    def read(name: str) -> NDArray[np.float64]:
        values = source.read_float64(matching.stored[name])
        return np.ascontiguousarray(values.reshape(shapes[name]))

    return read


def transform(
    location: str | Path,
    target: Path,
    *,
    seed: int | None = None,
    witness: Path | None = None,
    only: Collection[str] | None = None,
    condition: float | None = None,
    observable: Observable | str | None = None,
    dtype: str | None = None,
    save: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Transformation:
    """Move a checkpoint by a random element of its symmetry group, or by a stored one.

    Parameters
    ----------
    location
        As `open_model` takes it.
    target
        The directory to create.
    seed
        Draw a random element; see `RandomMove`, also for ``only`` and ``condition``.
    witness
        Apply the element in this file instead.
    observable
        What stays the same; default as for `open_model`, or what the witness says.
    dtype
        One storage format; by default each tensor keeps its own.
    save
        Where to store the element.
    overwrite
        Replace earlier outputs.

    Raises
    ------
    InputError
        For anything wrong with the input, the choice or the output, in one sentence; and when the
        outputs of the moved model deviate, so that nothing is written.
    """
    if (seed is None) == (witness is None):
        raise InputError("transform needs either --random or --witness FILE")
    if witness is not None and (only is not None or condition is not None):
        raise InputError("a witness is applied as it is; leave out --only and --condition")
    model = open_model(location, observable, prefer_head=True)
    check_output(model, target, overwrite=overwrite)
    read = float64_reader(model)
    move: _Stored | _Drawn
    if witness is not None:
        move = _Stored(load_witness(witness, model.architecture), read)
        if observable is not None and model.observable is not move.witness.observable:
            raise InputError(
                f"{witness} keeps {move.witness.observable.value}, not {model.observable.value}; "
                "leave out --observable"
            )
    else:
        assert seed is not None
        catalogue = Catalogue(model.architecture, model.observable)
        move = _Drawn(RandomMove(catalogue, seed, condition=condition, only=only), read)
    verification = _Verification(model, move, read)
    record = {
        "action": "transform",
        "source": Path(model.checkpoint.path).name,
        "seed": seed,
        "condition": condition,
        "only": None if only is None else list(only),
        "witness": None if witness is None else witness.name,
        "observable": (move.observable or model.observable).value,
    }
    written = write_checkpoint(
        model,
        target,
        move.tensors(),
        record,
        dtype=dtype,
        overwrite=overwrite,
        verify=verification,
        progress=progress,
    )
    if save is not None:
        save_witness(move.witness, save, overwrite=overwrite)
    return Transformation(
        model.checkpoint.path,
        written,
        move.witness.observable,
        seed,
        condition,
        move.witness.mechanisms(),
        verification.exact,
        verification.stored,
        verification.outputs,
        approximate_mechanisms(move.witness),
        save,
        (*model.notes, *move.notes, *written.notes, *_coarse(verification.stored, written)),
    )


def _coarse(stored: float, written: Written) -> tuple[str, ...]:
    """A sentence when the storage format hides the function."""
    if stored <= COARSE:
        return ()
    formats = " and ".join(written.dtypes)
    return (
        f"Stored in {formats}, the moved weights no longer give the outputs to {COARSE:.0%}; a "
        "wider --dtype or a smaller --condition keeps them.",
    )


def approximate_mechanisms(witness: Witness) -> tuple[str, ...]:
    """Mechanisms of a witness that an epsilon breaks."""
    found: dict[str, None] = {}
    for step in witness.steps:
        item = witness.catalogue.items.get(step.key)
        if item is not None and item.kind is Kind.APPROXIMATE:
            found[step.key.mechanism] = None
    return tuple(found)


class _Stored:
    """A witness from a file."""

    def __init__(self, witness: Witness, read: Read) -> None:
        self.witness, self._read = witness, read
        self.observable: Observable | None = witness.observable
        self.notes: tuple[str, ...] = ()

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float64]]]:
        return moved_tensors(self.witness, self._read)


class _Drawn:
    """A random element, known once all tensors have been moved."""

    def __init__(self, move: RandomMove, read: Read) -> None:
        self._move, self._read = move, read
        self.observable: Observable | None = None

    @property
    def witness(self) -> Witness:
        return self._move.witness

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._move.notes))

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float64]]]:
        return self._move.tensors(self._read)


class _Verification:
    """Compares outputs before and after, called with the complete directory."""

    def __init__(self, model: OpenModel, move: _Stored | _Drawn, read: Read) -> None:
        self._model, self._move, self._read = model, move, read
        self.exact = self.stored = float("nan")
        self.outputs = 0

    def __call__(self, directory: Path) -> None:
        from fiberscope.checkpoints.forward import (
            deviation,
            output_width,
            outputs,
            stored_numbers,
        )

        model, witness = self._model, self._move.witness
        architecture, observable = model.architecture, witness.observable
        probe = default_probe(architecture)
        width = output_width(architecture, probe, observable)
        assert model.source is not None and model.matching is not None
        before = stored_numbers(model.source, model.matching.stored)
        expected = outputs(architecture, before, probe, observable)
        found = outputs(architecture, MovedReader(witness, self._read), probe, observable)
        exact = deviation(found, expected, width)
        self.exact, self.outputs = exact.relative, exact.outputs
        if not self.exact <= LARGEST_DEVIATION and not approximate_mechanisms(witness):
            raise InputError(
                f"the moved model's outputs deviate by {self.exact:.1e}, so it is not written; "
                "choose a smaller --condition or other mechanisms"
            )
        again = open_model(directory, observable, prefer_head=True)
        assert again.source is not None and again.matching is not None
        after = stored_numbers(again.source, again.matching.stored)
        found = outputs(again.architecture, after, probe, observable)
        self.stored = deviation(found, expected, width).relative


def default_probe(architecture: Architecture) -> Any:
    """Probe inputs of a written checkpoint: a few short random sequences."""
    from fiberscope.checkpoints.forward import probe_inputs

    length = min(PROBE_LENGTH, architecture.longest_input or PROBE_LENGTH)
    return probe_inputs(
        architecture, PROBE_SEED, PROBE_SEQUENCES, length, vocabulary_rows=PROBE_ROWS
    )
