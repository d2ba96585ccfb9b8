"""What an optimizer remembers, carried along when the weights move to another point of a fiber."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError

SecondMoments = Literal["reset", "keep"]
Arrays = Mapping[str, NDArray[Any]]
Carry = Callable[[Sequence[Arrays]], Sequence[Arrays]]

_FIRST = ("momentum_buffer", "exp_avg")
_SECOND = ("exp_avg_sq", "max_exp_avg_sq")
_KNOWN = ("SGD", "Adam", "AdamW")

RESET = (
    "first moments were carried along as covectors; second moments have no exact image and were "
    "reset: the state of every moved tensor is what one step with the (bias-corrected) first "
    "moment as its gradient leaves, and its step count starts again at 1"
)
KEPT = (
    "first moments were carried along as covectors; second moments were kept as they were, which "
    "is an approximation: they belong to the coordinates before the move"
)
FIRST_ONLY = "momentum was carried along as a covector"
NOTHING = "the optimizer had no state yet"


def check_optimizer(optimizer: Any, named: Mapping[str, Any]) -> None:
    """Refuse an optimizer whose memory is not understood, or that trains something else.

    Raises
    ------
    InputError
        If it is not SGD, Adam or AdamW of torch, or has none of the model's parameters.
    """
    name = type(optimizer).__name__
    if name not in _KNOWN or not type(optimizer).__module__.startswith("torch.optim"):
        raise InputError(
            f"the state of the optimizer {name} cannot be carried along (only that of torch's "
            f"{', '.join(_KNOWN)} can): rebalance without it and start a new one"
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not trained.intersection(id(p) for p in named.values()):
        raise InputError(
            "the optimizer trains none of the model's parameters: pass the one that was built "
            "from model.parameters()"
        )


def carry_state(
    optimizer: Any, named: Mapping[str, Any], carry: Carry, second_moments: SecondMoments
) -> str:
    """Move the optimizer's state of the named parameters, in place; say what was done.

    Parameters
    ----------
    optimizer
        As accepted by `check_optimizer`.
    named
        The moved parameters by name.
    carry
        Carries covectors, each a mapping from names to float64 arrays, to the new point.
    second_moments
        ``"reset"`` or ``"keep"``.
    """
    betas = {id(p): group.get("betas") for group in optimizer.param_groups for p in group["params"]}
    states = {
        name: optimizer.state[parameter]
        for name, parameter in named.items()
        if optimizer.state.get(parameter)
    }
    done = NOTHING
    for key in _FIRST:
        present = {name: state[key] for name, state in states.items() if state.get(key) is not None}
        if not present:
            continue
        if key == "momentum_buffer":
            (carried,) = carry([{name: array(value) for name, value in present.items()}])
            for name, value in present.items():
                write(value, carried[name])
            done = FIRST_ONLY
            continue
        # Tensors may have taken different numbers of steps: unbiased means can be carried together.
        unbiased = {
            name: array(value) / _missing(betas[id(named[name])][0], states[name])
            for name, value in present.items()
        }
        (carried,) = carry([unbiased])
        for name, value in present.items():
            state, (first, second) = states[name], betas[id(named[name])]
            if second_moments == "reset":
                _set_step(state, 1)
                for other in _SECOND:
                    if state.get(other) is not None:
                        write(state[other], (1 - second) * np.square(carried[name]))
            write(value, carried[name] * _missing(first, state))
        done = RESET if second_moments == "reset" else KEPT
    return done


def _missing(beta: float, state: Mapping[str, Any]) -> float:
    """Weight that a running mean from zero has gathered, ``1 - beta^step``."""
    return 1.0 - float(beta) ** float(state["step"])


def _set_step(state: Any, step: int) -> None:
    if hasattr(state["step"], "fill_"):
        state["step"].fill_(step)
    else:
        state["step"] = step


def array(tensor: Any) -> NDArray[Any]:
    """A float64 copy of a torch tensor."""
    return np.array(tensor.detach().cpu().double().numpy())


def write(tensor: Any, values: NDArray[Any]) -> None:
    """Copy values into a torch tensor, rounding them to its dtype."""
    import torch

    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))
