"""Deep attention as a family: parameters to outputs on a bank of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import (
    Architecture,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.ball_jacobian import ball_jacobian
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.symmetries import deep_attention_symmetries
from fiberscope.families.deep_attention.tangents import kernel_tangents
from fiberscope.family import Design, Family
from fiberscope.numbers import FLOAT64, Array, NumberSystem
from fiberscope.numbers.balls import Balls
from fiberscope.numbers.fields import RationalField, RealField
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Symmetry


@dataclass(frozen=True)
class InputBank(Design):
    """Inputs on which the network is observed.

    Attributes
    ----------
    inputs
        Token rows, float64, shape ``(size, tokens, d_0)``.
    """

    inputs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))

    @classmethod
    def of(cls, inputs: Any) -> InputBank:
        """Bank of an array of shape ``(inputs, tokens, width)``."""
        array = np.asarray(inputs, dtype=np.float64)
        if array.ndim != 3:
            raise InputError(
                f"an input bank has shape (inputs, tokens, width), but {array.shape} is given"
            )
        return cls(size=array.shape[0], inputs=array)


class DeepAttention(Family):
    """Serial stack of (normalized or lightning) attention layers, in native parameters.

    The observation is all output tokens on the bank's inputs; see :class:`Architecture` for the
    layer and :meth:`Architecture.space` for names and shapes.

    Parameters
    ----------
    architecture
        Built by :func:`deep_attention_architecture`; :meth:`build` does both.
    """

    number_systems = frozenset({"float64", "balls"})

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.space = architecture.space
        self.name = f"deep attention ({architecture.describe()})"
        self.complete = (
            architecture.plain and architecture.trainable_values and not architecture.mean_only
        )

    @classmethod
    def build(
        cls,
        *,
        widths: Sequence[int],
        ranks: int | Sequence[int],
        tokens: int,
        normalizers: str | Normalizer | Sequence[str | Normalizer] | None = "softmax",
        **wiring: Any,
    ) -> DeepAttention:
        """Build the family from the arguments of :func:`deep_attention_architecture`."""
        return cls(
            deep_attention_architecture(
                widths=widths, ranks=ranks, tokens=tokens, normalizers=normalizers, **wiring
            )
        )

    def generic(self, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Normal entries of variance one over the width they read."""
        drawn = {}
        for name, shape in self.space.shapes.items():
            fan_in = shape[2] if name.startswith("V") else shape[1]
            drawn[name] = rng.standard_normal(shape) / np.sqrt(fan_in)
        return drawn

    def exceptional(self, rng: np.random.Generator) -> Mapping[str, dict[str, NDArray[np.float64]]]:
        """A collapsed first layer (normalized networks), and a zero value in the last one."""
        points = {}
        if self.architecture.normalized and not self.architecture.layer_norm:
            collapsed = self.generic(rng)
            collapsed["Q1"] = np.zeros_like(collapsed["Q1"])
            points["first score zero"] = collapsed
        if self.architecture.trainable_values:
            silent = self.generic(rng)
            last = f"V{self.architecture.depth}"
            silent[last] = np.zeros_like(silent[last])
            points["last value zero"] = silent
        return points

    def design(self, size: int, rng: np.random.Generator) -> InputBank:
        """Inputs with standard normal entries."""
        shape = (size, self.architecture.tokens, self.architecture.widths[0])
        return InputBank.of(rng.standard_normal(shape))

    @property
    def sufficient_size(self) -> int:
        """Parameters over the outputs of one token, rounded up, plus two."""
        return 2 + -(-self.space.size // self.architecture.widths[-1])

    def observe(
        self, parameters: Mapping[str, Array], design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """All output tokens, flattened in the order input, token, coordinate."""
        bank = self.bank(design)
        outputs = forward(self.architecture, parameters, system.array(bank.inputs), system)
        return outputs.reshape(-1)

    def bank(self, design: Design) -> InputBank:
        """Check that a design is an input bank of the right shape."""
        if not isinstance(design, InputBank):
            raise InputError(f"deep attention is observed on an InputBank, not {design!r}")
        wanted = (self.architecture.tokens, self.architecture.widths[0])
        if design.inputs.shape[1:] != wanted:
            raise InputError(
                f"the bank holds inputs of shape {design.inputs.shape[1:]} (tokens, width), but "
                f"the network takes {wanted}"
            )
        return design

    def symmetries(self, design: Design) -> Sequence[Symmetry]:
        """The symmetries of :func:`deep_attention_symmetries`."""
        return deep_attention_symmetries(self.architecture)

    def jacobian(
        self, parameters: Parameters, design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """Jacobian of the observation; a closed form in balls, dual numbers elsewhere."""
        if isinstance(system, Balls):
            point = {name: system.array(value) for name, value in parameters.items()}
            inputs = system.array(self.bank(design).inputs)
            return system.from_matrix(ball_jacobian(self.architecture, point, inputs, system))
        return super().jacobian(parameters, design, system)

    def exact_kernel(self, parameters: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Rows of exact kernel directions at a rational point, as fractions."""
        point = {}
        for name, value in parameters.items():
            flat = np.empty(np.size(value), dtype=object)
            flat[:] = [Fraction(entry) for entry in np.asarray(value).reshape(-1).tolist()]
            point[name] = flat.reshape(np.shape(value))
        return kernel_tangents(self.architecture, point, RationalField()).union

    def kernel(self, parameters: Parameters) -> dict[str, NDArray[np.float64]]:
        """Exact kernel directions at a float64 point, by kind; see :func:`kernel_tangents`."""
        point = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
        return dict(kernel_tangents(self.architecture, point, RealField()).kinds)
