"""Why pickle files are refused, and how to convert them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fiberscope.errors import InputError

_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
# What training leaves beside the weights: pickles too, but no models.
_TRAINING_STATE = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")


def is_pickle(name: str) -> bool:
    """Tell whether a file name is one under which pickled weights are stored."""
    path = Path(name)
    if name.endswith(".bin.index.json"):
        return True
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(_TRAINING_STATE)


def refusal(path: Path, names: Iterable[str]) -> InputError:
    """Explain the refusal of the pickles `names` found at `path`, with the command to convert."""
    first = sorted(names)[0]
    if path.is_dir():
        command = (
            "from transformers import AutoModel as M; "
            f"M.from_pretrained({str(path)!r}).save_pretrained('converted')"
        )
    else:
        command = (
            "import torch; from safetensors.torch import save_file; "
            f"save_file(torch.load({str(path)!r}, weights_only=True), 'model.safetensors')"
        )
    return InputError(
        f"{path} stores its weights as a pickle ({first}), which can execute any code when it is "
        f'loaded; convert it where you trust it: python -c "{command}".'
    )
