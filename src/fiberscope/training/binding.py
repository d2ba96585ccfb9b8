"""From a torch model and its optimizer to named arrays and the symmetries that act on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.matching import match
from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.architecture.registry import CLASSES, architecture
from fiberscope.checkpoints.ledger import Item, Ledger, ledger
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind, Symmetry
from fiberscope.training.attention_roles import AttentionRoles, declared_ledger
from fiberscope.training.refusals import refuse_parameters, unwrapped


@dataclass(frozen=True)
class Binding:
    """What a monitor needs to know of a model.

    Attributes
    ----------
    name
        Class of the model.
    ledger
        The symmetries of its architecture under the observable.
    tensors
        Name in the architecture -> the torch parameter that the optimizer steps.
    free
        Names of the tensors that are trained.
    items, symmetries
        Exact symmetries whose tensors are all trained, and the groups themselves.
    invisible
        Dimension of the span of their tangents at generic weights.
    notes
        Sentences about what was left out.
    """

    name: str
    ledger: Ledger
    tensors: Mapping[str, Any]
    free: frozenset[str]
    items: tuple[Item, ...]
    symmetries: tuple[Symmetry, ...]
    invisible: int
    notes: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Number of trained parameters, tied ones once."""
        return sum(int(self.tensors[name].numel()) for name in self.free)

    @property
    def frozen(self) -> int:
        """Number of the others."""
        total = sum(int(tensor.numel()) for tensor in self.tensors.values())
        return total - self.parameters

    def weights(self) -> dict[str, NDArray[np.float64]]:
        """Copies of all tensors in float64."""
        return {name: to_float64(tensor) for name, tensor in self.tensors.items()}

    def gradients(self) -> dict[str, NDArray[np.float64]] | None:
        """The gradients of the trained tensors (zero where torch has none); None without any."""
        if all(self.tensors[name].grad is None for name in self.free):
            return None
        return {
            name: np.zeros(tuple(tensor.shape)) if tensor.grad is None else to_float64(tensor.grad)
            for name, tensor in self.tensors.items()
            if name in self.free
        }


def to_float64(tensor: Any) -> NDArray[np.float64]:
    """Copy a torch tensor to a contiguous float64 array."""
    import torch

    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    array = tensor.to("cpu", torch.float64, copy=True).contiguous().numpy()
    return np.asarray(array)


def bind(
    model: Any,
    optimizer: Any,
    observable: Observable,
    masters: Mapping[str, Any] | None = None,
    attention: Sequence[AttentionRoles] = (),
) -> Binding:
    """Find the architecture of a model, its tensors, and the symmetries that training can follow.

    Parameters
    ----------
    model
        A transformers model whose class has a table.
    optimizer
        The torch optimizer that steps its parameters.
    masters
        Name of a parameter -> the float32 tensor that is stepped in its place, for weights stored
        in half precision.
    attention
        Attention modules declared by roles: the model then needs no table.

    Raises
    ------
    InputError
        If there is no table, or the stored weights cannot be measured.
    """
    model = unwrapped(model)
    name = type(model).__name__
    named = dict(model.named_parameters())
    given = masters or {}
    if unknown := sorted(given.keys() - named.keys()):
        raise InputError(f"the model has no parameter {unknown[0]!r} that a master could stand for")
    stepped = {key: given.get(key, parameter) for key, parameter in named.items()}
    # Before the names: of sharded or wrapped weights they say nothing.
    refuse_parameters(model, stepped, given)
    if attention:
        shapes = {key: tuple(value.shape) for key, value in named.items()}
        return _with_symmetries(
            name, declared_ledger(name, shapes, attention, observable), stepped, optimizer
        )
    matching = match(architecture_of(model), named, f"the {name} in memory")
    if matching.architecture.head is None and observable is not Observable.HIDDEN:
        raise InputError(
            f"the {name} has no head, so there are no {observable.value} to observe; pass "
            "observable='hidden'"
        )
    found = ledger(matching.architecture, observable)
    tensors = {key: stepped[place] for key, place in matching.stored.items()}
    others = sorted(set(named) - set(matching.stored.values()))
    tensors |= {key: stepped[key] for key in others}
    return _with_symmetries(name, found, tensors, optimizer)


