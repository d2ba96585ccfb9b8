"""One measurement: how much of an update, its parts and the gradient does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.ledger import Item
from fiberscope.checkpoints.ledger.rules.constants import KEY_BIAS
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, VALUE_OUTPUT
from fiberscope.checkpoints.ledger.rules.mlp import GATED, HOMOGENEOUS
from fiberscope.symmetry import Symmetry
from fiberscope.training.projection import Projection, TangentSpan, squared_norm
from fiberscope.training.record import Balance, Direction

Arrays = dict[str, NDArray[np.float64]]

TRADED = (QUERY_KEY, VALUE_OUTPUT, GATED, HOMOGENEOUS)
"""Mechanisms that trade one side against another, with a difference that gradient flow keeps."""


@dataclass(frozen=True)
class Parts:
    """What is measured at one step: directions over the trained tensors, weights over all.

    ``decay`` is None where there is no decoupled weight decay, ``gradient`` where there is none.
    """

    weights: Arrays
    update: Arrays
    decay: Arrays | None
    gradient: Arrays | None


@dataclass(frozen=True)
class Measured:
    """Results of one measurement, and the projection of the update itself."""

    update: Direction
    decay: Direction | None
    adaptive: Direction | None
    gradient: Direction | None
    item_shares: tuple[float, ...]
    balances: tuple[Balance, ...]
    dead_bias_drifts: tuple[float, ...]
    iterations: int
    invisible: Arrays
    """The invisible part of the update, over the tensors that symmetries touch."""


def traded(items: Sequence[Item]) -> tuple[int, ...]:
    """Indices of the entries with a balance."""
    return tuple(i for i, item in enumerate(items) if item.mechanism in TRADED)


def dead(items: Sequence[Item]) -> tuple[int, ...]:
    """Indices of the biases that have no effect at all."""
    return tuple(i for i, item in enumerate(items) if item.mechanism == KEY_BIAS)


class Meter:
    """Measures steps of one run; remembers where balances and dead biases started.

    Parameters
    ----------
    items, symmetries
        Exact symmetries and their entries in the ledger.
    error
        Largest error of a joint share.
    """

    def __init__(self, items: Sequence[Item], symmetries: Sequence[Symmetry], error: float) -> None:
        self.items, self.symmetries, self.error = tuple(items), tuple(symmetries), error
        self.traded, self.dead = traded(items), dead(items)
        self._differences: list[NDArray[np.float64]] | None = None
        self._dead_biases: list[NDArray[np.float64]] | None = None
        self._decay_start: NDArray[np.float64] | None = None

    def measure(self, parts: Parts) -> Measured:
        """Measure one step.

        Raises
        ------
        InputError
            If a direction is not finite, or a projection does not settle.
        """
        span = TangentSpan.at(self.symmetries, parts.weights)
        pulled = span.pull(parts.update)
        update = span.project(parts.update, error=self.error, pulled=pulled)
        shares = span.alone(pulled, update.squared_norm, self.error)
        iterations = update.iterations

        decay = adaptive = gradient = None
        if parts.decay is not None:
            # Decay turns as slowly as the weights: the last solution is a good start.
            shrinking = span.project(parts.decay, error=self.error, start=self._decay_start)
            self._decay_start = shrinking.coordinates
            iterations += shrinking.iterations
            decay = direction(shrinking)
            adaptive = self._rest(span, parts, update, shrinking)
        if parts.gradient is not None:
            slope = span.project(parts.gradient, error=self.error)
            iterations += slope.iterations
            gradient = direction(slope)
        balances, drifts = self._balances(span), self._drifts(span, parts.weights)
        return Measured(
            direction(update),
            decay,
            adaptive,
            gradient,
            tuple(shares),
            balances,
            drifts,
            iterations,
            span.push(update.coordinates),
        )

    def invisible(self, parts: Parts) -> Arrays:
        """The invisible part of the update alone."""
        span = TangentSpan.at(self.symmetries, parts.weights)
        return span.push(span.project(parts.update, error=self.error).coordinates)

    def _rest(
        self, span: TangentSpan, parts: Parts, update: Projection, decay: Projection
    ) -> Direction:
        """The update without its decay: projections subtract."""
        assert parts.decay is not None
        inner = sum(float(np.vdot(parts.update[n], parts.decay[n])) for n in parts.update)
        squared = update.squared_norm + decay.squared_norm - 2.0 * inner
        invisible = squared_norm(span.push(update.coordinates - decay.coordinates))
        # The difference of two nearly equal norms is rounding.
        if squared <= 1e-24 * update.squared_norm:
            return Direction(0.0, None)
        return Direction(sqrt(squared), min(max(invisible / squared, 0.0), 1.0))

    def _balances(self, span: TangentSpan) -> tuple[Balance, ...]:
        sides = [span.maps[index].sides for index in self.traded]
        pairs = [side for side in sides if side is not None]
        differences = [left - right for left, right in pairs]
        if self._differences is None:
            self._differences = differences
        found = []
        for (left, right), difference, first in zip(
            pairs, differences, self._differences, strict=True
        ):
            size = _norm(left) + _norm(right)
            found.append(
                Balance(
                    imbalance=_norm(difference) / size if size > 0 else 0.0,
                    difference=_norm(difference),
                    drift=_norm(difference - first),
                )
            )
        return tuple(found)

    def _drifts(self, span: TangentSpan, weights: Arrays) -> tuple[float, ...]:
        # A dead bias is its own coordinate, so pulling the weights reads it.
        biases = [span.maps[index].pull(weights) for index in self.dead]
        if self._dead_biases is None:
            self._dead_biases = biases
        return tuple(
            _norm(now - first) / sqrt(max(len(now), 1))
            for now, first in zip(biases, self._dead_biases, strict=True)
        )


def direction(projection: Projection) -> Direction:
    """Norm and share of a projected direction."""
    return Direction(sqrt(projection.squared_norm), projection.share)


def _norm(vector: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(vector))
