"""Elements of a given condition number: they stay in their group to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY
from fiberscope.checkpoints.moves import Catalogue
from fiberscope.checkpoints.moves.drawing import draw_element
from fiberscope.symmetry import RotaryCommutant
from tests.checkpoints.equality.pairs import laid_out
from tests.checkpoints.ledger import toys


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e9])
def test_small_and_large_planes_commute_with_their_rotations(condition: float) -> None:
    """A plane is a complex number: the rounding of a larger plane has no place in it."""
    model = laid_out(toys.llama(head_dim=6))
    catalogue = Catalogue(model, model.default_observable)
    key = next(key for key in catalogue.items if key.mechanism == QUERY_KEY)
    symmetry = catalogue.symmetry(key)
    assert isinstance(symmetry, RotaryCommutant)
    for seed in range(20):
        matrix = np.asarray(draw_element(symmetry, np.random.default_rng(seed), condition))
        sizes = []
        rest = matrix.copy()
        for (first, second), *more in symmetry.blocks:
            assert not more
            assert (matrix[:, first, first] == matrix[:, second, second]).all()
            assert (matrix[:, first, second] == -matrix[:, second, first]).all()
            sizes.append(np.hypot(matrix[:, first, first], matrix[:, second, first]))
            for row in (first, second):
                rest[:, row, [first, second]] = 0.0
        assert not rest.any()
        ratio = np.max(sizes, axis=0) / np.min(sizes, axis=0)
        assert np.allclose(ratio, condition, rtol=1e-6)
