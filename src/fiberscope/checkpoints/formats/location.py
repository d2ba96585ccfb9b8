"""From what the user names to a checkpoint: a directory, a file, or a hub id."""

from __future__ import annotations

from pathlib import Path

from fiberscope.checkpoints.formats.configuration import read_configuration
from fiberscope.checkpoints.formats.directory import is_shard, open_directory
from fiberscope.checkpoints.formats.files import kind_of
from fiberscope.checkpoints.formats.gguf_source import open_gguf
from fiberscope.checkpoints.formats.hub import is_hub_id, open_hub
from fiberscope.checkpoints.formats.pickles import is_pickle, refusal
from fiberscope.checkpoints.formats.safetensors_source import open_file, read_weight_map
from fiberscope.checkpoints.formats.source import Checkpoint
from fiberscope.errors import InputError


def open_checkpoint(location: str | Path) -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Parameters
    ----------
    location
        One of: a Hugging Face directory (config.json beside model.safetensors, or beside shards and
        model.safetensors.index.json); a configuration alone (any .json file); a .safetensors file
        beside a config.json; a .gguf file of the Llama family; or, when neither that path nor its
        first folder exists and huggingface_hub is installed, a hub id
        ``organisation/name[@revision]``, of which only config.json, the index and the safetensors
        files are downloaded (`HF_HUB_OFFLINE` is honoured).

    Returns
    -------
    Checkpoint
        The configuration, and the weights unless only a configuration was given.

    Raises
    ------
    InputError
        If there is no checkpoint there, or it is malformed, ambiguous, stored as a pickle, or of an
        unknown format.
    """
    text = str(location)
    if not text:
        raise InputError("The location of the checkpoint is empty; pass a directory or a file.")
    path = Path(location)
    kind = kind_of(path)
    if kind == "directory":
        return open_directory(path)
    if kind is None:
        if isinstance(location, str) and is_hub_id(location) and not _below_a_folder(path):
            return open_hub(location)
        if is_pickle(text):
            raise InputError(f"{text} does not exist, and would be a pickle; pass safetensors.")
        raise InputError(f"{text} does not exist; pass a directory, a file, or a hub id org/name.")
    if kind != "file":
        raise InputError(f"{path} is neither a file nor a directory; pass a checkpoint.")
    return _open_file(path)


def _below_a_folder(path: Path) -> bool:
    """Whether the first folder of a path exists: then no organisation on the hub was meant."""
    return kind_of(Path(path.parts[0])) == "directory"


def _open_file(path: Path) -> Checkpoint:
    suffix = path.suffix.lower()
    if is_pickle(path.name):
        raise refusal(path, [path.name])
    if suffix == ".json":
        return Checkpoint(path, read_configuration(path), None, ())
    if suffix == ".gguf":
        return open_gguf(path)
    if suffix == ".safetensors":
        return _open_safetensors(path)
    raise InputError(
        f"{path} is of an unknown format; pass a directory, a config.json, a .safetensors file "
        f"beside its config.json, or a .gguf file."
    )


def _open_safetensors(path: Path) -> Checkpoint:
    index = path.parent / "model.safetensors.index.json"
    if is_shard(path.name) or (
        kind_of(index) is not None and path.name in read_weight_map(index).values()
    ):
        raise InputError(f"{path} is one shard of a model; pass its directory {path.parent}.")
    beside = path.parent / "config.json"
    if kind_of(beside) is None:
        raise InputError(
            f"{path} has no config.json beside it, so its architecture is not known; put the "
            f"model's config.json there."
        )
    config = read_configuration(beside)
    return Checkpoint(path, config, open_file(path), ())
