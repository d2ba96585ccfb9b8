"""What the groups leave fixed, computed without them."""

import itertools

import numpy as np
import pytest

from fiberscope.parameters import View
from fiberscope.symmetry import (
    GeneralLinear,
    NormReaders,
    OrthogonalCommutant,
    Permutation,
    ResidualRotation,
    RotaryCommutant,
    ScaledSlot,
    Scaling,
    Slot,
    ones_complement,
)
from fiberscope.symmetry.base import multiply_axis

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
@pytest.mark.parametrize("batched", [True, False])
def test_multiply_axis_against_a_loop(axis, batched):
    array = RNG.standard_normal((2, 3, 3, 3))
    matrices = RNG.standard_normal((2, 3, 3))
    found = multiply_axis(matrices if batched else matrices[0], array, axis, batched=batched)
    for copy in range(2):
        expected = np.apply_along_axis(
            lambda v, m=matrices[copy if batched else 0]: m @ v, (axis % 4) - 1, array[copy]
        )
        np.testing.assert_allclose(found[copy], expected, atol=1e-14)


def test_multiply_axis_of_vectors():
    array, matrices = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 3, 3))
    found = multiply_axis(matrices, array, 1, batched=True)
    np.testing.assert_allclose(found, [m @ v for m, v in zip(matrices, array, strict=True)])


def test_change_of_basis_keeps_the_product():
    q, k = RNG.standard_normal((2, 3, 5)), RNG.standard_normal((2, 3, 4))
    slots = (Slot(View.whole("q", q.shape), 1), Slot(View.whole("k", k.shape), 1, dual=True))
    group = GeneralLinear("basis", slots)
    moved = group.act(group.random(RNG), {"q": q, "k": k})
    np.testing.assert_allclose(
        moved["q"].transpose(0, 2, 1) @ moved["k"], q.transpose(0, 2, 1) @ k, atol=1e-13
    )


def test_random_elements_are_well_conditioned():
    slot = (Slot(View.whole("q", (3, 6, 2)), 1),)
    for group in (
        GeneralLinear("gl", slot),
        RotaryCommutant("rot", slot, ((0, 1), (2, 3)), (0.5, 0.2)),
    ):
        singular = np.linalg.svd(group.random(RNG), compute_uv=False)
        assert singular.min() >= 0.49
        assert singular.max() <= 2.01


def rotation(planes, angles, width):
    matrix = np.eye(width)
    for (first, second), angle in zip(planes, angles, strict=True):
        matrix[first, first] = matrix[second, second] = np.cos(angle)
        matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix


LAYOUTS = [
    (((0, 3), (1, 4), (2, 5)), (1.0, 0.4, 0.1), 6),
    (((0, 1), (2, 3)), (1.0, 0.4), 6),
    (((0, 2), (1, 3)), (0.7, 0.7), 5),
    (((0, 2), (1, 3)), (0.7, -0.7), 5),
    (((0, 1), (2, 3), (4, 5)), (0.7, 0.2, 0.7), 6),
]


@pytest.mark.parametrize(("planes", "frequencies", "width"), LAYOUTS)
@pytest.mark.parametrize("kind", [RotaryCommutant, OrthogonalCommutant])
def test_rotary_elements_commute_with_all_rotations(planes, frequencies, width, kind):
    group = kind("rot", (Slot(View.whole("q", (2, width, 3)), 1),), planes, frequencies)
    element = group.random(RNG)
    assert group.commutes(element)
    for position in (1, 2, 5):
        turn = rotation(planes, position * np.array(frequencies), width)
        np.testing.assert_allclose(element @ turn, turn @ element, atol=1e-13)
        for generator in range(group.generators):
            direction = group.along(generator, 1j).imag
            np.testing.assert_allclose(direction @ turn, turn @ direction, atol=1e-13)
    assert not group.commutes(RNG.standard_normal((2, width, width)))
    if kind is OrthogonalCommutant:
        np.testing.assert_allclose(
            element @ element.swapaxes(-1, -2), [np.eye(width)] * 2, atol=1e-13
        )


@pytest.mark.parametrize(("planes", "frequencies", "width"), LAYOUTS)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_rotary_generators_are_the_whole_commutant(planes, frequencies, width, orthogonal):
    """Count the solutions of X R = R X (and X = -X^T) by linear algebra."""
    turn = rotation(planes, frequencies, width)
    one = np.eye(width)
    conditions = np.kron(one, turn.T) - np.kron(turn, one)
    if orthogonal:
        swap = np.zeros((width * width, width * width))
        for i, j in itertools.product(range(width), repeat=2):
            swap[i * width + j, j * width + i] = 1
        conditions = np.concatenate([conditions, np.eye(width * width) + swap])
    solutions = width * width - np.linalg.matrix_rank(conditions, tol=1e-9)
    kind = OrthogonalCommutant if orthogonal else RotaryCommutant
    group = kind("rot", (Slot(View.whole("q", (1, width, 3)), 1),), planes, frequencies)
    assert group.generators == solutions


