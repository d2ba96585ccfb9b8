import json

import numpy as np
import pytest

from fiberscope.analysis import symmetry_rank
from fiberscope.parameters import ParameterSpace, View
from fiberscope.symmetry import Kind, Permutation, ScaledSlot, Scaling, Slot, Translation
from tests.analysis.toy_families import LEFT, RIGHT, Products

SPACE = ParameterSpace({"a": (4,), "b": (4,)})
POINT = {"a": np.array([1.0, 2.0, 3.0, 4.0]), "b": np.zeros(4)}


def shift(name, tensor, directions):
    """Translations of one array along fixed directions, the rows of a matrix."""
    view = View.whole(tensor, (4,))
    rows = np.asarray(directions, dtype=float)
    return Translation(name, (len(rows),), (view,), lambda _, s: [(view, s @ rows)])


def test_union_counts_shared_directions_once():
    e = np.eye(4)
    first = shift("first", "a", e[:2])
    second = shift("second", "a", [e[1], e[2]])
    third = shift("third", "b", [e[0], 2 * e[0]])
    union = symmetry_rank([first, second, third], POINT, SPACE)
    assert union.value == 4
    assert [(s.generators, s.rank, s.adds) for s in union.shares] == [
        (2, 2, 2),
        (2, 2, 1),
        (2, 1, 1),
    ]
    assert [(o.between, o.dimension) for o in union.overlaps] == [(("first", "second"), 1)]
    assert union.nullity is None
    assert union.unexplained is None
    assert union.worst_residual is None
    json.dumps(union.to_dict(), allow_nan=False)


def test_lengths_of_tangents_do_not_matter():
    e = np.eye(4)
    tiny, huge = shift("tiny", "a", 1e-9 * e[:1]), shift("huge", "a", 1e9 * e[1:2])
    assert symmetry_rank([tiny, huge], POINT, SPACE).value == 2


def test_stabilizers_lower_the_rank():
    # The factor of an entry that is zero moves nothing.
    scaling = Scaling("scale b", 4, (ScaledSlot(View.whole("b", (4,)), 0),))
    union = symmetry_rank([scaling], {**POINT, "b": np.array([0.0, 1.0, 0.0, 1.0])}, SPACE)
    assert union.shares[0].generators == 4
    assert union.value == union.shares[0].rank == 2


def test_approximate_and_discrete_symmetries_add_nothing():
    a = View.whole("a", (4,))
    almost = Scaling("almost", 1, (ScaledSlot(a, ()),), kind=Kind.APPROXIMATE, broken_by="epsilon")
    order = Permutation("order", 4, (Slot(a, 0),))
    union = symmetry_rank([almost, order], POINT, SPACE)
    assert union.value == 0
    assert [(s.rank, s.adds) for s in union.shares] == [(1, 0), (0, 0)]


def test_jacobian_states_kernel_and_rest():
    family = Products()
    point = family.generic(np.random.default_rng(0))
    design = family.design(5, np.random.default_rng(1))
    jacobian = family.jacobian(point, design)
    torus = family.symmetries(design)[0]
    union = symmetry_rank([torus], point, family.space, jacobian)
    assert (union.nullity, union.value, union.unexplained) == (3, 3, 0)
    assert union.worst_residual < 1e-15
    assert symmetry_rank([], point, family.space, jacobian).unexplained == 3

    wrong = Scaling("wrong", 3, (ScaledSlot(LEFT, 0), ScaledSlot(RIGHT, 0)))
    assert symmetry_rank([wrong], point, family.space, jacobian).worst_residual > 1e-2


def test_zero_jacobian_has_everything_in_its_kernel():
    union = symmetry_rank([], POINT, SPACE, np.zeros((3, 8)))
    assert (union.nullity, union.unexplained, union.worst_residual) == (8, 8, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_order_does_not_change_the_union(seed):
    rng = np.random.default_rng(seed)
    parts = [shift(f"{i}", "a" if i % 2 else "b", rng.integers(-1, 2, (2, 4))) for i in range(4)]
    union = symmetry_rank(parts, POINT, SPACE)
    assert symmetry_rank(parts[::-1], POINT, SPACE).value == union.value
    stacked = np.concatenate([p.tangents(POINT, SPACE) for p in parts])
    assert union.value == np.linalg.matrix_rank(stacked)
