"""Checkpoints on the Hugging Face hub, downloaded file by file into its own cache."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fiberscope.checkpoints.formats.configuration import read_configuration
from fiberscope.checkpoints.formats.files import quoted
from fiberscope.checkpoints.formats.safetensors_source import (
    open_file,
    open_sharded,
    read_weight_map,
)
from fiberscope.checkpoints.formats.source import Checkpoint
from fiberscope.errors import InputError

_HUB_ID = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?", re.ASCII)
_FILE_SUFFIXES = (".json", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt")


def is_hub_id(text: str) -> bool:
    """Tell whether a text has the form ``organisation/name[@revision]`` and not of a file name."""
    return _HUB_ID.fullmatch(text) is not None and not text.lower().endswith(_FILE_SUFFIXES)


def open_hub(text: str) -> Checkpoint:
    """Open a checkpoint by its hub id.

    config.json and model.safetensors, or the index and the shards it names, are downloaded; nothing
    else is. With `HF_HUB_OFFLINE` set, or without a connection, the hub's cache is used.

    Raises
    ------
    InputError
        If huggingface_hub is not installed, the model or its safetensors cannot be had, or a file
        is malformed.
    """
    match = _HUB_ID.fullmatch(text)
    assert match is not None
    fetch = _fetcher(text, match[1], match[2])
    config_file = fetch("config.json")
    if config_file is None:
        raise InputError(
            f"The hub model {text} has no config.json; pass a model that transformers can load."
        )
    config = read_configuration(config_file)
    single = fetch("model.safetensors")
    if single is not None:
        return Checkpoint(config_file.parent, config, open_file(single), ())
    index = fetch("model.safetensors.index.json")
    if index is None:
        raise InputError(
            f"The hub model {text} has no model.safetensors and no index of shards, or they are "
            f"not in the cache while the hub cannot be reached; pass a model stored as safetensors."
        )
    for shard in dict.fromkeys(read_weight_map(index).values()):
        if fetch(shard) is None:
            raise InputError(
                f"{index} names the shard {shard}, which the hub model {text} does not offer or "
                f"which is not in the cache; download it while connected."
            )
    return Checkpoint(config_file.parent, config, open_sharded(index), ())


def _fetcher(text: str, repository: str, revision: str | None) -> Callable[[str], Path | None]:
    """Return a function that gives the local path of a file, or None when the model has none."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import EntryNotFoundError
    except ImportError as error:
        raise InputError(
            f"{quoted(text)} does not exist here, and looking it up on the hub needs "
            f"huggingface_hub; run `pip install 'fiberscope[hub]'` or pass a path."
        ) from error

    with _quiet():
        reached = _is_reached(repository, revision)

    def fetch(name: str) -> Path | None:
        try:
            with _quiet():
                return Path(
                    hf_hub_download(
                        repository, name, revision=revision, local_files_only=not reached
                    )
                )
        except EntryNotFoundError as error:
            # Also raised, as a FileNotFoundError, for what is not cached while offline: for the
            # first file this means that nothing is known of the model.
            if isinstance(error, FileNotFoundError) and name == "config.json":
                raise InputError(
                    f"{quoted(text)} does not exist here, is not in the hub's cache, and the hub "
                    f"cannot be reached or HF_HUB_OFFLINE is set; pass a path or download it first."
                ) from error
            return None
        except Exception as error:
            # The client raises exceptions of its own, of its HTTP library and of the system.
            raise InputError(
                f"{quoted(text)} does not exist here and the hub did not provide it "
                f"({type(error).__name__} for {name}); check the name, the revision, your access "
                f"and the connection."
            ) from error

    return fetch


def _is_reached(repository: str, revision: str | None) -> bool:
    """Whether the hub answers at all, asked once: a download would try again for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json", revision=revision))
    except HfHubHTTPError:
        return True  # a refusal is an answer; the download tells which
    except Exception:
        # The client raises exceptions of its own, of its HTTP library and of the system.
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the client's warnings off stderr: what matters of them is in the error raised."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
