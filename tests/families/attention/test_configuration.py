import doctest

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.families import AttentionConfiguration, MultiHeadAttention, QueryKeyNorm

SIZES = {"input_width": 4, "heads": 4, "query_width": 4, "value_width": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_width": 0}, "input_width is 0"),
        ({"heads": 0}, "heads is 0"),
        ({"query_width": -1}, "query_width is -1"),
        ({"value_width": 0}, "value_width is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"groups": 0}, "groups is 0"),
        ({"groups": 3}, "4 heads cannot be shared evenly by 3"),
        ({"biases": {"keys"}}, r"Unknown attention biases \['keys'\]"),
        ({"tokens": 1}, "at least 2 tokens"),
        ({"depth": 2, "output_width": 3}, "input width is 4 and the output width 3"),
        ({"residual": True, "output_width": 3}, "equal widths"),
        ({"query_width": 1, "norm": QueryKeyNorm.PLAIN}, "keep only their sign"),
        ({"rotated": 3}, "Cannot rotate 3 of 4"),
        ({"rotated": 6}, "Cannot rotate 6 of 4"),
        ({"rotated": -2}, "Cannot rotate -2 of 4"),
        ({"query_width": 3, "rotated": 3}, "must be even"),
        ({"rotated": 4, "frequencies": (1.0,)}, "1 rotary frequencies were given for 2"),
        ({"frequencies": (1.0,)}, "for 0 rotated planes"),
        ({"rotated": 4, "frequencies": (1.0, 0.0)}, "frequency 0.0 is not between"),
        ({"rotated": 4, "frequencies": (4.0, 1.0)}, "frequency 4.0 is not between"),
        ({"rotated": 4, "frequencies": (1.0, float("nan"))}, "frequency nan"),
    ],
)
def test_bad_arguments_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message) as caught:
        MultiHeadAttention(**{**SIZES, **options})
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text


def test_names_and_shapes():
    family = MultiHeadAttention(
        input_width=4,
        output_width=5,
        heads=4,
        groups=2,
        query_width=3,
        value_width=2,
        biases={"query", "key", "value", "output"},
        norm=QueryKeyNorm.HEAD_GAINS,
    )
    assert family.space.shapes == {
        "query": (4, 3, 4),
        "key": (2, 3, 4),
        "value": (2, 2, 4),
        "output": (4, 5, 2),
        "query_bias": (4, 3),
        "key_bias": (2, 3),
        "value_bias": (2, 2),
        "output_bias": (5,),
        "query_gain": (4, 3),
        "key_gain": (2, 3),
    }
    stack = MultiHeadAttention(**SIZES, depth=2, norm=QueryKeyNorm.SHARED_GAINS)
    assert next(iter(stack.space.shapes)) == "layers.0.query"
    assert stack.space.shapes["layers.1.key_gain"] == (4,)


def test_generic_points_have_their_shapes_and_seeds():
    family = MultiHeadAttention(**SIZES, biases={"key"}, norm=QueryKeyNorm.SHARED_GAINS)
    one, two = (family.generic(np.random.default_rng(3)) for _ in range(2))
    family.space.check(one)
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "complete"),
    [
        ({}, True),
        ({"query_width": 6, "rotated": 2}, False),
        ({"query_width": 6}, True),
        ({"query_width": 6, "groups": 2}, False),
        ({"value_width": 5, "output_width": 6}, False),
        ({"value_width": 5, "groups": 2}, False),
        ({"causal": True, "rotated": 2, "tokens": 2}, False),
        ({"depth": 2}, True),
        ({"depth": 3}, False),
        ({"depth": 3, "residual": True}, True),
        ({"depth": 2, "heads": 1}, False),
        ({"depth": 2, "biases": {"output"}}, False),
        ({"depth": 2, "biases": {"output", "query"}}, True),
        ({"depth": 2, "biases": {"output", "query"}, "rotated": 2}, False),
    ],
)
def test_completeness_is_claimed_where_it_holds(options, complete):
    assert AttentionConfiguration(**{**SIZES, **options}).complete is complete


def test_example_in_the_documentation():
    import fiberscope.families.attention.family as module

    found = doctest.testmod(module)
    assert (found.failed, found.attempted) == (0, 4)
