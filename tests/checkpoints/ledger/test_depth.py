"""Deep models: the work grows with the number of layers, and so do the counts."""

from __future__ import annotations

from cProfile import Profile

import pytest

from fiberscope.checkpoints.architecture.config import LARGEST_DEPTH
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys

DEEP = [
    (toys.GPT2, "GPT2LMHeadModel", "n_layer"),
    (toys.BERT, "BertForMaskedLM", "num_hidden_layers"),
    (toys.NEOX, "GPTNeoXForCausalLM", "num_hidden_layers"),
    (toys.T5, "T5ForConditionalGeneration", "num_layers"),
]


def drawn_up(base, name, key, layers):
    return ledger(architecture({**base, "architectures": [name], key: layers}))


@pytest.mark.parametrize(("base", "name", "key"), DEEP)
def test_the_work_grows_like_the_depth(base, name, key):
    def calls(layers):
        with Profile() as profile:
            drawn_up(base, name, key, layers)
        return sum(entry.callcount for entry in profile.getstats())

    few, many = calls(50), calls(400)
    # Linear work takes 8 times as many calls, quadratic work 64 times.
    assert many < 9 * few


@pytest.mark.parametrize(("base", "name", "key"), DEEP)
def test_every_further_layer_adds_the_same(base, name, key):
    two, three, deep = (drawn_up(base, name, key, layers) for layers in (2, 3, 300))
    for count in ("parameters", "undetermined", "effective"):
        a, b, c = (getattr(found, count) for found in (two, three, deep))
        assert c == a + 298 * (b - a)


def test_deeper_models_are_refused():
    config = {**toys.GPT2, "n_layer": LARGEST_DEPTH + 1}
    with pytest.raises(InputError, match="'n_layer' is 1001, but at most 1,000 layers"):
        architecture(config)
