"""The joint projection against dense singular values, for every architecture table."""

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.symmetry import Kind
from fiberscope.training import TangentSpan
from fiberscope.training.monitor import standard_deviation
from tests.checkpoints.ledger.toys import CASES
from tests.training.toys import (
    NAMES,
    dense_basis,
    drawn_up,
    listed_tangents,
    random_weights,
    space_of,
    toy,
)

EVERY_TABLE = pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)


@EVERY_TABLE
def test_joint_share_is_that_of_a_dense_decomposition(case):
    given = toy(case)
    found, space, basis = given.found, given.space, given.basis
    assert len(basis) == found.undetermined
    span = TangentSpan.at(given.symmetries, given.weights)
    rng = np.random.default_rng(case + 100)
    k, total = found.undetermined, space.size
    shares = []
    for number in range(50):
        direction = rng.standard_normal(total)
        direction /= np.linalg.norm(direction)
        expected = np.sum((basis @ direction) ** 2)
        shares.append(expected)
        if number < 3:
            named = space.parameters(direction)
            fine = span.project(named, error=1e-10)
            assert abs(fine.share - expected) < 1e-9
            assert fine.error < 1e-9
            invisible = space.vector(
                {
                    name: span.push(fine.coordinates).get(name, np.zeros(shape))
                    for name, shape in space.shapes.items()
                }
            )
            np.testing.assert_allclose(invisible, basis.T @ (basis @ direction), atol=1e-4)
            rough = span.project(named)
            assert abs(rough.share - expected) < 1e-6
    # The law of a random direction's share, by the published mean and variance of a Beta law.
    shares = np.array(shares)
    deviation = standard_deviation(k, total)
    assert np.abs(shares - k / total).max() < 4 * deviation
    assert abs(shares.mean() - k / total) < 0.6 * deviation


@EVERY_TABLE
def test_a_tangent_is_invisible_and_what_is_left_of_a_direction_is_not(case):
    given = toy(case)
    space, tangents, basis = given.space, np.concatenate(given.tangents), given.basis
    span = TangentSpan.at(given.symmetries, given.weights)
    rng = np.random.default_rng(case + 200)
    tangent = rng.standard_normal(len(tangents)) @ tangents
    assert abs(span.project(space.parameters(tangent), error=1e-14).share - 1.0) < 1e-12
    direction = rng.standard_normal(space.size)
    visible = direction - basis.T @ (basis @ direction)
    assert span.project(space.parameters(visible), error=1e-14).share < 1e-12


@EVERY_TABLE
def test_single_shares_are_those_of_single_mechanisms(case):
    given = toy(case)
    space = given.space
    span = TangentSpan.at(given.symmetries, given.weights)
    direction = np.random.default_rng(case + 300).standard_normal(space.size)
    squared = float(direction @ direction)
    named = space.parameters(direction)
    shares = span.alone(span.pull(named), squared, 1e-12)
    for symmetry, tangents, share in zip(given.symmetries, given.tangents, shares, strict=True):
        basis = dense_basis(tangents)
        expected = np.sum((basis @ direction) ** 2) / squared
        assert abs(share - expected) < 1e-10, symmetry.name


def gpt2():
    found = drawn_up(*CASES[1])
    return found, random_weights(found, 0), space_of(found)


def test_a_guess_changes_the_way_but_not_the_share():
    found, weights, space = gpt2()
    span = TangentSpan.at(found.symmetries(Kind.EXACT), weights)
    direction = space.parameters(np.random.default_rng(1).standard_normal(space.size))
    plain = span.project(direction, error=1e-10)
    again = span.project(direction, error=1e-10, start=plain.coordinates)
    assert again.iterations < plain.iterations
    far = np.random.default_rng(2).standard_normal(span.generators)
    guessed = span.project(direction, error=1e-10, start=far)
    assert plain.share == pytest.approx(again.share, abs=1e-9)
    assert plain.share == pytest.approx(guessed.share, abs=1e-9)


def test_nothing_has_no_share_and_the_undefined_is_refused():
    found, weights, space = gpt2()
    span = TangentSpan.at(found.symmetries(Kind.EXACT), weights)
    nothing = span.project(space.parameters(np.zeros(space.size)))
    assert nothing.share is None
    assert nothing.squared_norm == 0.0
    broken = np.ones(space.size)
    broken[3] = np.nan
    with pytest.raises(InputError, match="infinite or undefined"):
        span.project(space.parameters(broken))


def test_a_gain_of_zero_is_said():
    found, weights, space = gpt2()
    weights["transformer.h.0.ln_1.weight"] = np.zeros(4)
    span = TangentSpan.at(found.symmetries(Kind.EXACT), weights)
    with pytest.raises(InputError, match="gain is exactly zero"):
        span.project(space.parameters(np.ones(space.size)))
    weights["transformer.h.0.ln_1.weight"] = np.full(4, np.inf)
    with pytest.raises(InputError, match="holds infinite or undefined"):
        TangentSpan.at(found.symmetries(Kind.EXACT), weights)


def test_without_symmetries_everything_is_seen():
    _, weights, space = gpt2()
    span = TangentSpan.at([], weights)
    assert span.project(space.parameters(np.ones(space.size))).share == 0.0


def test_a_freshly_initialised_head_of_zeros_still_projects():
    found, weights, space = gpt2()
    for name in weights:
        if ".attn." in name:
            weights[name] = np.zeros_like(weights[name])
    tangents = listed_tangents(found, weights)
    basis = dense_basis(tangents)
    assert len(basis) < found.undetermined
    span = TangentSpan.at(found.symmetries(Kind.EXACT), weights)
    direction = np.random.default_rng(5).standard_normal(space.size)
    expected = np.sum((basis @ direction) ** 2) / (direction @ direction)
    share = span.project(space.parameters(direction), error=1e-10).share
    assert abs(share - expected) < 1e-9


def test_the_expected_law_is_the_beta_law():
    from scipy.stats import beta

    for k, total in ((74, 226), (996, 5344), (1, 3)):
        law = beta(k / 2, (total - k) / 2)
        assert law.mean() == pytest.approx(k / total)
        assert law.std() == pytest.approx(standard_deviation(k, total))
