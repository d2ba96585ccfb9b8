"""Closed forms of every rule's directions against the list derived from the action."""

import numpy as np
import pytest

from tests.checkpoints.ledger.toys import CASES
from tests.training.toys import NAMES, toy


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_maps_of_every_table_apply_the_listed_tangents(case):
    given = toy(case)
    space, weights = given.space, given.weights
    rng = np.random.default_rng(case)
    along = {name: rng.standard_normal(shape) for name, shape in space.shapes.items()}
    for symmetry, tangents in zip(given.symmetries, given.tangents, strict=True):
        scale = np.abs(tangents).max()
        mapped = symmetry.tangent_map(weights)
        assert mapped.generators == len(tangents)
        coordinates = rng.standard_normal(len(tangents))
        added = {name: np.zeros(shape) for name, shape in space.shapes.items()}
        mapped.add(coordinates, added)
        # Sums of up to a few hundred products.
        tolerance = 1e-11 * scale
        np.testing.assert_allclose(
            space.vector(added), coordinates @ tangents, atol=tolerance, err_msg=symmetry.name
        )
        np.testing.assert_allclose(
            mapped.pull(along),
            tangents @ space.vector(along),
            atol=tolerance,
            err_msg=symmetry.name,
        )
        if mapped.exact:
            projected = tangents.T @ mapped.solve(mapped.pull(along))
            left = tangents @ (space.vector(along) - projected)
            np.testing.assert_allclose(left, 0.0, atol=1e-9 * scale, err_msg=symmetry.name)
