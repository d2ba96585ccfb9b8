"""Random weights for the toys of every architecture table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import Ledger, ledger
from fiberscope.parameters import ParameterSpace
from fiberscope.symmetry import Kind, Symmetry
from tests.checkpoints.ledger.toys import CASES

NAMES = [f"{config['architectures'][0]}-{where}-{i}" for i, (config, where) in enumerate(CASES)]


def drawn_up(config: Mapping[str, Any], observable: str) -> Ledger:
    return ledger(architecture(dict(config)), Observable(observable))


def random_weights(found: Ledger, seed: int) -> dict[str, NDArray[np.float64]]:
    """Entries of scale one half; vectors stored as gains or biases lie near one."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in found.architecture.tensors.items():
        draw = 0.5 * rng.standard_normal(shape)
        weights[name] = 1.0 + np.clip(0.6 * draw, -0.7, 0.7) if len(shape) == 1 else draw
    return weights


def space_of(found: Ledger) -> ParameterSpace:
    return ParameterSpace({name: tuple(s) for name, s in found.architecture.tensors.items()})


def listed_tangents(
    found: Ledger, weights: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Every tangent of every exact symmetry, one by one."""
    space = space_of(found)
    rows = [symmetry.tangents(weights, space) for symmetry in found.symmetries(Kind.EXACT)]
    return np.concatenate(rows)


@dataclass(frozen=True)
class Toy:
    """A row of the table of toys at random weights, with its listed directions."""

    found: Ledger
    weights: dict[str, NDArray[np.float64]]
    space: ParameterSpace
    symmetries: list[Symmetry]
    tangents: list[NDArray[np.float64]]
    basis: NDArray[np.float64]


@cache
def toy(case: int) -> Toy:
    """Listing the directions one by one takes a while, so each toy is listed once."""
    found = drawn_up(*CASES[case])
    weights, space = random_weights(found, case), space_of(found)
    symmetries = found.symmetries(Kind.EXACT)
    tangents = [symmetry.tangents(weights, space) for symmetry in symmetries]
    return Toy(found, weights, space, symmetries, tangents, dense_basis(np.concatenate(tangents)))


def dense_basis(tangents: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orthonormal rows of the span, by singular values."""
    size = np.linalg.norm(tangents, axis=1)
    scaled = tangents[size > 0] / size[size > 0][:, None]
    _, values, right = np.linalg.svd(scaled, full_matrices=False)
    kept = values > 1e-9 * values[0]
    # The gap decides the rank beyond doubt, or the toy is badly chosen.
    assert values[kept].min() > 1e-5 and values[~kept].max(initial=0.0) < 1e-12
    return right[kept]
