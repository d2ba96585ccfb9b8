"""Minimal filling architectures against the published complete lists."""

import pytest

pytest.importorskip("flint")

from fiberscope.families.polynomial.filling import is_unimodal, minimal_filling

SEVEN = """
2,3,3,4,5,6,3,1 2,3,3,4,6,5,2,1 2,3,3,5,5,5,4,1 2,3,3,5,6,4,4,1 2,3,3,5,7,4,2,1
2,3,3,6,6,4,3,1 2,3,4,4,5,5,4,1 2,3,4,5,4,6,4,1 2,3,4,5,5,4,4,1 2,3,4,5,5,5,2,1
2,3,4,5,6,4,2,1 2,3,4,6,5,4,3,1 2,3,5,5,5,4,3,1
"""


def parse(text):
    return tuple(tuple(int(d) for d in widths.split(",")) for widths in text.split())


@pytest.mark.parametrize(
    ("inputs", "outputs", "layers", "degree", "largest", "wanted"),
    [
        (2, 1, 2, 2, 5, "2,2,1"),
        (2, 1, 3, 2, 5, "2,2,2,1"),
        (2, 1, 4, 2, 5, "2,3,3,2,1"),
        (2, 1, 5, 2, 5, "2,3,3,3,2,1"),
        (2, 1, 6, 2, 5, "2,3,3,4,4,2,1"),
        (2, 2, 4, 2, 5, "2,3,3,3,2"),
        (2, 2, 5, 2, 5, "2,3,3,4,4,2"),
        (2, 3, 4, 2, 5, "2,3,4,4,3"),
        (3, 1, 4, 2, 6, "3,5,6,4,1"),
        (2, 2, 3, 3, 6, "2,3,5,2 2,4,4,2"),
        (3, 2, 2, 3, 7, "3,6,2"),
    ],
)
def test_published_lists(inputs, outputs, layers, degree, largest, wanted):
    found = minimal_filling(inputs, outputs, layers, degree, largest)
    assert found.minimal == parse(wanted)
    assert found.error_probability < 1e-8
    assert len(found.certificates) == len(found.minimal)


def test_seven_layers():
    found = minimal_filling(2, 1, 7, 2, 7)
    assert found.minimal == parse(SEVEN)
    assert found.non_unimodal == ((2, 3, 4, 5, 4, 6, 4, 1),)
    assert found.ambient == 65
    # Monotonicity settles nearly all of them.
    assert found.ranks < found.examined / 100


def test_unimodal():
    assert is_unimodal((1, 2, 2, 3, 1))
    assert is_unimodal((3, 2, 1))
    assert not is_unimodal((2, 3, 2, 3))
