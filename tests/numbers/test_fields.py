from fractions import Fraction

import numpy as np
import pytest

from fiberscope.numbers.fields import Field, RationalField, RealField, ResidueField

FIELDS: list[Field] = [RealField(), ResidueField(), RationalField()]


def cast(field: Field, matrix: np.ndarray) -> np.ndarray:
    if isinstance(field, RationalField):
        return np.vectorize(Fraction, otypes=[object])(matrix)
    return matrix.astype(np.int64 if isinstance(field, ResidueField) else np.float64)


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize(("rows", "columns", "rank"), [(5, 7, 3), (7, 5, 4), (4, 4, 4), (3, 6, 0)])
def test_rank_and_nullspace(field: Field, rows: int, columns: int, rank: int) -> None:
    rng = np.random.default_rng(rows)
    matrix = cast(field, rng.integers(-9, 9, (rows, rank)) @ rng.integers(-9, 9, (rank, columns)))
    assert field.rank(matrix) == rank
    basis = field.nullspace(matrix)
    assert basis.shape == (columns, columns - rank)
    product = field.reduce(matrix @ basis)
    assert np.allclose(product.astype(np.float64), 0, atol=1e-10)
    assert field.rank(basis) == columns - rank


def test_residue_pivots_are_the_first_independent_columns() -> None:
    matrix = np.array([[1, 2, 0, 1], [2, 4, 1, 0], [3, 6, 1, 1]])
    assert ResidueField().pivot_columns(matrix) == [0, 2]
