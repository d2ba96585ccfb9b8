"""Writing a checkpoint that was read: same names, layout and companions, other values."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fiberscope
from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Norm,
    Normalize,
)
from fiberscope.checkpoints.formats.safetensors_header import DTYPES, read_header
from fiberscope.checkpoints.formats.source import TensorInfo, WeightSource
from fiberscope.checkpoints.formats.strict_json import read_object
from fiberscope.checkpoints.opening import OpenModel
from fiberscope.checkpoints.writing.companions import (
    copy_companions,
    find_companions,
    note_left_out,
    set_dtype,
    write_json,
)
from fiberscope.checkpoints.writing.safetensors_file import Planned, SafetensorsFile
from fiberscope.checkpoints.writing.staging import check_target, staged_directory
from fiberscope.checkpoints.writing.storage import FORMATS, to_storage
from fiberscope.errors import InputError

RECORD = "fiberscope"
"""Key of the safetensors metadata that says what was done."""
RECORD_SCHEMA = "fiberscope/written/1"

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next)."""
Tensors = Iterable[tuple[str, NDArray[Any]]]
"""Tensors of the architecture by name, each exactly once, in any order, one in memory at a time."""


@dataclass(frozen=True)
class Written:
    """A checkpoint that is in place.

    Attributes
    ----------
    path
        Its directory.
    dtypes
        The number formats of its parameters.
    byte_count
        Bytes of its weights.
    record
        What the metadata say was done; None for a copy.
    verification
        What the verification returned.
    notes
        Sentences about what was left out.
    """

    path: Path
    dtypes: tuple[str, ...]
    byte_count: int
    record: Mapping[str, Any] | None
    verification: Any
    notes: tuple[str, ...]


def check_output(model: OpenModel, target: Path, *, overwrite: bool = False) -> None:
    """Refuse an output directory before any work is done.

    Raises
    ------
    InputError
        If it exists and may not be replaced, holds the input or lies in it, or cannot be created.
        Only an empty directory or a checkpoint that fiberscope wrote is ever replaced.
    """
    check_target(target, _place_of(model), overwrite=overwrite, replaceable=_is_ours)


