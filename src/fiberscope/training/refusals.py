"""What a monitor cannot measure, each in one sentence, before the training starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiberscope.errors import InputError

WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule")
"""Wrappers that keep whole weights; the model inside is measured."""

FUSED_OPTIMIZERS = ("Lomo", "AdaLomo")
"""Optimizers that step inside the backward pass without a hook that can be seen."""


def unwrapped(model: Any) -> Any:
    """The model inside data parallel and compiling wrappers."""
    while type(model).__name__ in WRAPPERS:
        inside = getattr(model, "module", None)
        model = getattr(model, "_orig_mod", None) if inside is None else inside
    return model


def inner_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper that has one (accelerate's).

    Raises
    ------
    InputError
        If it has no step hooks or steps inside the backward pass.
    """
    # Accelerate's wrapper derives from torch's class, but has none of its hooks.
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    name = type(optimizer).__name__
    if name in FUSED_OPTIMIZERS:
        raise InputError(_fused(f"{name} steps"))
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise InputError(
            f"{name} has no step hooks, so its updates cannot be seen; use an optimizer derived "
            "from torch.optim.Optimizer"
        )
    return optimizer


def _fused(who: str) -> str:
    return (
        f"{who} inside the backward pass, so there is no moment before and after the whole step; "
        "train without fusing the step into the backward pass"
    )


def refuse_parameters(model: Any, tensors: Mapping[str, Any], masters: Mapping[str, Any]) -> None:
    """Refuse weights whose difference over a step is not the update, or is not all here.

    Parameters
    ----------
    model
        The torch model.
    tensors
        Name -> the tensor that is stepped.
    masters
        Name -> float32 tensor that stands for weights in half precision.

    Raises
    ------
    InputError
        If parameters are sharded, offloaded, quantized or stored in half precision without master
        weights, or are stepped inside the backward pass.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind in ("FullyShardedDataParallel", "FSDPModule") or kind.startswith("FSDP"):
            raise InputError(
                f"the model is sharded by {kind}, so no process holds whole weights; measure a run "
                "in which every process has them all"
            )
        if getattr(getattr(module, "_hf_hook", None), "offload", False):
            raise InputError(
                f"the weights of a {kind} are offloaded while they are not in use; keep the whole "
                "model in memory to measure it"
            )
    for name, tensor in tensors.items():
        _refuse_tensor(name, tensor)
    for name, parameter in model.named_parameters():
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks and parameter.requires_grad and name not in masters:
            raise InputError(_fused(f"a hook of the parameter {name!r} may step it"))


def _refuse_tensor(name: str, tensor: Any) -> None:
    import torch

    kind = type(tensor).__name__
    if kind == "DTensor" or hasattr(tensor, "ds_id") or hasattr(tensor, "_flat_param"):
        raise InputError(
            f"the parameter {name!r} is sharded over processes; measure a run in which every "
            "process holds whole weights"
        )
    if tensor.device.type == "meta" or (tensor.numel() == 0 and tensor.dim() == 1):
        raise InputError(
            f"the parameter {name!r} is offloaded or sharded, its values are not here; keep the "
            "whole model in memory to measure it"
        )
    if not tensor.dtype.is_floating_point:
        raise InputError(
            f"the parameter {name!r} is quantized to {tensor.dtype}, which has no small moves; "
            "measure a run with floating-point weights"
        )
    if tensor.dtype not in (torch.float32, torch.float64) and tensor.requires_grad:
        raise InputError(
            f"the parameter {name!r} is stored in {tensor.dtype} without master weights, so most "
            "of its difference over a step is rounding; train with float32 weights (autocast keeps "
            "them), or give the float32 weights that the optimizer steps as masters"
        )
