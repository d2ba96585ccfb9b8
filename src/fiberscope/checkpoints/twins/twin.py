"""A twin: a toy model of a published class whose Jacobian counts the undetermined parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.twins.architectures import (
    ARCHITECTURES,
    class_name_of,
    first_position,
    model_type_of,
)
from fiberscope.checkpoints.twins.bank import input_bank
from fiberscope.checkpoints.twins.model import (
    build_model,
    draw_parameters,
    load_parameters,
    set_epsilon,
)
from fiberscope.checkpoints.twins.observe import is_generic, observation_module
from fiberscope.checkpoints.twins.precision import float64_evaluation
from fiberscope.errors import InputError

DEFAULT_LENGTH = 5
LARGEST_LENGTH = 64
# Equations per parameter, and occurrences of each token, that the default bank has at least.
_OVERSAMPLING = 1.6
_OCCURRENCES = 4
# Outputs differentiated at once: one reverse pass with this many cotangents.
_COTANGENTS = 256
_DRAWS = 200


class Twin:
    """A toy model of a published class, at random parameters, observed on a bank of inputs.

    Attributes
    ----------
    config : dict
        The configuration used: as given, with the position table as long as the sequences.
    observable : {"logits", "probabilities", "hidden"}
        What `observe` returns; probabilities as their logarithms (the same information).
    parameters : dict of str to ndarray of float64
        The stored tensors by state-dict name, tied ones once, under the first of their names.
    bank : dict of str to ndarray
        The inputs by argument name; the first axis counts sequences.
    length : int
        Tokens per sequence.
    """

    def __init__(
        self,
        config: dict[str, object],
        observable: str,
        model: Any,
        parameters: dict[str, NDArray[np.float64]],
        bank: dict[str, NDArray[Any]],
        length: int,
    ) -> None:
        self.config = config
        self.observable = observable
        self.parameters = parameters
        self.bank = bank
        self.length = length
        self._module = observation_module(model, observable)
        load_parameters(model, parameters)

    @property
    def parameter_count(self) -> int:
        """Number of stored parameters, tied ones once."""
        return sum(value.size for value in self.parameters.values())

    @property
    def sequences(self) -> int:
        """Number of input sequences (images) in the bank."""
        return len(next(iter(self.bank.values())))

    def observe(self, parameters: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Outputs on the whole bank at these parameters, flattened (sequence, position, output).

        Raises
        ------
        InputError
            If a tensor is missing, unknown, or of another shape.
        """
        import torch

        self._check(parameters)
        tensors = {
            f"model.{name}": torch.from_numpy(np.array(value, dtype=np.float64))
            for name, value in parameters.items()
        }
        with torch.no_grad(), float64_evaluation():
            outputs = torch.func.functional_call(
                self._module, tensors, (self._inputs(slice(None)),)
            )
        values: NDArray[np.float64] = outputs.numpy().reshape(-1)
        return values

    def jacobian(
        self, parameters: Mapping[str, NDArray[np.float64]] | None = None
    ) -> tuple[NDArray[np.float64], list[tuple[str, slice]]]:
        """Derivative of `observe`, by reverse mode.

        Parameters
        ----------
        parameters : mapping of str to ndarray of float64, optional
            Where to differentiate; by default at the twin's own `parameters`.

        Returns
        -------
        jacobian : ndarray of float64, shape (observations, parameters)
        columns : list of (tensor name, slice)
            Which columns belong to which tensor, flattened in row-major order.
        """
        import torch

        point = self.parameters if parameters is None else parameters
        self._check(point)
        tensors = [
            torch.tensor(np.asarray(point[name], dtype=np.float64), requires_grad=True)
            for name in self.parameters
        ]
        named = {f"model.{name}": t for name, t in zip(self.parameters, tensors, strict=True)}
        columns: list[tuple[str, slice]] = []
        start = 0
        for name, value in self.parameters.items():
            columns.append((name, slice(start, start + value.size)))
            start += value.size
        blocks: list[NDArray[np.float64]] = []
        first, group = 0, 1
        while first < self.sequences:
            chosen = slice(first, first + group)
            with torch.enable_grad(), float64_evaluation():
                outputs = torch.func.functional_call(
                    self._module, named, (self._inputs(chosen),)
                ).reshape(-1)
            gradients = torch.autograd.grad(
                outputs,
                tensors,
                torch.eye(outputs.numel(), dtype=torch.float64),
                is_grads_batched=True,
                allow_unused=True,
            )
            block = np.zeros((outputs.numel(), self.parameter_count))
            for (_, where), gradient in zip(columns, gradients, strict=True):
                if gradient is not None:  # None: the observed function never reads the tensor
                    block[:, where] = gradient.reshape(outputs.numel(), -1).numpy()
            blocks.append(block)
            first += group
            # All later groups have the size that fills a reverse pass.
            group = max(1, _COTANGENTS * group // outputs.numel()) if len(blocks) == 1 else group
        return np.concatenate(blocks), columns

    def _inputs(self, chosen: slice) -> dict[str, Any]:
        import torch

        return {name: torch.from_numpy(value[chosen]) for name, value in self.bank.items()}

    def _check(self, parameters: Mapping[str, NDArray[np.float64]]) -> None:
        if parameters.keys() != self.parameters.keys():
            odd = sorted(parameters.keys() ^ self.parameters.keys())
            raise InputError(
                f"Tensor {odd[0]!r} is missing or unknown: pass exactly the twin's tensors."
            )
        for name, value in self.parameters.items():
            if np.shape(parameters[name]) != value.shape:
                raise InputError(
                    f"Tensor {name!r} has shape {np.shape(parameters[name])}: "
                    f"the twin's has shape {value.shape}."
                )


def build_twin(
    config: Mapping[str, object],
    observable: str,
    seed: int,
    *,
    epsilon: float | None = None,
    inputs: int | None = None,
    length: int | None = None,
) -> Twin:
    """Build a twin of a toy configuration.

    Parameters
    ----------
    config : mapping
        Raw configuration of a toy model (see `toy_config`); ``architectures[0]`` is the class.
    observable : {"logits", "probabilities", "hidden"}
        What is observed.
    seed : int
        Seed of the parameters and of the inputs.
    epsilon : float, optional
        Epsilon of every norm (0 is allowed); by default the configuration's.
    inputs : int, optional
        Number of input sequences; by default enough for 1.6 equations per parameter (a token
        gives at most as many as the model is wide) and four occurrences of each token.
    length : int, optional
        Tokens per sequence. A learned position table is made exactly this long; by default its
        length, or 5 without one. T5 reads an encoder sequence one longer. Ignored for images.

    Raises
    ------
    InputError
        If the class has no twins, rejects the configuration, lacks the observable, or is too large.
    """
    import torch

    raw, length = _with_length(config, length)
    class_name = class_name_of(raw)
    model = build_model(raw)
    count = sum(parameter.numel() for parameter in model.parameters())
    if epsilon is not None:
        set_epsilon(model, epsilon)
    module = observation_module(model, observable)
    # Separate streams: the same seed gives the same parameters whatever the size of the bank.
    parameter_stream, input_stream = np.random.default_rng(seed).spawn(2)

    probe = input_bank(model, class_name, input_stream, 1, length)
    with torch.no_grad(), float64_evaluation():
        outputs = module({name: torch.from_numpy(value) for name, value in probe.items()})
    if inputs is None:
        # However many outputs a token has, they depend on it through the width of the stream only.
        width = getattr(model.config, "hidden_size", outputs.shape[-1])
        equations = outputs.numel() // outputs.shape[-1] * min(outputs.shape[-1], width)
        inputs = math.ceil(_OVERSAMPLING * count / equations)
        if "input_ids" in probe:
            inputs = max(inputs, math.ceil(_OCCURRENCES * model.config.vocab_size / length))
    elif inputs < 1:
        raise InputError(f"A twin cannot be observed on {inputs} inputs: use at least one.")
    bank = input_bank(model, class_name, input_stream, inputs, length)
    tensors = {name: torch.from_numpy(value) for name, value in bank.items()}

    for _ in range(_DRAWS):
        parameters = draw_parameters(model, parameter_stream)
        load_parameters(model, parameters)
        if is_generic(module, tensors):
            return Twin(raw, observable, model, parameters, bank, length)
    raise InputError(
        f"No draw in {_DRAWS} gives finite outputs and switches every ReLU neuron of this "
        "configuration both on and off: use fewer neurons, another seed, or a positive epsilon."
    )


def _with_length(config: Mapping[str, object], length: int | None) -> tuple[dict[str, object], int]:
    """The configuration with its position table as long as the sequences, and that length."""
    raw = copy.deepcopy(dict(config))
    names = ARCHITECTURES[model_type_of(raw)]
    if length is None and names.positions is not None and names.positions in raw:
        rows = raw[names.positions]
        if isinstance(rows, int):
            length = rows - first_position(raw)
    length = DEFAULT_LENGTH if length is None else length
    if not 1 <= length <= LARGEST_LENGTH:
        raise InputError(
            f"A twin cannot be observed on sequences of {length} tokens: "
            f"choose a length from 1 to {LARGEST_LENGTH}, or shrink with toy_config."
        )
    if names.positions is not None:
        raw[names.positions] = length + first_position(raw)
    return raw, length
