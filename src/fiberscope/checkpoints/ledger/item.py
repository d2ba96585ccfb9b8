"""One entry of the ledger: a rule applied at one place, with its multiplicity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fiberscope.symmetry import Kind, Symmetry


@dataclass(frozen=True)
class Item:
    """A symmetry of one layer (or of the whole model): how large, and how to build it.

    Attributes
    ----------
    mechanism
        Name in the catalogue.
    layer
        Layer index, None when it belongs to no layer.
    dimension
        Dimension of the orbit at generic weights, zero for discrete ones.
    build
        Builds the acting group; called only when elements or tangents are wanted.
    where
        The place in words, without the layer.
    epsilons
        For approximate symmetries, the norm epsilons that break them.
    log10_order
        For discrete symmetries, the logarithm of the number of elements.
    """

    mechanism: str
    layer: int | None
    dimension: int
    build: Callable[[], Symmetry] | None
    where: str = ""
    kind: Kind = Kind.EXACT
    epsilons: tuple[float, ...] = ()
    log10_order: float = 0.0


@dataclass(frozen=True)
class Overlap:
    """Directions that two mechanisms share; they are counted once."""

    between: tuple[str, str]
    dimension: int
    why: str
