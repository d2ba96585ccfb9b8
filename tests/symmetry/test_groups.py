"""What every symmetry must do, over all groups: laws, derivatives, and leaving inputs alone."""

import numpy as np
import pytest

from fiberscope.parameters import ParameterSpace, View
from fiberscope.symmetry import (
    GeneralLinear,
    Kind,
    NormReaders,
    OrthogonalCommutant,
    Permutation,
    QuarterTurn,
    ResidualRotation,
    RotaryCommutant,
    ScaledSlot,
    Scaling,
    SignFlip,
    Slot,
    Translation,
    ones_complement,
)

SPACE = ParameterSpace({"q": (2, 4, 3), "k": (3, 8), "b": (8,), "gain": (4,), "w": (4, 4)})
Q = View.whole("q", (2, 4, 3))
K = View.whole("k", (3, 8)).permute(1, 0).split(0, 2, 4)  # (2, 4, 3), stored transposed
B = View.whole("b", (8,)).split(0, 2, 4)
GAIN = View.whole("gain", (4,), offset=1.0)
W = View.whole("w", (4, 4))
QK = (Slot(Q, 1), Slot(K, -2, dual=True), Slot(B, 1))
PLANES = ((0, 2), (1, 3))


def fold(parameters, shift):
    """Shift the bias and take back its image under w, as biases in a row do."""
    return [(B.index(0, 0), shift), (B.index(0, 1), -(W.read(parameters) @ shift))]


GROUPS = {
    "general linear": (GeneralLinear("gl", QK), 2 * 16),
    "rotary, distinct": (RotaryCommutant("rot", QK, PLANES, (1.0, 0.3)), 2 * 4),
    "rotary, equal": (RotaryCommutant("rot", QK, PLANES, (0.5, 0.5)), 2 * 8),
    "rotary, opposite": (RotaryCommutant("rot", QK, PLANES, (0.5, -0.5)), 2 * 8),
    "rotary, partial": (RotaryCommutant("rot", QK, PLANES[:1], (1.0,)), 2 * (2 + 4)),
    "orthogonal": (OrthogonalCommutant("o", QK), 2 * 6),
    "orthogonal rotary, distinct": (OrthogonalCommutant("u", QK, PLANES, (1.0, 0.3)), 2 * 2),
    "orthogonal rotary, equal": (OrthogonalCommutant("u", QK, PLANES, (0.5, 0.5)), 2 * 4),
    "orthogonal rotary, partial": (
        OrthogonalCommutant("u", QK, PLANES[:1], (1.0,)),
        2 * (1 + 1),
    ),
    "scaling": (
        Scaling("s", 4, (ScaledSlot(GAIN, 0), ScaledSlot(W, 1, -1), ScaledSlot(Q, 1, 2))),
        4,
    ),
    "scaling, shared factors": (
        Scaling(
            "s",
            2,
            (ScaledSlot(Q, 1, 1, (0, 1, 0, 1)), ScaledSlot(W, (), -1, (1,))),
            positive=True,
        ),
        2,
    ),
    "scaling, two axes": (Scaling("s", 8, (ScaledSlot(Q, (0, 1)), ScaledSlot(B, (0, 1), -1))), 8),
    "sign": (SignFlip("pm", 4, (ScaledSlot(W, 0), ScaledSlot(GAIN, 0))), 0),
    "quarter turn": (
        QuarterTurn("j", PLANES, (Slot(Q, 1), Slot(B, 1)), (Slot(GAIN, 0),)),
        0,
    ),
    "permutation": (Permutation("s4", 4, (Slot(W, 0), Slot(GAIN, 0), Slot(Q, 1))), 0),
    "permutation, copies": (Permutation("s4", 4, (Slot(Q, 1), Slot(B, 1)), copies=2), 0),
    "translation": (Translation("t", (4,), (B,), fold), 4),
    "residual rotation": (
        ResidualRotation(
            "o", [np.eye(4)], (Slot(Q, 1),), (NormReaders(GAIN, None, (Slot(W, 1),)),)
        ),
        6,
    ),
    "residual rotation fixing ones": (
        ResidualRotation(
            "o",
            [ones_complement(4)],
            (Slot(Q, 1),),
            (NormReaders(GAIN, B.index(0, 0), (Slot(W, 1),)), NormReaders(None, None, ())),
        ),
        3,
    ),
    "residual rotation in blocks": (
        ResidualRotation("o", [np.eye(4)[:, :2], np.eye(4)[:, 2:]], (Slot(W, 0),), ()),
        2,
    ),
}
CONTINUOUS = [name for name, (group, _) in GROUPS.items() if group.generators]


@pytest.fixture
def point():
    rng = np.random.default_rng(11)
    return {name: 0.5 + rng.random(shape) for name, shape in SPACE.shapes.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", GROUPS)
def test_group_laws(name, point):
    group, generators = GROUPS[name]
    assert group.generators == generators
    rng = np.random.default_rng(0)
    first, second = group.random(rng), group.random(rng)
    assert_same(group.act(group.identity(), point), point)
    moved = group.act(first, point)
    assert_same(group.act(group.inverse(first), moved), point)
    assert_same(group.act(group.compose(first, second), point), group.act(second, moved))


@pytest.mark.parametrize("name", GROUPS)
def test_random_elements_move_what_is_stated_and_nothing_else(name, point):
    group, _ = GROUPS[name]
    before = {key: value.copy() for key, value in point.items()}
    # A random sign or permutation may be the identity: three draws are not.
    rng = np.random.default_rng(1)
    moved = [group.act(group.random(rng), point) for _ in range(3)]
    for key, value in point.items():
        np.testing.assert_array_equal(value, before[key])
        changed = any(not np.array_equal(m[key], value) for m in moved)
        assert changed == (key in group.touches)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_tangents_are_the_derivative_of_the_action(name, point):
    group, generators = GROUPS[name]
    tangents = group.tangents(point, SPACE)
    assert tangents.shape == (generators, SPACE.size)
    assert tangents.dtype == np.float64
    for generator in range(generators):
        ahead, behind = (
            SPACE.vector(group.act(group.along(generator, step), point)).real
            for step in (1e-6, -1e-6)
        )
        np.testing.assert_allclose(tangents[generator], (ahead - behind) / 2e-6, atol=1e-8)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_generators_are_independent_at_a_generic_point(name, point):
    group, generators = GROUPS[name]
    assert np.linalg.matrix_rank(group.tangents(point, SPACE)) == generators


@pytest.mark.parametrize("name", ["sign", "permutation", "permutation, copies"])
def test_finite_groups_have_no_tangents(name, point):
    group, _ = GROUPS[name]
    assert group.kind is Kind.DISCRETE
    assert group.tangents(point, SPACE).shape == (0, SPACE.size)


def test_permutations_have_no_direction():
    with pytest.raises(ValueError, match="finite group"):
        GROUPS["permutation"][0].along(0, 1.0)


def test_float32_and_complex_points_keep_their_precision(point):
    group, _ = GROUPS["general linear"]
    element = group.random(np.random.default_rng(2))
    single = {name: value.astype(np.float32) for name, value in point.items()}
    assert group.act(element, single)["q"].dtype == np.float64
    complex_point = {name: value + 0j for name, value in point.items()}
    assert group.act(element, complex_point)["q"].dtype == np.complex128
