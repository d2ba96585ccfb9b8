"""Which files in a directory are the model: exactly one answer, or an error that says why not."""

from __future__ import annotations

import re
from pathlib import Path

from fiberscope.checkpoints.formats.configuration import read_configuration
from fiberscope.checkpoints.formats.files import kind_of, quoted, reason
from fiberscope.checkpoints.formats.gguf_source import open_gguf
from fiberscope.checkpoints.formats.pickles import is_pickle, refusal
from fiberscope.checkpoints.formats.safetensors_source import (
    open_file,
    open_sharded,
    read_weight_map,
)
from fiberscope.checkpoints.formats.source import Checkpoint, WeightSource
from fiberscope.errors import InputError

_INDEX_SUFFIX = ".safetensors.index.json"
_ADAPTER_WEIGHTS = "adapter_model"
# Mistral's repositories hold the weights a second time under this name, in another layout.
_CONSOLIDATED = re.compile(r"consolidated(\.\d+|-\d+-of-\d+)?\.safetensors")
_SHARD = re.compile(r".+-\d+-of-(\d+)\.safetensors")


def is_shard(name: str) -> bool:
    """Tell whether a file name is that of one of several shards."""
    match = _SHARD.fullmatch(name)
    return match is not None and int(match[1]) > 1


def open_directory(path: Path) -> Checkpoint:
    """Open the one model in a directory.

    Raises
    ------
    InputError
        If there is no model in it, more than one, only an adapter, or only pickles; and for all
        that is wrong with its files.
    """
    contents = _Contents(path)
    if not contents.safetensors and not contents.indices and len(contents.gguf) == 1:
        return open_gguf(path / contents.gguf[0])
    contents.check_model_is_there()
    config = read_configuration(path / "config.json")
    notes: list[str] = []
    weights = contents.open_weights(notes)
    if contents.pickles:
        notes.append(f"Passed over in {path}, as a pickle: {_listed(contents.pickles)}.")
    if contents.adapters:
        notes.append(f"Passed over in {path}, as an adapter: {_listed(contents.adapters)}.")
    return Checkpoint(path, config, weights, tuple(notes))


class _Contents:
    """The names in a directory, sorted by what they could be."""

    def __init__(self, path: Path) -> None:
        try:
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            raise InputError(
                f"{path} cannot be listed ({reason(error)}); check its permissions."
            ) from error
        self.path = path
        self.names = set(names)
        self.indices = [
            name
            for name in names
            if name.endswith(_INDEX_SUFFIX) and not name.startswith("consolidated")
        ]
        stored = [name for name in names if name.endswith(".safetensors")]
        self.adapters = [name for name in names if name.startswith(_ADAPTER_WEIGHTS)]
        self.consolidated = [name for name in stored if _CONSOLIDATED.fullmatch(name)]
        passed_over = {*self.adapters, *self.consolidated}
        self.safetensors = [name for name in stored if name not in passed_over]
        self.gguf = [name for name in names if name.endswith(".gguf")]
        self.pickles = [name for name in names if is_pickle(name) and name not in self.adapters]

    def check_model_is_there(self) -> None:
        """Raise unless there is a configuration and one kind of weights that can be read."""
        path, found = self.path, [*self.indices, *self.safetensors]
        if not found and not self.gguf:
            self._explain_absence()
        if len(self.gguf) > 1 or (self.gguf and found):
            raise InputError(
                f"{path} holds more than one model ({_listed([*self.gguf, *found])}); pass the one "
                f"file that is meant."
            )
        if "config.json" not in self.names:
            raise InputError(
                f"{path} has weights and no config.json, so their architecture is not known; put "
                f"the model's config.json there."
            )

    def open_weights(self, notes: list[str]) -> WeightSource:
        """Open the index or the single file."""
        path = self.path
        if self.consolidated:
            notes.append(
                f"Passed over in {path}, as the weights a second time in Mistral's own layout: "
                f"{_listed(self.consolidated)}."
            )
        if len(self.indices) > 1:
            raise InputError(
                f"{path} holds more than one model ({_listed(self.indices)}); keep one index and "
                f"its shards there."
            )
        if self.indices:
            index = path / self.indices[0]
            others = sorted(set(self.safetensors) - set(read_weight_map(index).values()))
            if others:
                raise InputError(
                    f"{path} holds more than one model: {_listed(others)} beside the shards of "
                    f"{index.name}; keep one of them there."
                )
            return open_sharded(index)
        shards = [name for name in self.safetensors if is_shard(name)]
        if shards:
            raise InputError(
                f"{path} holds shards ({_listed(shards)}) and no model.safetensors.index.json; "
                f"download the index."
            )
        if len(self.safetensors) > 1:
            raise InputError(
                f"{path} holds more than one model ({_listed(self.safetensors)}); pass the one "
                f"file that is meant."
            )
        return open_file(path / self.safetensors[0])

    def _explain_absence(self) -> None:
        path = self.path
        if self.consolidated:
            raise InputError(
                f"{path} holds the weights only in Mistral's own layout "
                f"({_listed(self.consolidated)}); download the shards that transformers reads."
            )
        if self.pickles:
            raise refusal(path, self.pickles)
        if "adapter_config.json" in self.names or self.adapters:
            raise InputError(
                f"{path} holds an adapter, not a model; merge it into its model and pass that."
            )
        if "config.json" not in self.names:
            raise InputError(
                f"{path} has no config.json and no weights; pass the directory of a model."
            )
        if kind_of(path / "config.json") != "file":
            raise InputError(f"{path / 'config.json'} is not a readable file; pass another model.")
        raise InputError(
            f"{path} has a config.json and no weights (*.safetensors or *.gguf); pass "
            f"{path / 'config.json'} itself for a report on the architecture alone."
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(quoted(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
