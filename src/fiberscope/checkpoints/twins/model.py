"""Building a model of the architecture's own class, in float64, with random parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.twins.architectures import class_name_of, model_type_of
from fiberscope.checkpoints.twins.precision import float64_evaluation
from fiberscope.errors import InputError

# Storage types, training-time noise and float32 by decree have no place in a twin.
_DROPPED = (
    "dtype",
    "torch_dtype",
    "transformers_version",
    "quantization_config",
    "reorder_and_upcast_attn",
)
_DROPOUTS = (
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "dropout",
    "dropout_rate",
    "attention_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layerdrop",
)

LARGEST_TWIN = 20_000


def build_model(config: Mapping[str, object]) -> Any:
    """Instantiate ``architectures[0]`` in float64, in evaluation mode, with eager attention.

    The raw dictionary decides about tying, also where the class ignores it (T5).

    Raises
    ------
    InputError
        If the class has no twins, rejects the configuration, or the model would be too large.
    """
    import torch
    import transformers

    raw = copy.deepcopy(dict(config))  # the classes change dictionaries they are given
    model_type, class_name = model_type_of(raw), class_name_of(raw)
    for name in _DROPPED:
        raw.pop(name, None)
    if raw.get("head_dim") is None:
        raw.pop("head_dim", None)  # null means the default, but Qwen2 would compute with it
    raw.update({name: 0.0 for name in _DROPOUTS if name in raw})
    # Generation settings play no part; the defaults lie outside a toy vocabulary.
    raw.update(use_cache=False, bos_token_id=None, eos_token_id=None)
    untied = raw.get("tie_word_embeddings") is False
    try:
        with float64_evaluation():
            settings = transformers.CONFIG_MAPPING[model_type].from_dict(raw)
            settings._attn_implementation = "eager"
            model_class = getattr(transformers, class_name)
            with torch.device("meta"):  # shapes without memory
                shapes = model_class(copy.deepcopy(settings))
            _refuse_large(sum(parameter.numel() for parameter in shapes.parameters()))
            model = model_class(settings)
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"transformers cannot build {class_name} from this configuration: {reason}"
        ) from error
    model = model.double().eval()
    if class_name == "T5ForConditionalGeneration" and untied:
        _untie_head(model)
    _differentiate_padding_rows(model)
    return model


def _refuse_large(count: int) -> None:
    if count > LARGEST_TWIN:
        raise InputError(
            f"A twin of {count} parameters is too large (at most {LARGEST_TWIN}): "
            "shrink the configuration with toy_config first."
        )


def _untie_head(model: Any) -> None:
    import torch

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def _differentiate_padding_rows(model: Any) -> None:
    """Let autograd see that outputs depend on the padding row.

    `torch.nn.Embedding` zeroes the gradient of its padding row, a training convention and not a
    property of the function.
    """
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None


def set_epsilon(model: Any, epsilon: float) -> None:
    """Set the epsilon of every norm of the model, configured or hard-coded."""
    for module in model.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, float(epsilon))


def draw_parameters(model: Any, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Random float64 values for every stored parameter, tied ones once.

    Norm gains are near 1 with 30 % spread (kept away from 0); biases have scale 0.3, all else 0.6,
    or less where needed for the outputs of wide maps to keep unit scale.
    """
    import torch

    gains: dict[int, float] = {}
    fan_in: dict[int, int] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is None or not isinstance(weight, torch.nn.Parameter):
            continue
        if hasattr(module, "eps") or hasattr(module, "variance_epsilon"):
            # A freshly built gain is neutral: 1, or 0 where the class computes 1 + w.
            gains[id(weight)] = float(weight.detach().flatten()[0])
        elif not isinstance(module, torch.nn.Embedding):
            outputs = -1 if type(module).__name__ == "Conv1D" else 0  # stored (in, out)
            fan_in[id(weight)] = weight.numel() // weight.shape[outputs]
    values: dict[str, NDArray[np.float64]] = {}
    for name, parameter in model.named_parameters():
        draw = rng.standard_normal(tuple(parameter.shape))
        if id(parameter) in gains:
            values[name] = gains[id(parameter)] + np.clip(0.3 * draw, -0.75, 0.75)
        elif name.endswith("bias"):
            values[name] = 0.3 * draw
        elif id(parameter) in fan_in:
            values[name] = min(0.6, 1.2 / np.sqrt(fan_in[id(parameter)])) * draw
        else:
            values[name] = 0.6 * draw
    return values


def load_parameters(model: Any, values: Mapping[str, NDArray[np.float64]]) -> None:
    """Copy the values into the model's parameters."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values[name])))
