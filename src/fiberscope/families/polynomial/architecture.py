"""Architectures of polynomial networks: widths, degrees, activation, biases, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import comb, prod

from fiberscope.errors import InputError
from fiberscope.families.polynomial.activation import Polynomial, parse_polynomial

MAX_TOTAL_DEGREE = 1 << 30
"""Total degrees from here on leave no random word-size prime above them."""

MAX_WIDTH = 1_000_000_000
"""Widest layer that is accepted."""

SUPPORT_LIMIT = 20_000
"""Up to this total degree the degrees that can occur are tracked one by one."""


class ActivationKind(Enum):
    """What is known of the activations; each member's value is the word on the command line."""

    MONOMIAL = "monomial"
    GENERIC = "generic"
    GENERIC_THROUGH_ORIGIN = "generic-through-origin"
    NAMED = "named"


@dataclass(frozen=True)
class Architecture:
    """``x -> W_L s_(L-1)(... s_1(W_1 x + b_1) ...) + b_L`` with polynomial activations ``s_l``.

    Attributes
    ----------
    widths
        ``(d_0, ..., d_L)``: inputs, hidden widths, outputs.
    degrees
        Degrees ``(r_1, ..., r_(L-1))`` of the activations of the hidden layers.
    kind
        Monomials ``z^r``; generic polynomials of degree ``r`` (with or without constant term),
        whose coefficients belong to the architecture and not to the parameters; or one named
        polynomial for all layers.
    named
        The named polynomial.
    bias
        True when every layer has a bias, the last one included.
    """

    widths: tuple[int, ...]
    degrees: tuple[int, ...]
    kind: ActivationKind = ActivationKind.MONOMIAL
    named: Polynomial | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        shown = ",".join(map(str, self.widths))
        if len(self.widths) < 2:
            raise InputError(f"widths {shown or 'none'}: give at least inputs and outputs")
        if any(width < 1 for width in self.widths):
            raise InputError(f"widths {shown}: every width must be at least 1")
        if max(self.widths) > MAX_WIDTH:
            raise InputError(f"a width is above {MAX_WIDTH}, the most that is accepted: use less")
        hidden = len(self.widths) - 2
        if len(self.degrees) != hidden:
            raise InputError(
                f"widths {shown} have {hidden} hidden layers but {len(self.degrees)} degrees are "
                "given: give one degree for each hidden layer, or a single one for all"
            )
        if any(degree < 2 for degree in self.degrees):
            raise InputError(
                f"degrees {','.join(map(str, self.degrees))}: every degree must be at least 2 "
                "(degree 1 is a linear network)"
            )
        if prod(self.degrees) >= MAX_TOTAL_DEGREE:
            raise InputError(
                f"widths {shown}: the total degree {prod(self.degrees)} is not below 2^30, "
                "so no word-size prime lies safely above it; use fewer layers or lower degrees"
            )

    @classmethod
    def build(
        cls,
        widths: Sequence[int],
        degrees: int | Sequence[int] | None = None,
        *,
        activation: str = "monomial",
        bias: bool = False,
    ) -> Architecture:
        """Build from what a user says.

        Parameters
        ----------
        degrees
            One degree for every hidden layer, or a single one for all; a named polynomial needs
            none, and must have this degree if one is given.
        activation
            ``monomial``, ``generic``, ``generic-through-origin`` or a polynomial such as
            ``z^3+z+1``.
        """
        hidden = max(len(widths) - 2, 0)
        words = {kind.value: kind for kind in ActivationKind}
        kind = words.get(activation, ActivationKind.NAMED)
        named: Polynomial | None = None
        if kind is not ActivationKind.NAMED:
            if degrees is None:
                if hidden:
                    raise InputError("no degree is given: add for instance --degree 2")
                degrees = ()
        else:
            named = parse_polynomial(activation, "the activation")
            if named.degree < 2:
                raise InputError(
                    f"the activation {activation!r} has degree {max(named.degree, 0)}: "
                    "it must be at least 2"
                )
            given = {degrees} if isinstance(degrees, int) else set(degrees or ())
            if given - {named.degree}:
                raise InputError(
                    f"the activation {activation!r} has degree {named.degree}, not "
                    f"{sorted(given - {named.degree})[0]}: leave the degree out"
                )
            degrees = named.degree
        per_layer = (degrees,) * hidden if isinstance(degrees, int) else tuple(degrees)
        if named is not None and named.is_monomial and named.coefficients[-1] == 1:
            kind, named = ActivationKind.MONOMIAL, None
        return cls(tuple(widths), per_layer, kind, named, bias)

    def __str__(self) -> str:
        shown = "(" + ",".join(map(str, self.widths)) + ")"
        degrees = set(self.degrees)
        what = str(self.named) if self.named else self.kind.value
        if self.named is None and degrees:
            what += " of degree " + (
                str(degrees.pop()) if len(degrees) == 1 else ",".join(map(str, self.degrees))
            )
        return f"{shown} {what}{', with biases' if self.bias else ''}"

    @cached_property
    def layers(self) -> int:
        """Number ``L`` of weight matrices."""
        return len(self.widths) - 1

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden widths ``(d_1, ..., d_(L-1))``."""
        return self.widths[1:-1]

    @cached_property
    def weights(self) -> int:
        """Number of weights, without biases."""
        return sum(a * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    @cached_property
    def parameters(self) -> int:
        """Number of parameters: weights and biases."""
        return self.weights + (sum(self.widths[1:]) if self.bias else 0)

    @property
    def scales(self) -> bool:
        """True when every hidden neuron can be rescaled: one continuous direction each.

        Monomials, and with biases also ``a (z - c)^r + b``; a generic polynomial of degree two
        with biases is of that form (complete the square).
        """
        return all(self.layer_scales(layer) for layer in range(1, self.layers))

    def layer_scales(self, layer: int) -> bool:
        """True when the neurons of one hidden layer can be rescaled."""
        if self.kind is ActivationKind.MONOMIAL:
            return True
        if self.named is not None and self.named.is_monomial:
            return True
        if not self.bias:
            return False
        if self.named is not None:
            return self.named.is_shifted_monomial
        return self.degrees[layer - 1] == 2

    @property
    def symmetry_dimension(self) -> int:
        """Dimension of the group of neuron rescalings."""
        return sum(
            self.widths[layer] for layer in range(1, self.layers) if self.layer_scales(layer)
        )

    @property
    def effective(self) -> int:
        """Parameters minus neuron rescalings: the best possible dimension."""
        return self.parameters - self.symmetry_dimension

    @cached_property
    def total_degree(self) -> int:
        """Degree of the network as a polynomial in its inputs."""
        return prod(self.degrees)

    def layer_exponents(self, layer: int) -> frozenset[int] | None:
        """Exponents of the activation of a hidden layer."""
        degree = self.degrees[layer - 1]
        if self.named is not None:
            return self.named.exponents
        if self.kind is ActivationKind.MONOMIAL:
            return frozenset({degree})
        first = 1 if self.kind is ActivationKind.GENERIC_THROUGH_ORIGIN else 0
        return frozenset(range(first, degree + 1))

    @cached_property
    def support(self) -> tuple[int, ...] | None:
        """Degrees in the inputs that an output can contain, or None when all up to the total.

        Sums of ``e`` degrees of the layer before, for every exponent ``e`` of the activation;
        kept as a bit set. Degrees are tracked one by one up to :data:`SUPPORT_LIMIT`.
        """
        if self.total_degree > SUPPORT_LIMIT:
            return None
        bits = 0b10 | self.bias
        for layer in range(1, self.layers):
            exponents = self.layer_exponents(layer) or frozenset()
            result, power = 0, 1
            for exponent in range(max(exponents) + 1):
                if exponent in exponents:
                    result |= power
                power = _sum_set(power, bits)
            bits = result | self.bias
        return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)

    @cached_property
    def homogeneous(self) -> bool:
        """True when the network is homogeneous in its inputs (monomials without biases)."""
        monomial = self.kind is ActivationKind.MONOMIAL or (
            self.named is not None and self.named.is_monomial
        )
        return monomial and not self.bias

    @cached_property
    def ambient_per_output(self) -> int:
        """Number of monomials that one output can contain."""
        inputs = self.widths[0]
        if self.homogeneous:
            return comb(inputs + self.total_degree - 1, self.total_degree)
        if self.support is None:
            full = comb(inputs + self.total_degree, inputs)
            origin = self.kind is ActivationKind.GENERIC_THROUGH_ORIGIN and not self.bias
            return full - origin
        return sum(comb(inputs + degree - 1, degree) for degree in self.support)

    @property
    def ambient(self) -> int:
        """Dimension of the space of all polynomial maps of this shape."""
        return self.widths[-1] * self.ambient_per_output

    @property
    def expected(self) -> int:
        """``min(effective, ambient)``: the dimension unless something special happens."""
        return min(self.effective, self.ambient)

    def part(self, start: int, stop: int) -> Architecture:
        """The network of the layers from width ``start`` to width ``stop``."""
        return Architecture(
            self.widths[start : stop + 1],
            self.degrees[start : stop - 1],
            self.kind,
            self.named,
            self.bias,
        )


def _sum_set(first: int, second: int) -> int:
    """Bit set of all sums of an element of each."""
    if first.bit_count() < second.bit_count():
        first, second = second, first
    result = 0
    while second:
        lowest = second & -second
        result |= first << (lowest.bit_length() - 1)
        second ^= lowest
    return result
