"""Small trained checkpoints that ship with the package: real weights for a first look."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fiberscope.errors import InputError

__all__ = ["EXAMPLES", "example_path"]

EXAMPLES: tuple[str, ...] = ("gpt2", "llama-a", "llama-b")
"""Names of the example checkpoints: a GPT-2-style decoder, and one Llama-style decoder trained
twice from two seeds."""


def example_path(name: str = "gpt2") -> Path:
    """Return the directory of an example checkpoint.

    Parameters
    ----------
    name
        One of ``EXAMPLES``.

    Returns
    -------
    Path
        A Hugging Face directory: ``config.json`` and ``model.safetensors`` (float32). Its
        ``README.md`` states how the weights were trained and the loss they reach, its
        ``training.json`` the loss curve and the versions used.

    Raises
    ------
    InputError
        If there is no example of that name.
    """
    if name not in EXAMPLES:
        raise InputError(
            f"There is no example checkpoint named {name!r}; choose one of {', '.join(EXAMPLES)}."
        )
    return Path(str(files(__name__).joinpath(name)))
