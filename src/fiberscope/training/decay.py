"""Decoupled weight decay: the part of an update that is known without looking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DECOUPLED = ("AdamW",)
"""torch optimizers that always shrink the weights apart from the gradient."""

COUPLED = (
    "SGD",
    "Adam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "ASGD",
    "LBFGS",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
)
"""torch optimizers that add decay to the gradient, unless a group says ``decoupled``."""


def decays_apart(optimizer: Any) -> bool | None:
    """Whether weight decay is decoupled; None when the optimizer is not known."""
    if any(_is_apart(optimizer, group) for group in optimizer.param_groups):
        return True
    return False if type(optimizer).__name__ in COUPLED else None


def _is_apart(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether one group's decay is decoupled: groups of an Adam may differ in it."""
    kind = type(optimizer)
    always = kind.__name__ in DECOUPLED and kind.__module__.startswith("torch.")
    return bool(group.get("decoupled_weight_decay", always))


def decay_factors(optimizer: Any) -> dict[int, float]:
    """``-lr * weight_decay`` of every parameter that the coming step will shrink, by identity.

    Parameters without a gradient are passed over by the step and do not shrink; nor do those of
    groups whose decay is added to the gradient, where others of the optimizer are decoupled.
    """
    return {
        id(parameter): -float(group["lr"]) * float(group.get("weight_decay", 0.0))
        for group in optimizer.param_groups
        if _is_apart(optimizer, group)
        for parameter in group["params"]
        if parameter.grad is not None
    }


def decay_direction(
    factors: Mapping[int, float],
    tensors: Mapping[str, Any],
    weights: Mapping[str, NDArray[np.float64]],
) -> dict[str, NDArray[np.float64]]:
    """``-lr * weight_decay * theta`` at the weights before the step, over the given names."""
    return {name: factors.get(id(tensors[name]), 0.0) * value for name, value in weights.items()}
