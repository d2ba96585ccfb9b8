"""Heads that attend alike: their values can be mixed, so they are counted."""

import numpy as np
import pytest

from fiberscope.checkpoints.canonical import canonical_parameters
from fiberscope.checkpoints.canonical.equal_heads import EQUAL_HEADS
from fiberscope.checkpoints.forward import outputs, probe_inputs
from fiberscope.checkpoints.moves.exceptional import group_mixing, head_shift
from fiberscope.checkpoints.writing import FORMATS
from tests.checkpoints.canonical.test_ill_conditioned import (
    LIMITS,
    case_name,
    moved,
    set_up,
    stored,
)
from tests.checkpoints.ledger.toys import bert, gpt2, llama, neox

GROUPS = [
    (gpt2(), "logits"),
    (bert(), "hidden"),
    (neox(), "logits"),
    (llama(num_key_value_heads=2), "logits"),
    (llama("qwen3", "Qwen3ForCausalLM", vocab_size=24, num_key_value_heads=2), "logits"),
]


def with_equal_heads(attention, parameters, *, group_wise):
    """Queries (and keys) of the first two heads agree; their values and outputs do not."""
    parameters = {name: value.copy() for name, value in parameters.items()}
    views = [attention.query, attention.query_bias]
    if group_wise:
        views += [attention.key, attention.key_bias]
    for view in views:
        if view is not None:
            rows = view.read(parameters)
            if group_wise:
                rows[1] = rows[0]
            else:
                rows[:, 1] = rows[:, 0]
            view.write(parameters, rows)
    return parameters


def listed(computed):
    return [(p.where, p.count) for p in computed.places.found if p.mechanism == EQUAL_HEADS]


@pytest.mark.parametrize("condition", [1.0, 1000.0])
@pytest.mark.parametrize("case", GROUPS, ids=case_name)
def test_equal_groups_are_counted(case, condition):
    found, observable, wiring, parameters = set_up(case)
    attention = wiring.attentions[0]
    for dtype in FORMATS:
        _, computed = canonical_parameters(found, stored(parameters, dtype), observable)
        assert listed(computed) == [], dtype
    parameters = with_equal_heads(attention, parameters, group_wise=True)
    symmetry = group_mixing(attention, np.arange(2)).symmetry
    other = symmetry.act(symmetry.random(np.random.default_rng(0)), dict(parameters))
    probe = probe_inputs(found, 0, 2, 4)
    one, two = (
        outputs(found, lambda view, p=p: view.read(p), probe, observable)
        for p in (parameters, other)
    )
    assert np.abs(one - two).max() < 1e-12 * np.abs(one).max()
    for dtype in LIMITS:
        first = stored(other, dtype)
        copy = stored(moved(found, observable, first, 4, condition), dtype)
        for model in (first, copy):
            _, computed = canonical_parameters(found, model, observable)
            assert listed(computed) == [(attention.label, 1)], dtype


def test_equal_heads_of_one_group_are_counted():
    case = (llama(num_attention_heads=4, num_key_value_heads=2), "logits")
    found, observable, wiring, parameters = set_up(case)
    attention = wiring.attentions[0]
    parameters = with_equal_heads(attention, parameters, group_wise=False)
    symmetry = head_shift(attention, 0, np.arange(2)).symmetry
    other = symmetry.act(symmetry.random(np.random.default_rng(0)), dict(parameters))
    for model in (parameters, moved(found, observable, other, 4, 30.0)):
        _, computed = canonical_parameters(found, model, observable)
        # Both heads of both groups.
        assert listed(computed) == [(attention.label, 2)]


@pytest.mark.parametrize("apart", [1e-3, 1e-6])
def test_heads_that_differ_are_not_counted(apart):
    found, observable, wiring, parameters = set_up((gpt2(), "logits"))
    attention = wiring.attentions[0]
    parameters = with_equal_heads(attention, parameters, group_wise=True)
    query = attention.query.read(parameters)
    query[1, 0, 0, 0] += apart
    attention.query.write(parameters, query)
    _, computed = canonical_parameters(found, parameters, observable)
    assert listed(computed) == []
