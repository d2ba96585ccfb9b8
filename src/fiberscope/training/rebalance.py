"""Move a torch model in training to the point of smallest norm on its fiber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.forward import Deviation, deviation_of, probe_inputs
from fiberscope.errors import InputError
from fiberscope.parameters import View
from fiberscope.training.balance import Balanced, MechanismBalance, balanced
from fiberscope.training.binding import architecture_of
from fiberscope.training.optimizer_state import (
    Arrays,
    SecondMoments,
    array,
    carry_state,
    check_optimizer,
    write,
)
from fiberscope.training.refusals import inner_optimizer, unwrapped
from fiberscope.verdict import Evidence, Status, to_plain

_LARGEST_DEVIATION = 1e-8
"""Relative deviation above which a model is not touched: rounding does not explain as much."""
_PROBE_LENGTH = 16


@dataclass(frozen=True)
class Rebalanced:
    """What `rebalance_` did.

    Attributes
    ----------
    model
        Name of the class.
    mechanisms
        Imbalance and norm before and after, one entry a layer and mechanism, in exact weights.
    norm_before, norm_after
        Euclidean norm of all parameters.
    distance
        Euclidean distance that the parameters moved.
    moved
        How far the outputs on random inputs deviate after the move, before it is stored: evaluated
        in float64 from the weights.
    stored
        The same after rounding the moved weights to the model's number format.
    optimizer
        What was done with the optimizer's state, in a sentence.
    notes
        What was left alone, cut, or did not settle.
    """

    model: str
    mechanisms: tuple[MechanismBalance, ...]
    norm_before: float
    norm_after: float
    distance: float
    moved: Deviation
    stored: Deviation
    optimizer: str
    notes: tuple[str, ...]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Why the function is believed to be the same."""
        return (
            Evidence(
                "every move is an element of an exact symmetry of the architecture",
                Status.THEOREM,
                "the rules of the ledger",
            ),
            Evidence(
                "the outputs on random inputs are the same to rounding",
                Status.NUMERICAL,
                statistics={"before storing": self.moved.relative, "stored": self.stored.relative},
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**to_plain(self), "evidence": to_plain(self.evidence)}

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        """A table for the terminal."""
        lines = [
            f"{self.model} rebalanced: norm {self.norm_before:.6g} -> {self.norm_after:.6g}, "
            f"moved by {self.distance:.3g}",
            f"{'where':<33} {'mechanism':<26} {'imbalance':>19} {'norm':>19}",
        ]
        for entry in self.mechanisms:
            lines.append(
                f"{entry.where:<33.33} {entry.mechanism:<26.26} "
                f"{entry.imbalance_before:>8.2g} -> {entry.imbalance_after:>7.1g} "
                f"{entry.norm_before:>8.4g} -> {entry.norm_after:>7.4g}"
            )
        lines.append(
            f"outputs on random inputs: relative deviation {self.moved.relative:.1e} in exact "
            f"weights, {self.stored.relative:.1e} as stored"
        )
        lines += [self.optimizer, *self.notes]
        return "\n".join(lines)


def rebalance_(
    model: Any,
    optimizer: Any = None,
    *,
    second_moments: SecondMoments = "keep",
    cut: bool = False,
    seed: int = 0,
    sequences: int = 4,
) -> Rebalanced:
    """Move a model, in place, to the smallest norm that its function allows, and the nearest such.

    Queries against keys, values against outputs, up against down, ReLU neurons and biases that
    cancel move along their exact symmetries; norm gains and rotations of the residual stream are
    left alone. The function is the same to rounding. Gradients and the optimizer's first moments
    are carried along as covectors.

    Parameters
    ----------
    model : torch.nn.Module
        A model of a ``transformers`` class that has a table, with float32 or float64 weights.
    optimizer : torch.optim.SGD, Adam or AdamW, optional
        The optimizer in use.
    second_moments : {"keep", "reset"}
        Second moments have no exact image. ``"keep"``: they stay as they are, which is an
        approximation. ``"reset"``: the state of every moved tensor becomes what one step with the
        bias-corrected first moment as its gradient leaves.
    cut
        Heads of less than full rank (freshly zero-initialised outputs) and neurons with a factor
        of zero have no smallest point on their orbit. False leaves them as they are, and the notes
        say so; True goes to the smallest point of its closure, where both factors of their dead
        rows are zero and receive no gradient any more.
    seed, sequences
        Of the random inputs on which the outputs are compared.

    Raises
    ------
    InputError
        If the class has no table or its parameters are not those of the table, are stored in half
        precision, sharded or offloaded; or the optimizer is of another kind. The model is then as
        it was.
    """
    if second_moments not in ("reset", "keep"):
        raise InputError(f"second_moments is {second_moments!r}: use 'reset' or 'keep'")
    laid_out, named = described(model)
    if optimizer is not None:
        optimizer = inner_optimizer(optimizer)
        check_optimizer(optimizer, named)
    before = {name: p.detach().cpu().numpy() for name, p in named.items()}
    for name, value in before.items():
        if not np.isfinite(value).all():
            raise InputError(f"{name} is not finite: repair the model before rebalancing it")
    frozen = frozenset(name for name, p in named.items() if not p.requires_grad)
    found = balanced(laid_out, before, fixed=frozen, cut=cut)
    rounded = dict(before)
    for name in found.touched:
        rounded[name] = found.parameters[name].astype(before[name].dtype)
    moved, stored = _deviations(laid_out, before, (found.parameters, rounded), seed, sequences)
    if not moved.relative <= _LARGEST_DEVIATION:
        raise InputError(
            f"the outputs would change by {moved.relative:.1e} of their size, more than rounding "
            "explains: the weights are too ill-conditioned to be rebalanced, and are left as "
            "they were"
        )

    def carry(covectors: Sequence[Arrays]) -> Sequence[Arrays]:
        return found.carry_covectors(covectors, before)

    touched = {name: named[name] for name in found.touched}
    gradients = {name: array(p.grad) for name, p in touched.items() if p.grad is not None}
    if gradients:
        (carried,) = carry([gradients])
        for name in gradients:
            write(touched[name].grad, carried[name])
    said = "no optimizer was given"
    if optimizer is not None:
        said = carry_state(optimizer, touched, carry, second_moments) + _elsewhere(
            optimizer, touched
        )
    for name, parameter in touched.items():
        write(parameter, rounded[name])
    return _result(laid_out, found, moved, stored, said)


def _elsewhere(optimizer: Any, touched: Arrays) -> str:
    """A remark on moved parameters that this optimizer does not step."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    others = [name for name, parameter in touched.items() if id(parameter) not in stepped]
    if not others:
        return ""
    return (
        f"; {len(others)} moved tensors (such as {others[0]}) are not this optimizer's: what "
        "another one remembers of them was not carried along, so start that one anew"
    )


def described(model: Any) -> tuple[Architecture, dict[str, Any]]:
    """The architecture of a torch model and its parameters by the table's names, tied ones once.

    Raises
    ------
    InputError
        See `rebalance_`.
    """
    model = unwrapped(model)
    laid_out, name = architecture_of(model), type(model).__name__
    named = dict(model.named_parameters())
    if odd := sorted(named.keys() ^ laid_out.tensors.keys()):
        raise InputError(
            f"{odd[0]} is {'unknown to' if odd[0] in named else 'missing beside'} the table of "
            f"{name}: pass the model without adapters, wrappers or sharding"
        )
    for label, parameter in named.items():
        _refuse(label, parameter, laid_out.tensors[label])
    return laid_out, named


def _refuse(label: str, parameter: Any, shape: tuple[int, ...]) -> None:
    """Refuse a parameter that cannot be moved here, with one sentence."""
    import torch

    if type(parameter.data).__name__ == "DTensor" or hasattr(parameter, "ds_id"):
        raise InputError(f"{label} is sharded: gather the parameters before rebalancing them")
    if parameter.device.type == "meta":
        raise InputError(f"{label} is offloaded: load the parameters before rebalancing them")
    if parameter.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{label} is stored as {str(parameter.dtype).removeprefix('torch.')}, whose rounding "
            "would change the function: rebalance the float32 master weights"
        )
    if tuple(parameter.shape) != shape:
        raise InputError(
            f"{label} has shape {tuple(parameter.shape)}, but its configuration says {shape}: "
            "pass the model without sharding"
        )


def _deviations(
    laid_out: Architecture,
    before: Arrays,
    after: Sequence[Arrays],
    seed: int,
    sequences: int,
) -> list[Deviation]:
    """Outputs after against outputs before, on random inputs, in float64."""
    length = min(_PROBE_LENGTH, laid_out.longest_input or _PROBE_LENGTH)
    probe = probe_inputs(laid_out, seed, sequences, length, vocabulary_rows=512)

    def reading(arrays: Arrays) -> Any:
        def read(view: View) -> NDArray[Any]:
            return view.read(arrays)

        return read

    observable = laid_out.default_observable
    return [
        deviation_of(laid_out, reading(before), reading(arrays), probe, observable)
        for arrays in after
    ]


def _result(
    laid_out: Architecture, found: Balanced, moved: Deviation, stored: Deviation, said: str
) -> Rebalanced:
    return Rebalanced(
        laid_out.name,
        found.mechanisms,
        found.norm_before,
        found.norm_after,
        found.distance,
        moved,
        stored,
        said,
        found.notes,
    )
