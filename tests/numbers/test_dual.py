"""Every operation of dual numbers against complex steps, shapes included."""

from fractions import Fraction

import numpy as np
import pytest

from fiberscope.numbers import FLOAT64, Dual, DualNumbers
from tests.analysis.toy_families import Rationals

SYSTEM = DualNumbers(FLOAT64)
STEP = 1e-30
RNG = np.random.default_rng(7)
MATRIX = RNG.standard_normal((3, 4))
ROW = RNG.standard_normal((1, 4))
VECTOR = RNG.standard_normal(4)
STACK = RNG.standard_normal((2, 3, 4)) + 3.0


def check(function, *arrays):
    """Tangents along all coordinates of all arguments agree with complex steps."""
    sizes = [array.size for array in arrays]
    flat = np.concatenate([array.ravel() for array in arrays])
    cuts = np.cumsum(sizes)[:-1]

    def split(vector):
        parts = []
        start = 0
        for array in arrays:
            parts.append(vector[start : start + array.size].reshape(array.shape))
            start += array.size
        return parts

    assert len(cuts) == len(arrays) - 1
    found = function(SYSTEM, *split(SYSTEM.variables(flat)))
    direct = function(FLOAT64, *split(flat))
    assert isinstance(found, Dual)
    assert found.shape == np.shape(direct)
    assert found.ndim == np.ndim(direct)
    np.testing.assert_allclose(found.value, direct, rtol=1e-14)
    assert found.tangent.shape == (flat.size, *np.shape(direct))
    for k in range(flat.size):
        stepped = flat.astype(complex)
        stepped[k] += 1j * STEP
        column = np.imag(function(FLOAT64, *split(stepped))) / STEP
        np.testing.assert_allclose(found.tangent[k], column, rtol=1e-12, atol=1e-13)


BINARY = {
    "add": lambda s, x, y: x + y,
    "subtract": lambda s, x, y: x - y,
    "multiply": lambda s, x, y: x * y,
    "divide": lambda s, x, y: x / y,
}
SHAPES = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((1, 4), (3, 1)),
    ((2, 1, 4), (3, 1)),
    ((4,), (2, 3, 4)),
]


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("shapes", SHAPES)
def test_binary_operations_broadcast(operation, shapes):
    rng = np.random.default_rng(0)
    x, y = (2.0 + rng.random(shape) for shape in shapes)
    check(BINARY[operation], x, y)
    constant = 2.0 + rng.random(shapes[1])
    check(lambda s, x: BINARY[operation](s, x, constant), x)
    check(lambda s, x: BINARY[operation](s, constant, x), x)
    check(lambda s, x: BINARY[operation](s, x, 3), x)
    check(lambda s, x: BINARY[operation](s, 3, x), x)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 2)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 4), (4,)),
        ((4,), (4, 3)),
        ((4,), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
    ],
)
def test_matrix_products(shapes):
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(shape) for shape in shapes)
    check(lambda s, x, y: x @ y, x, y)
    check(lambda s, x: x @ y, x)
    check(lambda s, y: x @ y, y)


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        (slice(None), 1),
        (Ellipsis, slice(0, 2)),
        (None, slice(1, 3)),
        np.array([1, 0, 0]),
        ([0, 1], slice(None), [2, 3]),
        (slice(None), [0, 2], [1, 1]),
        STACK > 3.0,
    ],
)
def test_indexing(key):
    check(lambda s, x: x[key] * 2.0, STACK)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums(axis, keepdims):
    check(lambda s, x: (x * x).sum(axis=axis, keepdims=keepdims), STACK)
    check(lambda s, x: (x * x).sum(), STACK)


def test_shapes():
    check(lambda s, x: x.reshape(6, 4) * 1.5, STACK)
    check(lambda s, x: x.reshape((-1, 2)) * 1.5, STACK)
    check(lambda s, x: x.transpose(2, 0, 1) * 1.5, STACK)
    check(lambda s, x: x.transpose() * 1.5, STACK)
    check(lambda s, x: x.swapaxes(-1, 0) * 1.5, STACK)
    check(lambda s, x: -x, STACK)


def test_exponential_square_root_and_a_composition():
    check(lambda s, x: s.exp(x), MATRIX)
    check(lambda s, x: s.sqrt(x * x + 1.0), MATRIX)

    def attention(s, x, y):
        weights = s.exp(x @ y.swapaxes(-1, -2))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        mixed = weights @ y
        return mixed / s.sqrt((mixed * mixed).sum(axis=-1, keepdims=True) / 4)

    check(attention, MATRIX, RNG.standard_normal((2, 4)))


def test_constants_stay_constants():
    constant = SYSTEM.array([1.0, 2.0])
    assert not isinstance(constant, Dual)
    np.testing.assert_allclose(SYSTEM.exp(constant), np.exp([1.0, 2.0]))
    np.testing.assert_allclose(SYSTEM.sqrt(constant), np.sqrt([1.0, 2.0]))
    assert SYSTEM.zeros((2,)).shape == (2,)
    variables = SYSTEM.variables(VECTOR)
    assert SYSTEM.array(variables) is variables


def test_infinite_constants_leave_the_tangent_alone():
    masked = SYSTEM.variables(np.array([1.0, 2.0])) + np.array([0.0, -np.inf])
    np.testing.assert_array_equal(masked.tangent, np.eye(2))


def test_given_directions():
    directions = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    x = SYSTEM.variables(np.array([1.0, 2.0, 3.0]), directions)
    np.testing.assert_array_equal((x * x).tangent, [[2.0, 4.0, 0.0], [0.0, 0.0, 12.0]])


def test_exact_derivatives_over_fractions():
    rationals = Rationals()
    duals = DualNumbers(rationals)
    x = duals.variables(rationals.array([1, 2, 3]))
    total = (x / (1 + x[0])).sum()
    assert total.value.item() == Fraction(3)
    # d/dx0 of (x0+x1+x2)/(1+x0) = 1/2 - 6/4; d/dx1 = 1/2.
    assert list(total.tangent) == [Fraction(-1), Fraction(1, 2), Fraction(1, 2)]
    product = x @ x
    assert product.value.item() == 14
    assert list(product.tangent) == [2, 4, 6]


def test_prime_fields_underneath():
    pytest.importorskip("flint")
    from fiberscope.numbers import PrimeField

    field = PrimeField(2147483647)
    duals = DualNumbers(field)
    x = duals.variables(field.array([1, 2, 3]))
    cubes = x * x * x + field.array(np.ones((2, 3), dtype=np.int64))
    assert cubes.value.values.tolist() == [[2, 9, 28]] * 2
    diagonal = np.array([3, 12, 27])
    for row in range(2):
        np.testing.assert_array_equal(cubes.tangent.values[:, row], np.diag(diagonal))
