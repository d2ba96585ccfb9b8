"""The family of polynomial networks: parameters to values at inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.polynomial.activation import Polynomial
from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.families.polynomial.bounds import upper_bound
from fiberscope.families.polynomial.jacobian_rank import rank_modulo
from fiberscope.families.polynomial.moves import QuadricRotation, ShiftedPowerScaling
from fiberscope.family import Comparison, Design, Family, HasCanonicalForm, HasComparison
from fiberscope.numbers import FLOAT64, Array, NumberSystem
from fiberscope.parameters import Parameters, ParameterSpace, View
from fiberscope.symmetry import Permutation, ScaledSlot, Scaling, SignFlip, Slot, Symmetry

COEFFICIENT_STEPS = 16
"""Generic coefficients are drawn as multiples of 1/16, so that they are exact everywhere."""


@dataclass(frozen=True)
class PointDesign(Design):
    """Inputs at which the outputs are observed, shape ``(size, d_0)``.

    Comparison looks at all inputs; ``seed`` draws the ones it tries.
    """

    inputs: NDArray[np.float64]
    seed: int = 0


class PolynomialNetwork(Family, HasCanonicalForm, HasComparison):
    """``theta -> (f_theta(x_1), ..., f_theta(x_n))``, inputs slowest.

    Parameters ``W1, ..., WL`` of shapes ``(d_l, d_(l-1))`` and, with biases, ``b1, ..., bL``.

    Parameters
    ----------
    architecture
        Widths, degrees, kind of activation, biases.
    seed
        Draws the coefficients of generic activations, which belong to the family.
    """

    number_systems = frozenset({"float64", "prime field", "balls"})

    def __init__(self, architecture: Architecture, seed: int = 0) -> None:
        self.architecture = architecture
        self.name = f"polynomial network {architecture}"
        self.activations = draw_activations(architecture, np.random.default_rng(seed))
        self.space = ParameterSpace(parameter_shapes(architecture))

    @cached_property
    def complete(self) -> bool:  # type: ignore[override]
        """True where a certified rank proves that the symmetries explain all of the nullity."""
        moves = self.architecture.symmetry_dimension
        if self.rotates:
            before, last = self.architecture.widths[-3:-1]
            turned = min(last, before + self.architecture.bias)
            moves += last * (last - 1) // 2 - (last - turned) * (last - turned - 1) // 2
            if last > turned:
                return False
        trial = rank_modulo(
            self.architecture,
            min(upper_bound(self.architecture).value, self.space.size - moves),
            np.random.default_rng(0),
        )
        return trial.rank == self.space.size - moves

    @property
    def rotates(self) -> bool:
        """True when the last hidden layer is seen only through a quadratic form."""
        return (
            self.architecture.layers >= 2
            and self.architecture.widths[-1] == 1
            and self.architecture.widths[-2] >= 2
            and self.activations[-1].exponents == {2}
        )

    def generic(self, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Normal weights of variance one over the fan-in, and normal biases of size one half."""
        point = {}
        for name, shape in self.space.shapes.items():
            scale = 0.5 if name.startswith("b") else shape[1] ** -0.5
            point[name] = scale * rng.standard_normal(shape)
        return point

    def exceptional(self, rng: np.random.Generator) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Points with an inactive, a redundant and a collinear neuron, where there is a layer."""
        points = {}
        if self.architecture.layers >= 2:
            points["inactive neuron"] = self.generic(rng)
            points["inactive neuron"]["W2"][:, 0] = 0.0
            points["zero row"] = self.generic(rng)
            points["zero row"]["W1"][0] = 0.0
            if self.architecture.widths[1] >= 2:
                for label, factor in (("redundant neuron", 1.0), ("collinear neuron", -0.5)):
                    points[label] = self.generic(rng)
                    points[label]["W1"][0] = factor * points[label]["W1"][1]
                    if self.architecture.bias:
                        points[label]["b1"][0] = factor * points[label]["b1"][1]
        return points

    def design(self, size: int, rng: np.random.Generator) -> PointDesign:
        """Standard normal inputs."""
        return PointDesign(size, rng.standard_normal((size, self.architecture.widths[0])))

    @property
    def sufficient_size(self) -> int:
        """The proved upper bound: every input raises the rank until it stays for good."""
        return upper_bound(self.architecture).value

    def observe(
        self, parameters: Mapping[str, Array], design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """Values at the inputs, flattened, in any number system."""
        assert isinstance(design, PointDesign)
        values = self.values(parameters, system.array(design.inputs), system)
        return values.reshape(design.size * self.architecture.widths[-1])

    def values(
        self, parameters: Mapping[str, Array], inputs: Array, system: NumberSystem = FLOAT64
    ) -> Array:
        """Outputs of shape ``(inputs, d_L)`` for inputs of shape ``(inputs, d_0)``."""
        stream = inputs
        for layer in range(1, self.architecture.layers + 1):
            stream = stream @ parameters[f"W{layer}"].swapaxes(0, 1)
            if self.architecture.bias:
                stream = stream + parameters[f"b{layer}"]
            if layer < self.architecture.layers:
                stream = evaluate(self.activations[layer - 1], stream, system)
        return stream

    def canonical(self, parameters: Parameters, design: Design) -> dict[str, NDArray[np.float64]]:
        """Canonical form in the shapes of the family (exact weights stay exact)."""
        from fiberscope.families.polynomial.canonical import canonical_form

        return canonical_form(self, parameters).parameters

    def compare(self, first: Parameters, second: Parameters, design: Design) -> Comparison:
        """Compare the functions, then the weights (over all inputs, not the design's)."""
        from fiberscope.families.polynomial.comparison import compare_networks
        from fiberscope.families.polynomial.weights import WeightedNetwork

        one, two = (
            WeightedNetwork(
                self,
                {name: np.asarray(value) for name, value in point.items()},
                np.asarray(point["W1"]).dtype == object,
            )
            for point in (first, second)
        )
        assert isinstance(design, PointDesign)
        return compare_networks(one, two, design.seed)

    def symmetries(self, design: Design | None = None) -> Sequence[Symmetry]:
        """Permutations and, by activation, rescalings, sign flips and last-layer rotations."""
        moves: list[Symmetry] = []
        views = {name: View.whole(name, shape) for name, shape in self.space.shapes.items()}
        for layer in range(1, self.architecture.layers):
            rows, columns = views[f"W{layer}"], views[f"W{layer + 1}"]
            biases = views.get(f"b{layer}")
            size = self.architecture.widths[layer]
            incoming = [Slot(rows, 0)] + ([Slot(biases, 0)] if biases else [])
            if size > 1:
                moves.append(
                    Permutation(
                        f"neuron permutations of layer {layer}", size, [*incoming, Slot(columns, 1)]
                    )
                )
            sigma = self.activations[layer - 1]
            scaled = [ScaledSlot(slot.view, 0) for slot in incoming]
            name = f"neuron rescalings of layer {layer}"
            if sigma.is_monomial:
                outgoing = ScaledSlot(columns, 1, power=-sigma.degree)
                moves.append(Scaling(name, size, [*scaled, outgoing]))
            elif biases and sigma.is_shifted_monomial:
                moves.append(
                    ShiftedPowerScaling(
                        name,
                        rows,
                        biases,
                        columns,
                        views[f"b{layer + 1}"],
                        degree=sigma.degree,
                        centre=sigma.centre,
                        constant=shifted_constant(sigma),
                    )
                )
            elif sigma.parity:
                flips = scaled if sigma.parity > 0 else [*scaled, ScaledSlot(columns, 1)]
                moves.append(SignFlip(f"neuron signs of layer {layer}", size, flips))
        if self.rotates:
            last = self.architecture.layers
            moves.append(
                QuadricRotation(
                    f"rotations of layer {last - 1}",
                    views[f"W{last - 1}"],
                    views[f"W{last}"],
                    views.get(f"b{last - 1}"),
                )
            )
        return tuple(moves)


def parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters, layer by layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(1, architecture.layers + 1):
        shapes[f"W{layer}"] = (architecture.widths[layer], architecture.widths[layer - 1])
        if architecture.bias:
            shapes[f"b{layer}"] = (architecture.widths[layer],)
    return shapes


def draw_activations(
    architecture: Architecture, rng: np.random.Generator
) -> tuple[Polynomial, ...]:
    """Activation of every hidden layer; generic coefficients are drawn, none of them zero."""
    drawn = []
    for degree in architecture.degrees:
        if architecture.named is not None:
            drawn.append(architecture.named)
        elif architecture.kind is ActivationKind.MONOMIAL:
            drawn.append(Polynomial.monomial(degree))
        else:
            sizes = rng.integers(1, COEFFICIENT_STEPS + 1, degree + 1)
            signs = rng.choice([-1, 1], degree + 1)
            values = [
                Fraction(int(size * sign), COEFFICIENT_STEPS)
                for size, sign in zip(sizes, signs, strict=True)
            ]
            if architecture.kind is ActivationKind.GENERIC_THROUGH_ORIGIN:
                values[0] = Fraction(0)
            drawn.append(Polynomial.of(values))
    return tuple(drawn)


def shifted_constant(sigma: Polynomial) -> Fraction:
    """``e`` of an activation ``a (z - c)^r + e``."""
    moved = sigma(Polynomial.of([sigma.centre, 1]))
    return moved.coefficients[0]


def evaluate(sigma: Polynomial, stream: Array, system: NumberSystem = FLOAT64) -> Array:
    """Activation of every entry: repeated squaring for monomials, else Horner's rule."""
    if sigma.is_monomial:
        result, square, exponent = None, stream, sigma.degree
        while exponent:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            if exponent:
                square = square * square
        if sigma.coefficients[-1] != 1:
            result = result * system.array(sigma.coefficients[-1])
        return result
    result = stream * system.array(sigma.coefficients[-1])
    for coefficient in sigma.coefficients[-2:0:-1]:
        if coefficient:
            result = result + system.array(coefficient)
        result = result * stream
    if sigma.coefficients[0]:
        result = result + system.array(sigma.coefficients[0])
    return result
