"""Tangent maps must be the listed tangents, applied all at once."""

import numpy as np
import pytest

from fiberscope.parameters import ParameterSpace
from fiberscope.symmetry import Symmetry
from tests.symmetry.test_groups import CONTINUOUS, GROUPS, SPACE


def random_point(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in SPACE.shapes.items()}


def zeros():
    return {name: np.zeros(shape) for name, shape in SPACE.shapes.items()}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("default", [False, True])
def test_a_map_applies_the_listed_tangents_and_their_transpose(name, default):
    group, _ = GROUPS[name]
    point, along = random_point(3), random_point(4)
    tangents = group.tangents(point, SPACE)
    found = Symmetry.tangent_map(group, point) if default else group.tangent_map(point)
    coordinates = np.random.default_rng(5).standard_normal(group.generators)
    added = {key: value.copy() for key, value in along.items()}
    found.add(coordinates, added)
    expected = SPACE.vector(along) + coordinates @ tangents
    np.testing.assert_allclose(SPACE.vector(added), expected, rtol=1e-12, atol=1e-12)
    expected = tangents @ SPACE.vector(along)
    np.testing.assert_allclose(found.pull(along), expected, rtol=1e-12, atol=1e-12)


# Gains differ in the rotation tests, where `solve` is approximate and only has to precondition.
EXACT = [name for name in CONTINUOUS if not name.startswith("residual rotation")]


@pytest.mark.parametrize("name", EXACT)
def test_solving_inverts_the_gram_matrix(name):
    group, _ = GROUPS[name]
    point = random_point(6)
    tangents = group.tangents(point, SPACE)
    gram = tangents @ tangents.T
    found = group.tangent_map(point)
    vector = gram @ np.random.default_rng(7).standard_normal(group.generators)
    np.testing.assert_allclose(gram @ found.solve(vector), vector, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in CONTINUOUS if n not in EXACT])
def test_an_approximate_inverse_is_symmetric_and_positive(name):
    group, _ = GROUPS[name]
    found = group.tangent_map(random_point(8))
    matrix = np.stack([found.solve(row) for row in np.eye(group.generators)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > 0


def test_solving_at_a_rank_deficient_head_gives_the_least_squares_direction():
    group, _ = GROUPS["general linear"]
    point = random_point(9)
    point["q"][:, 2:] = 0.0
    point["b"][:] = 0.0
    point["k"][:, [2, 3, 6, 7]] = 0.0
    space = ParameterSpace(SPACE.shapes)
    tangents = group.tangents(point, space)
    direction = space.vector(random_point(10))
    solved = group.tangent_map(point).solve(tangents @ direction)
    expected = np.linalg.lstsq(tangents.T, direction, rcond=1e-10)[0]
    np.testing.assert_allclose(solved @ tangents, expected @ tangents, atol=1e-9)
