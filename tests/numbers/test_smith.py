from fractions import Fraction

import numpy as np
import pytest

from fiberscope.numbers.fields import ResidueField
from fiberscope.numbers.smith import rational_smith_orders, smith_orders

FIELD = ResidueField()


def random_unit(size: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Matrix of power series, invertible at zero (almost surely: random residues)."""
    return rng.integers(0, FIELD.modulus, (length, size, size))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cauchy product by Python integers, entry by entry."""
    length = a.shape[0]
    out = np.zeros((length, a.shape[1], b.shape[2]), dtype=object)
    for i in range(length):
        for j in range(length - i):
            out[i + j] += a[i].astype(object) @ b[j].astype(object)
    return (out % FIELD.modulus).astype(np.int64)


@pytest.mark.parametrize("orders", [[0, 0, 3], [1, 5, 5, 9], [2], [0, 1, 2, 3, 4]])
def test_factors_of_a_disguised_diagonal(orders: list[int]) -> None:
    rng = np.random.default_rng(sum(orders))
    length, rows, columns = 12, len(orders) + 3, len(orders) + 2
    diagonal = np.zeros((length, rows, columns), dtype=np.int64)
    for k, order in enumerate(orders):
        diagonal[order, k, k] = int(rng.integers(1, FIELD.modulus))
    hidden = product(
        product(random_unit(rows, length, rng), diagonal), random_unit(columns, length, rng)
    )
    found = smith_orders(hidden, FIELD)
    expected = {order: orders.count(order) for order in sorted(set(orders))}
    assert found.multiplicities == expected
    assert (found.unresolved, found.rank, found.precision) == (2, len(orders), length)


def test_orders_beyond_the_truncation_stay_unresolved() -> None:
    matrix = np.zeros((4, 2, 2), dtype=np.int64)
    matrix[1, 0, 0] = 1
    assert smith_orders(matrix, FIELD).unresolved == 1
    assert smith_orders(np.zeros((4, 2, 3), dtype=np.int64), FIELD).unresolved == 3


def test_rational_factors_of_a_disguised_diagonal() -> None:
    pytest.importorskip("flint")
    rng = np.random.default_rng(4)
    length, orders = 8, [0, 1, 1, 4]
    diagonal = np.zeros((length, 6, 5), dtype=object)
    for k, order in enumerate(orders):
        diagonal[order, k, k] = Fraction(int(rng.integers(1, 9)), int(rng.integers(1, 9)))

    def unit(size: int) -> np.ndarray:
        """Invertible at zero: a triangular leading coefficient with ones on its diagonal."""
        drawn = rng.integers(-3, 4, (length, size, size)).astype(object)
        drawn[0] = np.triu(drawn[0], 1) + np.eye(size, dtype=int)
        return drawn

    def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.stack([sum(a[i] @ b[k - i] for i in range(k + 1)) for k in range(length)])

    hidden = times(times(unit(6), diagonal), unit(5))
    found = rational_smith_orders(hidden)
    assert found.multiplicities == {0: 1, 1: 2, 4: 1}
    assert (found.unresolved, found.precision) == (1, length)
    residues = np.vectorize(
        lambda x: Fraction(x).numerator * pow(Fraction(x).denominator, -1, FIELD.modulus)
    )(hidden)
    assert smith_orders(residues.astype(object) % FIELD.modulus, FIELD) == found


def test_a_prime_can_raise_orders() -> None:
    pytest.importorskip("flint")
    matrix = np.zeros((4, 2, 2), dtype=object)
    matrix[0, 0, 0], matrix[2, 0, 0], matrix[1, 1, 1] = 3, 1, Fraction(1, 2)
    assert rational_smith_orders(matrix).multiplicities == {0: 1, 1: 1}
    halved = 2 * matrix
    small = smith_orders(halved.astype(np.int64), ResidueField(3))
    assert small.multiplicities == {1: 1, 2: 1}
    assert smith_orders(halved.astype(np.int64), FIELD).multiplicities == {0: 1, 1: 1}
    zero = rational_smith_orders(np.zeros((3, 2, 4), dtype=int))
    assert (zero.unresolved, zero.rank) == (4, 0)
