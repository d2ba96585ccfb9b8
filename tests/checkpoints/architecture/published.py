"""The published classes themselves, in float64, as the oracle."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np

from fiberscope.checkpoints.twins.precision import float64_evaluation
from tests.checkpoints.architecture.toy_configurations import Config


def published_class(name: str, model_type: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model_type}"), name)


def published_model(config: Config, *, meta: bool = False) -> Any:
    """The class of ``architectures[0]``, float64, eager attention, evaluation mode."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    settings._attn_implementation = "eager"
    model_class = published_class(config["architectures"][0], config["model_type"])
    with float64_evaluation(), torch.device("meta" if meta else "cpu"):
        model = model_class(settings)
    if config["model_type"] == "t5" and config.get("tie_word_embeddings") is False:
        # The class ties whatever the configuration says.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model.double().eval()


def randomise(model: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw every parameter; return the state dictionary as arrays."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(0.6 * rng.standard_normal(tuple(parameter.shape))))
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}