def write_checkpoint(
    model: OpenModel,
    target: Path,
    tensors: Tensors,
    record: Mapping[str, Any],
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    verify: Callable[[Path], Any] | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write a Hugging Face directory in the layout of an opened checkpoint.

    Names, shards, index and companions are those of the input; tensors of other classes and buffers
    are copied as they are; a tied tensor that the input stores twice is written twice. A GGUF input
    becomes one model.safetensors with the config.json that its metadata amount to.

    Parameters
    ----------
    model
        The input, with weights.
    target
        The directory to create; its parent must exist.
    tensors
        All tensors of ``model.architecture`` with their values; see `Tensors`.
    record
        What was done, as plain data; written to the metadata of every file with fiberscope's
        version and the records of earlier runs.
    dtype
        One storage format for all parameters; by default each keeps the input's (blocks of a
        quantised file become float32). See `to_storage` for what is refused.
    overwrite
        Replace an earlier output, which is kept until this one is complete.
    verify
        Called with the complete directory before it is moved into place; what it raises leaves
        nothing behind.

    Raises
    ------
    InputError
        As `check_output` and `to_storage`, and when the file system refuses.
    ValueError
        If ``tensors`` are not those of the architecture.
    """
    source, stored = _weights(model)
    if dtype is not None and dtype not in FORMATS:
        raise InputError(f"{dtype!r} is no storage format; use one of {', '.join(FORMATS)}")
    check_output(model, target, overwrite=overwrite)
    formats = {name: _format(source.tensors[place], dtype) for name, place in stored.items()}
    full = {"schema": RECORD_SCHEMA, "version": fiberscope.__version__, **record}
    if earlier := _earlier_records(source):
        full["earlier"] = earlier

    def recheck() -> None:
        check_output(model, target, overwrite=overwrite)

    with staged_directory(target, overwrite=overwrite, recheck=recheck) as staging:
        notes = _write_companions(model, staging, dtype)
        total = _write_weights(model, staging, tensors, formats, full, progress)
        _write_index(source, staging, total)
        if verify is not None and progress is not None:
            progress(len(stored), len(stored) + 1, "verifying the outputs")
        verification = None if verify is None else verify(staging)
    names = tuple(sorted({form.name for form in formats.values()}))
    return Written(target, names, total, full, verification, notes)


def copy_checkpoint(
    model: OpenModel,
    target: Path,
    *,
    overwrite: bool = False,
    verify: Callable[[Path], Any] | None = None,
) -> Written:
    """Copy an opened checkpoint byte for byte: weights, configuration and companions.

    Raises
    ------
    InputError
        As `write_checkpoint`.
    """
    source, stored = _weights(model)
    check_output(model, target, overwrite=overwrite)

    def recheck() -> None:
        check_output(model, target, overwrite=overwrite)

    files = sorted({info.file for info in source.tensors.values()})
    with staged_directory(target, overwrite=overwrite, recheck=recheck) as staging:
        notes = () if source.format == "gguf" else _write_companions(model, staging, None)
        for file in files:
            shutil.copyfile(file, staging / file.name)
        if source.path not in files:
            shutil.copyfile(source.path, staging / source.path.name)
        verification = None if verify is None else verify(staging)
    names = tuple(sorted({source.tensors[name].dtype for name in stored.values()}))
    total = sum(file.stat().st_size for file in files)
    return Written(target, names, total, None, verification, notes)


def norm_gains(architecture: Architecture) -> dict[str, frozenset[int]]:
    """Flat indices of the entries that are norm gains as used (not stored as ``w`` for ``1 + w``).

    One of them that became zero would silence a feature, whatever its size.
    """
    found: dict[str, set[int]] = {}
    for norm in _norms(architecture):
        if norm.gain is None or norm.gain.offset:
            continue
        shape = norm.gain.stored_shape
        index = np.arange(int(np.prod(shape))).reshape(shape)
        found.setdefault(norm.gain.tensor, set()).update(norm.gain.window(index).ravel().tolist())
    return {name: frozenset(entries) for name, entries in found.items()}


def _norms(architecture: Architecture) -> Iterator[Norm]:
    for stream in architecture.streams:
        if stream.final is not None:
            yield stream.final
        for step in stream.steps:
            if isinstance(step, Normalize):
                yield step.norm
                continue
            for branch in step.branches:
                if branch.norm is not None:
                    yield branch.norm
                for sublayer in branch.sublayers:
                    if isinstance(sublayer, Attention):
                        for norm in (sublayer.query_norm, sublayer.key_norm):
                            if norm is not None:
                                yield norm
    if architecture.head is not None and architecture.head.norm is not None:
        yield architecture.head.norm


def _weights(model: OpenModel) -> tuple[WeightSource, Mapping[str, str]]:
    if model.source is None or model.matching is None:
        raise InputError(
            f"{model.checkpoint.path} has no weights, so there is nothing to write; pass the "
            "directory of a model"
        )
    return model.source, model.matching.stored


def _place_of(model: OpenModel) -> Path:
    return model.checkpoint.path


def _format(info: TensorInfo, dtype: str | None) -> np.dtype[Any]:
    return FORMATS[dtype] if dtype else FORMATS.get(info.dtype, FORMATS["float32"])


def _is_ours(path: Path) -> bool:
    """Whether a directory is empty, or a checkpoint with our record in its metadata."""
    entries = list(path.iterdir())
    files = [entry for entry in entries if entry.suffix == ".safetensors" and entry.is_file()]
    if not entries:
        return True
    try:
        return bool(files) and all(RECORD in read_header(file).metadata for file in files)
    except InputError:
        return False


def _earlier_records(source: WeightSource) -> list[Any]:
    """What earlier runs recorded, oldest first."""
    if source.format != "safetensors":
        return []
    file = next(iter(source.tensors.values())).file
    text = read_header(file).metadata.get(RECORD)
    if text is None:
        return []
    try:
        record = json.loads(text)
    except ValueError:
        return [text]
    earlier = record.pop("earlier", []) if isinstance(record, dict) else []
    return [*earlier, record]


def _write_companions(model: OpenModel, staging: Path, dtype: str | None) -> tuple[str, ...]:
    """Configuration and small files; sentences about what was left out."""
    path = model.checkpoint.path
    source = model.source
    if source is not None and source.format == "gguf":
        write_json(staging / "config.json", dict(model.config))
        return ("A GGUF file's tokenizer is not converted: only config.json and weights.",)
    root = path if path.is_dir() else path.parent
    companions = find_companions(root)
    copy_companions(companions, staging)
    if dtype is not None:
        set_dtype(staging / "config.json", dtype)
    ours = set() if source is None else {info.file.name for info in source.tensors.values()}
    if source is not None:
        ours.add(source.path.name)
    return note_left_out(tuple(name for name in companions.left_out if name not in ours))


def _write_weights(
    model: OpenModel,
    staging: Path,
    tensors: Tensors,
    formats: Mapping[str, np.dtype[Any]],
    record: Mapping[str, Any],
    progress: Progress | None,
) -> int:
    """Write all weight files; returns the bytes of all tensors."""
    source, stored = _weights(model)
    assert model.matching is not None
    places: dict[str, list[str]] = {name: [place] for name, place in stored.items()}
    owner = {place: name for name, place in stored.items()}
    for copy, original in model.matching.copies:
        places[owner[original]].append(copy)
    format_of = {place: formats[name] for name, held in places.items() for place in held}
    gains = norm_gains(model.architecture)
    by_file: dict[Path, list[TensorInfo]] = {}
    for info in source.tensors.values():
        by_file.setdefault(info.file, []).append(info)
    text = json.dumps(record, ensure_ascii=False)
    with contextlib.ExitStack() as stack:
        file_of: dict[str, SafetensorsFile] = {}
        for file, infos in by_file.items():
            planned = [
                Planned(i.name, format_of[i.name] if i.name in format_of else _plain(i), i.shape)
                for i in infos
            ]
            name, metadata = file.name, {}
            if source.format == "safetensors":
                metadata = dict(read_header(file).metadata)
            else:
                name = "model.safetensors"
            metadata.setdefault("format", "pt")  # without it some readers refuse a file
            metadata[RECORD] = text
            opened = stack.enter_context(SafetensorsFile(staging / name, planned, metadata))
            file_of |= dict.fromkeys(opened.tensors, opened)
        rest = [name for name in source.tensors if name not in format_of]
        for name in rest:
            file_of[name].write(name, source.read(name))
        missing = set(places)
        for done, (name, values) in enumerate(tensors):
            if name not in missing:
                raise ValueError(f"{name} is no tensor of {model.architecture.name}, or came twice")
            if progress is not None:
                progress(done, len(places) + 1, f"writing {name}")
            shape = source.tensors[stored[name]].shape
            kept = to_storage(np.asarray(values), formats[name], name, gains.get(name))
            for place in places[name]:
                file_of[place].write(place, kept.reshape(shape))
            missing.discard(name)
        if missing:
            raise ValueError(f"not all tensors came: {sorted(missing)[0]} is missing")
    return sum(
        planned.byte_count for file in set(file_of.values()) for planned in file.tensors.values()
    )


def _plain(info: TensorInfo) -> np.dtype[Any]:
    """The number format of a tensor that is copied as it is; quantised blocks become float32."""
    known = {dtype.name: dtype for dtype in DTYPES.values()}
    return known.get(info.dtype, FORMATS["float32"])


def _write_index(source: WeightSource, staging: Path, total: int) -> None:
    """The index of shards, with the size of the tensors as written."""
    if source.path.suffix != ".json":
        return
    index = read_object(source.path, "download or write the index again")
    metadata = index.get("metadata")
    if isinstance(metadata, dict) and metadata.get("total_size") not in (None, total):
        index["metadata"] = {**metadata, "total_size": total}
        write_json(staging / source.path.name, index)
    else:
        shutil.copyfile(source.path, staging / source.path.name)
