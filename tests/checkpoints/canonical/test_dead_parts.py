"""Parts without effect take nothing along that only rounding, or a sign, decides."""

import pytest

from fiberscope.checkpoints.canonical import canonical_parameters
from fiberscope.checkpoints.ledger.rules.discrete import NEURON_PERMUTATION
from fiberscope.checkpoints.writing import FORMATS
from tests.checkpoints.canonical.test_ill_conditioned import (
    LIMITS,
    apart,
    case_name,
    is_settled,
    moved,
    set_up,
    stored,
)
from tests.checkpoints.ledger.toys import bert, distilbert, gpt2, llama


def without_rows(parameters, count, *views):
    """The first neurons' rows, and their biases, are zero."""
    parameters = {name: value.copy() for name, value in parameters.items()}
    for view in views:
        if view is not None:
            rows = view.read(parameters)
            rows[:count] = 0.0
            view.write(parameters, rows)
    return parameters


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("case", "role"),
    [
        ((llama(), "logits"), "up"),
        ((llama(), "logits"), "gate"),
        ((llama(hidden_act="relu", mlp_bias=True), "logits"), "up"),
        ((gpt2(activation_function="tanh"), "logits"), "up"),
        ((gpt2(activation_function="relu"), "logits"), "up"),
        ((bert(), "hidden"), "up"),
        ((bert(cls="BertForMaskedLM"), "logits"), "up"),
    ],
    ids=lambda value: value if isinstance(value, str) else case_name(value),
)
def test_neurons_that_never_switch_have_one_form(case, role, seed, count):
    """What such a neuron writes has no effect, and its sign moves with no other part."""
    found, observable, wiring, parameters = set_up(case, seed)
    mlp = wiring.mlps[0]
    views = (mlp.gate, mlp.gate_bias) if role == "gate" else (mlp.up, mlp.up_bias)
    parameters = without_rows(parameters, count, *views)
    for dtype, limit in LIMITS.items():
        first = stored(parameters, dtype)
        second = stored(moved(found, observable, first, seed + 7, 30.0), dtype)
        form, before = canonical_parameters(found, first, observable)
        other, after = canonical_parameters(found, second, observable)
        listed = [place.mechanism for place in before.places.found + after.places.found]
        # Two gates of zero, or of length one, are in no order.
        assert not listed or (count == 2 and set(listed) == {NEURON_PERMUTATION})
        assert listed or apart(form, other) < limit, dtype
    for dtype in FORMATS:
        form, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        assert is_settled(found, observable, form, dtype), dtype


@pytest.mark.parametrize("seed", range(3))
def test_queries_that_read_nothing_are_exactly_zero(seed):
    """Only its bias is left of a query: what balancing leaves in the weight is rounding."""
    found, observable, wiring, parameters = set_up((distilbert(), "hidden"), seed)
    attention = wiring.attentions[0]
    query = attention.query.read(parameters)
    query[...] = 0.0
    attention.query.write(parameters, query)
    for copy in (parameters, moved(found, observable, parameters, seed, 30.0)):
        form, _ = canonical_parameters(found, copy, observable)
        assert not attention.query.read(form).any()
        assert attention.query_bias.read(form).any()
