"""The small files of a model: configuration, tokenizer, model card, and what is left out."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fiberscope.checkpoints.formats.files import quoted
from fiberscope.checkpoints.formats.pickles import is_pickle

LARGEST = 256 * 2**20
"""Bytes of a file that still counts as small (tokenizers take up to tens of megabytes)."""

_WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin.index.json",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
    ".tflite",
    ".ot",
    ".npz",
    ".npy",
    ".mlmodel",
    ".xml",
)
_DTYPE_KEYS = ("torch_dtype", "dtype")


@dataclass(frozen=True)
class Companions:
    """What is copied beside the weights, as paths relative to ``root``, and what is not."""

    root: Path
    copied: tuple[str, ...]
    left_out: tuple[str, ...]


def find_companions(root: Path) -> Companions:
    """Sort the files beside a model's weights.

    Everything is copied but: weights in any format (the same weights in another format, adapters
    and checkpoints in subfolders would still be those of the model before the move), hidden files,
    folders that hold weights, and files of more than 256 MB.
    """
    copied: list[str] = []
    left_out: list[str] = []
    for entry in sorted(root.iterdir()):
        name = entry.name
        if name.startswith("."):
            continue
        if entry.is_dir():
            below = sorted(path for path in entry.rglob("*") if path.is_file())
            if any(_is_left_out(path) for path in below):
                left_out.append(f"{name}/")
            else:
                copied += [str(path.relative_to(root)) for path in below]
        elif _is_left_out(entry):
            left_out.append(name)
        elif entry.is_file():
            copied.append(name)
    return Companions(root, tuple(copied), tuple(left_out))


def _is_left_out(path: Path) -> bool:
    name = path.name.lower()
    return is_pickle(name) or name.endswith(_WEIGHTS) or path.stat().st_size > LARGEST


def copy_companions(companions: Companions, target: Path) -> None:
    """Copy the small files into a directory, byte for byte."""
    for name in companions.copied:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(companions.root / name, place)


def note_left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    """One sentence about the files that were not copied, or none."""
    if not names:
        return ()
    shown = ", ".join(quoted(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"Not copied, as they may hold weights of the input: {shown}{more}.",)


def set_dtype(config: Path, dtype: str) -> None:
    """Change the number format that a config.json names, where it names one.

    Readers load in that format whatever the file's own is; it would round the weights again.
    """
    document = json.loads(config.read_text(encoding="utf-8"))
    named = [key for key in _DTYPE_KEYS if document.get(key) is not None]
    if all(document[key] == dtype for key in named):
        return
    for key in named:
        document[key] = dtype
    write_json(config, document)


def write_json(path: Path, document: object) -> None:
    """Write a JSON file as transformers does: two spaces, a newline at the end."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def small_files_of(location: Path) -> Path | None:
    """The directory whose small files belong to a model, or None for a file that holds it all."""
    if location.is_dir():
        return location
    return location.parent if os.path.isfile(location.parent / "config.json") else None
