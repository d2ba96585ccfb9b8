"""Minimal filling architectures: every polynomial map is a limit of their functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.bounds import upper_bound
from fiberscope.families.polynomial.jacobian_rank import error_probability, rank_modulo
from fiberscope.numbers.prime_field import PRIME_RANGE

_FILLS, _DOES_NOT, _UNKNOWN = 1, -1, 0


@dataclass(frozen=True)
class MinimalFilling:
    """All minimal filling architectures with given ends, layers and largest width.

    Attributes
    ----------
    minimal
        Widths, sorted. Each fills: its rank modulo the prime in ``certificates`` equals the
        dimension of the ambient space. Narrowing any layer loses that.
    ambient
        Dimension of the ambient space.
    examined, ranks
        Architectures in the search space, and how many needed a rank.
    error_probability
        Bound on the probability that an architecture was wrongly taken not to fill, so that the
        list is incomplete or not minimal (sum over all ranks that fell short).
    """

    minimal: tuple[tuple[int, ...], ...]
    certificates: tuple[int, ...]
    ambient: int
    examined: int
    ranks: int
    error_probability: float

    @property
    def non_unimodal(self) -> tuple[tuple[int, ...], ...]:
        """Those whose widths fall and rise again."""
        return tuple(widths for widths in self.minimal if not is_unimodal(widths))


def is_unimodal(widths: tuple[int, ...]) -> bool:
    """True when the widths never rise again after they fell."""
    fell = False
    for before, after in pairwise(widths):
        if after > before and fell:
            return False
        fell = fell or after < before
    return True


def minimal_filling(
    inputs: int,
    outputs: int,
    layers: int,
    degree: int,
    largest: int,
    seed: int = 0,
    *,
    trials: int = 3,
    progress: Callable[[int], None] = lambda unknown: None,
) -> MinimalFilling:
    """Search all hidden widths from 2 to ``largest``.

    Widening a layer keeps an architecture filling, so one answer settles everything above or
    below it; the search bisects lines of undecided architectures. Not filling is proved by an
    upper bound or, failing that, seen in ``trials`` ranks modulo random primes.
    """
    rng = np.random.default_rng(seed)
    hidden = layers - 1
    state: NDArray[np.int8] = np.zeros((largest - 1,) * hidden, dtype=np.int8)
    ambient = Architecture.build((inputs, *((2,) * hidden), outputs), degree).ambient
    certificates: dict[tuple[int, ...], int] = {}
    ranks, wrong = 0, 0.0

    def decide(position: tuple[int, ...]) -> None:
        nonlocal ranks, wrong
        widths = (inputs, *(int(i) + 2 for i in position), outputs)
        architecture = Architecture.build(widths, degree)
        bound, found = upper_bound(architecture).value, 0
        if bound >= ambient:
            ranks += 1
            for _ in range(trials):
                trial = rank_modulo(architecture, ambient, rng)
                found = max(found, trial.rank)
                if found == ambient:
                    certificates[widths] = trial.prime
                    break
            else:
                wrong += error_probability(architecture, found, [PRIME_RANGE[0]] * trials)
        if found == ambient:
            state[tuple(slice(i, None) for i in position)] = _FILLS
        else:
            state[tuple(slice(None, i + 1) for i in position)] = _DOES_NOT

    while True:
        unknown = np.argwhere(state == _UNKNOWN)
        if not len(unknown):
            break
        progress(len(unknown))
        # Many lines from one scan: finding the undecided positions costs more than a bound.
        for start in unknown[rng.permutation(len(unknown))[:200]]:
            if state[tuple(start)] != _UNKNOWN:
                continue
            line = _diagonal(state, start)
            low, high = 0, len(line) - 1
            while low <= high:
                middle = (low + high) // 2
                if state[line[middle]] == _UNKNOWN:
                    decide(line[middle])
                if state[line[middle]] == _FILLS:
                    high = middle - 1
                else:
                    low = middle + 1
    minimal = []
    for index in np.argwhere(state == _FILLS):
        below = [tuple(index - step) for step in np.eye(hidden, dtype=int) if index @ step > 0]
        if all(state[position] == _DOES_NOT for position in below):
            minimal.append(tuple(int(i) for i in index))
    for position in minimal:
        widths = (inputs, *(i + 2 for i in position), outputs)
        if widths not in certificates:
            decide(position)
    shown = sorted((inputs, *(i + 2 for i in position), outputs) for position in minimal)
    return MinimalFilling(
        tuple(shown),
        tuple(certificates[widths] for widths in shown),
        ambient,
        state.size,
        ranks,
        min(1.0, wrong),
    )


def _diagonal(state: NDArray[np.int8], start: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Undecided chain through ``start``: one layer wider at a time, in turn, both ways."""
    chain = [tuple(int(i) for i in start)]
    for sign in (1, -1):
        position, moved = np.array(start), True
        while moved:
            moved = False
            for axis in range(state.ndim):
                candidate = position.copy()
                candidate[axis] += sign
                inside = 0 <= candidate[axis] < state.shape[axis]
                if inside and state[tuple(candidate)] == _UNKNOWN:
                    position, moved = candidate, True
                    chain.append(tuple(int(i) for i in position))
        chain.sort(key=sum)
    return chain
