"""Witnesses in files: one .npz without pickles, a JSON header beside the elements."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fiberscope
from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.formats.files import opened, reason
from fiberscope.checkpoints.formats.strict_json import parse_object
from fiberscope.checkpoints.moves.catalogue import Key, Step
from fiberscope.checkpoints.moves.witness import Witness, header
from fiberscope.errors import InputError

SCHEMA = "fiberscope/witness/1"
_REMEDY = "pass a file that fiberscope wrote as a witness"


def save_witness(witness: Witness, path: Path, *, overwrite: bool = False) -> None:
    """Write a witness beside its place and move it there whole.

    Raises
    ------
    InputError
        If the file exists and may not be replaced, or the file system refuses.
    """
    arrays: dict[str, NDArray[Any]] = {}
    steps = []
    for number, step in enumerate(witness.steps):
        arrays |= {f"{number}/element/{k}": part for k, part in enumerate(step.parts)}
        arrays |= {f"{number}/data/{name}": np.asarray(v) for name, v in step.data.items()}
        steps.append(
            {
                "mechanism": step.key.mechanism,
                "layer": step.key.layer,
                "where": step.key.where,
                "number": step.key.number,
                "parts": len(step.parts),
                "tuple": isinstance(step.element, tuple),
                "data": sorted(step.data),
            }
        )
    document = {"schema": SCHEMA, "version": fiberscope.__version__, **header(witness)}
    text = json.dumps({**document, "steps": steps}).encode()
    arrays["header"] = np.frombuffer(text, dtype=np.uint8)
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} exists; pass --overwrite to replace it, or another name")
    written: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name[:64]}.", delete=False
        ) as stream:
            written = Path(stream.name)
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        mask = os.umask(0)
        os.umask(mask)
        written.chmod(0o666 & ~mask)
        if overwrite:
            written.replace(path)
        else:
            os.link(written, path)
    except FileExistsError as error:
        raise InputError(f"{path} exists; choose another name") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {reason(error).lower()}; choose another place"
        ) from error
    finally:
        if written is not None:
            with contextlib.suppress(FileNotFoundError):
                written.unlink()


def load_witness(path: Path, architecture: Architecture) -> Witness:
    """Read a witness for a model.

    Raises
    ------
    InputError
        If the file is no witness, or one of another model; one sentence.
    """
    with opened(path) as (stream, _):
        content = stream.read()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no witness or is corrupt; {_REMEDY}") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError(f"{path} holds entries that are no arrays; {_REMEDY}")
    if "header" not in arrays:
        raise InputError(f"{path} is no witness: it has no header; {_REMEDY}")
    document = parse_object(arrays["header"].tobytes(), f"the header of {path}", _REMEDY)
    if document.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {document.get('schema')!r}, not {SCHEMA!r}; {_REMEDY}")
    try:
        return _assembled(path, document, arrays, architecture)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is a corrupt witness; {_REMEDY}") from error


def _assembled(
    path: Path, document: Any, arrays: dict[str, NDArray[Any]], architecture: Architecture
) -> Witness:
    if document["architecture"] != architecture.name:
        raise InputError(
            f"{path} is a witness of {document['architecture']}, and the model is "
            f"{architecture.name}; use the model it was made for"
        )
    tensors = {name: tuple(shape) for name, shape in document["tensors"].items()}
    expected = {name: tuple(shape) for name, shape in architecture.tensors.items()}
    if tensors != expected:
        odd = next(n for n in (*expected, *tensors) if tensors.get(n) != expected.get(n))
        raise InputError(
            f"{path} is a witness for {odd} of shape {tensors.get(odd, 'none')}, and the model has "
            f"{expected.get(odd, 'none')}; use the model it was made for"
        )
    if bool(document["tied"]) != architecture.tied:
        raise InputError(
            f"{path} is a witness of a model with {'' if document['tied'] else 'un'}tied "
            "embeddings, unlike this one; use the model it was made for"
        )
    steps = []
    for number, entry in enumerate(document["steps"]):
        parts = tuple(arrays[f"{number}/element/{k}"] for k in range(entry["parts"]))
        if not all(part.dtype.kind in "fi" and np.isfinite(part).all() for part in parts):
            raise InputError(f"{path}: step {number} holds no finite numbers; {_REMEDY}")
        data = {name: arrays[f"{number}/data/{name}"] for name in entry["data"]}
        key = Key(entry["mechanism"], entry["layer"], entry["where"], entry["number"])
        steps.append(Step(key, parts if entry["tuple"] else parts[0], data))
    witness = Witness(architecture, Observable(document["observable"]), tuple(steps))
    for step in witness.steps:
        witness.symmetry(step)  # refuses what does not fit
    return witness