def architecture_of(model: Any) -> Architecture:
    """The architecture of a transformers model in memory, tied as it is there.

    Raises
    ------
    InputError
        If its class has no table, or its configuration a key that the table does not understand.
    """
    name = type(model).__name__
    config = getattr(model, "config", None)
    if name not in CLASSES or config is None or not hasattr(config, "to_json_string"):
        raise InputError(
            f"there is no table for the class {name!r}, so its symmetries are unknown; use a class "
            "of transformers that has one, or declare its attention by roles"
        )
    raw = json.loads(config.to_json_string(use_diff=True))
    raw |= {"architectures": [name], "model_type": config.model_type}
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    tied = None
    if hasattr(inputs, "weight") and hasattr(outputs, "weight"):
        tied = inputs.weight is outputs.weight
    return architecture(raw, f"the configuration of the {name} in memory", tied=tied)


def trained(tensors: Mapping[str, Any], optimizer: Any) -> frozenset[str]:
    """Names of the tensors that the optimizer steps now: it has them, and they need gradients."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return frozenset(
        key for key, tensor in tensors.items() if tensor.requires_grad and id(tensor) in stepped
    )


def bound_again(binding: Binding, optimizer: Any) -> Binding:
    """The same model where other parameters are trained than before.

    Raises
    ------
    InputError
        If the optimizer steps none of them any more.
    """
    return _with_symmetries(binding.name, binding.ledger, binding.tensors, optimizer)


def _with_symmetries(
    name: str, found: Ledger, tensors: Mapping[str, Any], optimizer: Any
) -> Binding:
    free = trained(tensors, optimizer)
    if not free:
        raise InputError(
            f"the optimizer steps no parameter of the {name}; give the optimizer of this model"
        )
    items, symmetries, stopped = [], [], 0
    for item in found.items:
        if item.kind is not Kind.EXACT or item.build is None:
            continue
        symmetry = item.build()
        if free.issuperset(symmetry.touches):
            items.append(item)
            symmetries.append(symmetry)
        else:
            stopped += 1
    notes = [
        "mechanisms are not orthogonal to each other, so their shares need not add up to the "
        "joint share"
    ]
    if stopped:
        notes.append(
            f"{stopped} symmetries touch frozen parameters and are left out; moves that combine "
            "several of them so that the frozen ones rest are not looked for"
        )
    notes += [
        f"more may be invisible than these symmetries, as a condition fails: {condition.statement}"
        for condition in found.conditions
        if not condition.holds
    ]
    return Binding(
        name,
        found,
        tensors,
        free,
        tuple(items),
        tuple(symmetries),
        _union(found, items, symmetries),
        tuple(notes),
    )


def _union(found: Ledger, items: list[Item], symmetries: list[Symmetry]) -> int:
    """Dimension of the span of some symmetries: their sum less the overlaps among them.

    Every overlap of the ledger is shared evenly by the entries of its first mechanism, each with
    an entry of the second that moves the same tensors.
    """
    total = sum(item.dimension for item in items)
    for overlap in found.overlaps:
        first, second = overlap.between
        everywhere = sum(item.mechanism == first for item in found.items)
        touched = [
            set(symmetry.touches)
            for item, symmetry in zip(items, symmetries, strict=True)
            if item.mechanism == second
        ]
        shared = sum(
            any(tensors.intersection(symmetry.touches) for tensors in touched)
            for item, symmetry in zip(items, symmetries, strict=True)
            if item.mechanism == first
        )
        total -= overlap.dimension * shared // max(everywhere, 1)
    return total
