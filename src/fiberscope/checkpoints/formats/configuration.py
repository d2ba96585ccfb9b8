"""The config.json of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from fiberscope.checkpoints.formats.strict_json import read_object
from fiberscope.errors import InputError


def read_configuration(path: Path) -> dict[str, object]:
    """Read a model's configuration.

    Raises
    ------
    InputError
        If the file is unreadable or no JSON object, or is the index of shards or the configuration
        of an adapter.
    """
    config = read_object(path, "pass a config.json as transformers writes it")
    if path.name.endswith(".index.json") or "weight_map" in config:
        raise InputError(f"{path} is the index of shards; pass its directory {path.parent}.")
    if "peft_type" in config:
        raise InputError(
            f"{path} configures an adapter, not a model; merge it into its model and pass that."
        )
    return config