@pytest.mark.parametrize("copies", [1, 3])
def test_permutation_puts_former_positions_where_they_are_told(copies):
    view = View.whole("x", (copies, 4, 2))
    group = Permutation("order", 4, (Slot(view, 1),), copies=copies)
    x = RNG.standard_normal((copies, 4, 2))
    element = group.random(RNG)
    moved = group.act(element, {"x": x})["x"]
    for copy in range(copies):
        for i in range(4):
            np.testing.assert_array_equal(moved[copy, i], x[copy, element[copy, i]])


def test_scaling_of_a_gain_against_its_reader():
    gain, w = RNG.standard_normal(3), RNG.standard_normal((2, 3))
    group = Scaling(
        "gain",
        3,
        (
            ScaledSlot(View.whole("gain", (3,), offset=1.0), 0),
            ScaledSlot(View.whole("w", (2, 3)), 1, -1),
        ),
    )
    moved = group.act(group.random(RNG), {"gain": gain, "w": w})
    np.testing.assert_allclose(moved["w"] * (1 + moved["gain"]), w * (1 + gain))


def test_positive_scalings_are_positive():
    view = View.whole("w", (50,))
    positive = Scaling("relu", 50, (ScaledSlot(view, 0),), positive=True)
    assert (positive.random(RNG) > 0).all()
    assert (Scaling("any", 50, (ScaledSlot(view, 0),)).random(RNG) < 0).any()


@pytest.mark.parametrize("width", [2, 3, 7])
def test_ones_complement(width):
    basis = ones_complement(width)
    np.testing.assert_allclose(basis.T @ basis, np.eye(width - 1), atol=1e-14)
    np.testing.assert_allclose(basis.sum(axis=0), 0.0, atol=1e-14)


def rms(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True))


def layer_norm(x):
    return rms(x - x.mean(axis=-1, keepdims=True))


@pytest.mark.parametrize("centred", [False, True])
def test_residual_rotation_keeps_a_pre_norm_network(centred):
    """Embed, one normalised block with a residual, normalised readout, all by hand."""
    width, inner = 4, 3
    norm = layer_norm if centred else rms
    shapes = {
        "embed": (6, width),
        "up": (inner, width),
        "down": (width, inner),
        "gain": (width,),
        "bias": (width,),
        "final": (width,),
        "read": (5, width),
    }
    point = {name: 0.3 + RNG.random(shape) for name, shape in shapes.items()}

    def network(p):
        x = p["embed"]
        bias = p["bias"] if centred else 0.0
        x = x + np.tanh((norm(x) * p["gain"] + bias) @ p["up"].T) @ p["down"].T
        return (norm(x) * p["final"]) @ p["read"].T

    view = {name: View.whole(name, shape) for name, shape in shapes.items()}
    group = ResidualRotation(
        "stream",
        [ones_complement(width) if centred else np.eye(width)],
        (Slot(view["embed"], 1), Slot(view["down"], 0)),
        (
            NormReaders(view["gain"], view["bias"] if centred else None, (Slot(view["up"], 1),)),
            NormReaders(view["final"], None, (Slot(view["read"], 1),)),
        ),
    )
    moved = group.act(group.random(RNG), point)
    assert not np.allclose(moved["embed"], point["embed"])
    np.testing.assert_allclose(network(moved), network(point), atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: GeneralLinear("x", (s((2, 3, 4), 1), s((2, 4, 4), 1))),
        lambda s: GeneralLinear("x", (s((2, 3), 0),)),
        lambda s: Permutation("x", 3, (s((4, 2), 0),)),
        lambda s: RotaryCommutant("x", (s((1, 4, 2), 1),), ((0, 1),), (1.0, 0.5)),
        lambda s: RotaryCommutant("x", (s((1, 4, 2), 1),), ((0, 1), (1, 2)), (1.0, 0.5)),
        lambda s: RotaryCommutant("x", (s((1, 4, 2), 1),), ((0, 4),), (1.0,)),
        lambda s: RotaryCommutant("x", (s((1, 4, 2), 1),), ((0, 1),), (0.0,)),
    ],
)
def test_what_does_not_fit_is_refused(make):
    def slot(shape, axis):
        return Slot(View.whole("w", shape), axis)

    with pytest.raises(ValueError, match="x"):
        make(slot)
