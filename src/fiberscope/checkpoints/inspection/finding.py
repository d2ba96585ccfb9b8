"""What is exceptional about given weights, and what training left in dead directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Exceptional:
    """A place where these weights differ from generic ones.

    Attributes
    ----------
    kind
        What it is, in words.
    where
        Where, in words.
    extra_dimension
        How much the kernel of the Jacobian grows here beyond generic weights (closed form, ranks
        decided in float64); None where no closed form is given.
    detail
        One sentence.
    statistics
        The numbers behind it: singular values, ranks, counts.
    """

    kind: str
    where: str
    extra_dimension: int | None
    detail: str
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadConditioning:
    """How well the factor products of one layer's heads are conditioned.

    Attributes
    ----------
    label, layer
        The attention.
    query_key, value_output
        One number a query head: largest over smallest singular value of the product that the
        function sees (for rotary rows, largest over smallest plane strength ``|q_j| |k_j|``);
        infinite for rank-deficient products, None where queries and keys are normalised.
    """

    label: str
    layer: int
    query_key: tuple[float, ...] | None
    value_output: tuple[float, ...]


@dataclass(frozen=True)
class Leftover:
    """Sizes of what training left in directions that do not matter, for one layer."""

    label: str
    layer: int
    statistics: Mapping[str, float]
