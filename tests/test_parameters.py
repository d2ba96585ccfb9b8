import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiberscope.errors import InputError
from fiberscope.parameters import ParameterSpace, View

SPACE = ParameterSpace({"a": (2, 3), "scalar": (), "none": (0, 4), "b": (2,)})


def test_order_size_and_windows():
    assert SPACE.size == 9
    assert dict(SPACE.slices()) == {
        "a": slice(0, 6),
        "scalar": slice(6, 7),
        "none": slice(7, 7),
        "b": slice(7, 9),
    }


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, object])
def test_vector_and_parameters_are_inverse(dtype):
    vector = np.arange(9).astype(dtype)
    named = SPACE.parameters(vector)
    SPACE.check(named)
    again = SPACE.vector(named)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, vector)
    named["a"][0, 0] = 100
    assert vector[0] == 0


def test_empty_space():
    empty = ParameterSpace({})
    assert empty.size == 0
    assert empty.vector({}).shape == (0,)
    assert empty.parameters(np.zeros(0)) == {}


def test_wrong_names_and_shapes_are_bad_input():
    named = SPACE.parameters(np.zeros(9))
    with pytest.raises(InputError, match=r"missing parameters: \['b'\]"):
        SPACE.vector({k: v for k, v in named.items() if k != "b"})
    with pytest.raises(InputError, match=r"unknown parameters: \['c'\]"):
        SPACE.vector({**named, "c": np.zeros(1)})
    with pytest.raises(InputError, match=r"a has shape \(3, 2\), expected \(2, 3\)"):
        SPACE.vector({**named, "a": np.zeros((3, 2))})
    with pytest.raises(InputError, match=r"shape \(9,\) is needed"):
        SPACE.parameters(np.zeros(8))


def test_view_of_a_fused_layout_reads_and_writes():
    # Rows hold, head by head, queries, keys and values of width 2: heads x 3 x 2.
    stored = np.arange(12.0 * 5).reshape(12, 5)
    keys = View.whole("fused", (12, 5)).split(0, 2, 3, 2).index(1, 1)
    assert keys.shape == (2, 2, 5)
    assert keys.size == 20
    direct = np.stack([stored[2:4], stored[8:10]])
    np.testing.assert_array_equal(keys.read({"fused": stored}), direct)

    parameters = {"fused": stored.copy()}
    keys.write(parameters, -direct)
    expected = stored.copy()
    expected[2:4] *= -1
    expected[8:10] *= -1
    np.testing.assert_array_equal(parameters["fused"], expected)


def test_view_of_an_interleaved_and_transposed_layout():
    stored = np.arange(24.0).reshape(4, 6)
    # Columns are (pair, part); the view is (part, pair, row).
    view = View.whole("w", (4, 6)).split(1, 3, 2).permute(2, 1, 0)
    window = view.read({"w": stored})
    for part in range(2):
        for pair in range(3):
            np.testing.assert_array_equal(window[part, pair], stored[:, 2 * pair + part])


def test_view_after_a_permutation_still_writes():
    stored = {"w": np.zeros((4, 3))}
    view = View.whole("w", (4, 3)).permute(1, 0).split(1, 2, 2)
    view.write(stored, np.arange(12.0).reshape(3, 2, 2))
    np.testing.assert_array_equal(stored["w"], np.arange(12.0).reshape(3, 4).T)


def test_offset_is_added_on_reading_and_taken_off_on_writing():
    parameters = {"gain": np.array([0.0, 0.5])}
    view = View.whole("gain", (2,), offset=1.0)
    np.testing.assert_array_equal(view.read(parameters), [1.0, 1.5])
    view.write(parameters, np.array([3.0, 4.0]))
    np.testing.assert_array_equal(parameters["gain"], [2.0, 3.0])


def test_writing_back_what_was_read_changes_nothing():
    rng = np.random.default_rng(0)
    parameters = {"w": rng.standard_normal((6, 4))}
    view = View.whole("w", (6, 4)).slice(0, 1, 5).split(0, 2, 2).permute(2, 0, 1)
    before = parameters["w"].copy()
    view.write(parameters, view.read(parameters).copy())
    np.testing.assert_array_equal(parameters["w"], before)


@pytest.mark.parametrize(
    "make",
    [
        lambda v: v.split(0, 2, 2),
        lambda v: v.slice(0, 2, 7),
        lambda v: v.slice(1, 3, 2),
        lambda v: v.index(1, 4),
        lambda v: v.index(1, -1),
        lambda v: v.permute(0, 0),
        lambda v: v.permute(0),
    ],
)
def test_views_that_do_not_fit(make):
    with pytest.raises(ValueError, match="w"):
        make(View.whole("w", (6, 4)))


def test_view_of_another_shape():
    with pytest.raises(ValueError, match=r"w has shape \(4, 6\), not \(6, 4\)"):
        View.whole("w", (6, 4)).read({"w": np.zeros((4, 6))})


@given(st.data())
def test_views_see_every_entry_once(data):
    """Any chain of splits, slices and permutations is a window: distinct stored entries."""
    shape = (4, 6)
    stored = np.arange(24.0).reshape(shape)
    view = View.whole("w", shape)
    for _ in range(data.draw(st.integers(0, 4))):
        axis = data.draw(st.integers(0, len(view.shape) - 1))
        size = view.shape[axis]
        match data.draw(st.sampled_from(["split", "slice", "permute", "index"])):
            case "split":
                factors = [k for k in range(1, size + 1) if size % k == 0] or [1]
                first = data.draw(st.sampled_from(factors))
                if size:
                    view = view.split(axis, first, size // first)
            case "slice":
                start = data.draw(st.integers(0, size))
                view = view.slice(axis, start, data.draw(st.integers(start, size)))
            case "permute":
                view = view.permute(*data.draw(st.permutations(range(len(view.shape)))))
            case "index" if size and len(view.shape) > 1:
                view = view.index(axis, data.draw(st.integers(0, size - 1)))
    window = view.read({"w": stored})
    assert window.shape == view.shape
    assert len(set(window.ravel().tolist())) == view.size
    if view.size:
        assert np.shares_memory(window, stored)
