import numpy as np
import pytest

from fiberscope.numbers.fields import ResidueField
from fiberscope.numbers.smith import smith_orders

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
