"""The three routes to one number: union of symmetries, effective coordinates, twin nullity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fiberscope.analysis import rank_of
from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import Ledger, ledger
from fiberscope.checkpoints.twins import build_twin
from fiberscope.parameters import ParameterSpace
from fiberscope.symmetry import Kind


@dataclass(frozen=True)
class Routes:
    """What each route says of one toy, and how well the symmetries act."""

    ledger: Ledger
    union: int
    nullity: int
    gap: float
    worst_action: float
    worst_tangent: float
    worst_inverse: float
    wrong_dimensions: tuple[tuple[str, int, int], ...]


def draw_up(config: Mapping[str, object], observable: str) -> Ledger:
    """The ledger of a toy configuration."""
    return ledger(architecture(dict(config)), Observable(observable))


def three_routes(config: Mapping[str, object], observable: str, seed: int = 0) -> Routes:
    """Follow all routes for one toy, with every symmetry acting once on random weights."""
    found = draw_up(config, observable)
    # A large epsilon keeps the directions it breaks clearly apart from the kernel.
    twin = build_twin(config, observable, seed, epsilon=1e-2)
    parameters = twin.parameters
    assert set(parameters) == set(found.architecture.tensors)
    space = ParameterSpace({name: parameters[name].shape for name in parameters})
    jacobian, columns = twin.jacobian()
    assert [name for name, _ in columns] == list(space.shapes)
    nullity = rank_of(jacobian)
    if nullity.nullity != found.undetermined:
        # More inputs can only lower a nullity: the default bank may not have saturated.
        twin = build_twin(config, observable, seed, epsilon=1e-2, inputs=4 * twin.sequences)
        assert all(np.array_equal(twin.parameters[n], parameters[n]) for n in parameters)
        jacobian, columns = twin.jacobian()
        nullity = rank_of(jacobian)
    reference = twin.observe(parameters)
    scale = float(np.abs(reference).max())
    rng = np.random.default_rng(seed + 1)
    worst_action = worst_tangent = worst_inverse = 0.0
    wrong, rows = [], []
    for item in found.items:
        if item.build is None:
            continue
        symmetry = item.build()
        element = symmetry.random(rng)
        moved = symmetry.act(element, parameters)
        assert any(not np.array_equal(moved[n], parameters[n]) for n in symmetry.touches) or (
            item.kind is Kind.DISCRETE
        )
        back = symmetry.act(symmetry.inverse(element), moved)
        worst_inverse = max(
            worst_inverse, *(float(np.abs(back[n] - parameters[n]).max()) for n in parameters)
        )
        if item.kind is Kind.APPROXIMATE:
            continue
        change = float(np.abs(twin.observe(moved) - reference).max()) / scale
        worst_action = max(worst_action, change)
        if item.kind is Kind.EXACT:
            tangents = symmetry.tangents(parameters, space)
            size = np.linalg.norm(tangents, axis=1)
            tangents = tangents[size > 0] / size[size > 0][:, None]
            residual = np.linalg.norm(jacobian @ tangents.T, axis=0).max()
            worst_tangent = max(worst_tangent, float(residual / nullity.singular_values[0]))
            rank = rank_of(tangents).value
            if rank != item.dimension:
                wrong.append((f"{item.mechanism}, {item.where}", rank, item.dimension))
            rows.append(tangents)
    union = rank_of(np.concatenate(rows))
    assert union.decided
    return Routes(
        found,
        union.value,
        nullity.nullity,
        nullity.gap,
        worst_action,
        worst_tangent,
        worst_inverse,
        tuple(wrong),
    )


def assert_routes_agree(config: Mapping[str, object], observable: str, seed: int = 0) -> Routes:
    """Assert that all routes agree and every symmetry leaves the function alone."""
    routes = three_routes(config, observable, seed)
    found = routes.ledger
    assert routes.gap > 1e3, f"no clear gap: {routes.gap}"
    assert routes.wrong_dimensions == ()
    assert found.undetermined == routes.union
    assert found.parameters - found.effective == routes.nullity
    assert found.undetermined == routes.nullity
    # Random moves have condition up to 4 a factor and the toy a few layers: rounding only.
    assert routes.worst_action < 1e-10
    assert routes.worst_tangent < 1e-11
    assert routes.worst_inverse < 1e-11
    return routes
