"""Gains of exactly zero, which no witness may divide by, and heads that are not observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.equality.comparison import compare_models
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import Parameters, compared, drawn, laid_out, output_change
from tests.checkpoints.ledger import toys

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "rotations of the stream": toys.llama(hidden_size=8),
    "tied, signs and permutations": toys.llama(hidden_size=8, tie_word_embeddings=True),
    "constants along 1 / gain": toys.gpt2(n_embd=8),
    "post-norm": toys.bert(hidden_size=8, num_hidden_layers=2),
}


def with_zero_gains(config: dict[str, Any]) -> tuple[Any, Parameters]:
    """A toy whose first inner norm reads neither of two features."""
    model = laid_out(config)
    source = drawn(model, 3)
    points = wire(model, model.default_observable).points
    gain = points[min(1, len(points) - 1)].norm.gain
    assert gain is not None
    values = gain.read(source)
    values[[1, 4]] = 0.0
    gain.write(source, values)
    return model, source


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_zero_gains_are_the_same_as_themselves(config: dict[str, Any]) -> None:
    model, source = with_zero_gains(config)
    found = compared(model, source, {name: value.copy() for name, value in source.items()})
    assert found.outcome is Outcome.SAME, found.reason


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_zero_gains_are_the_same_as_a_moved_copy(config: dict[str, Any]) -> None:
    model, source = with_zero_gains(config)
    move = RandomMove(Catalogue(model, model.default_observable), 5)
    copy = {k: np.array(v) for k, v in move.tensors(lambda name: source[name].copy())}
    assert output_change(model, source, copy) < 1e-12
    for one, other in ((source, copy), (copy, source)):
        found = compared(model, one, other)
        assert found.outcome is Outcome.SAME, found.reason
        assert found.witness is not None
        assert output_change(model, one, found.witness.apply(one)) < 1e-10


def test_a_head_that_is_not_observed_is_announced() -> None:
    model = laid_out(toys.bert(cls="BertForMaskedLM", hidden_size=8, vocab_size=30))
    source = drawn(model, 2)
    copy = dict(source)
    copy["cls.predictions.transform.dense.weight"] = (
        1.1 * source["cls.predictions.transform.dense.weight"]
    )
    found = compared(model, source, copy)
    assert found.outcome is Outcome.SAME
    assert any("heads are not compared" in note for note in found.notes)
    found = compared(model, source, copy, "logits")
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference == "head dense layer"


def test_a_class_with_a_head_and_one_without_have_one_hidden_state() -> None:
    with_head = laid_out(toys.bert(cls="BertForMaskedLM", hidden_size=8))
    without = laid_out(toys.bert(hidden_size=8))
    source = drawn(with_head, 2)
    body = drawn(without, 7)  # keeps its own pooler, which the hidden state does not read
    body |= {
        name.removeprefix("bert."): value
        for name, value in source.items()
        if name.removeprefix("bert.") in without.tensors
    }
    found = compare_models(
        StoredModel.of(with_head, source, "hidden", "first"),
        StoredModel.of(without, body, "hidden", "second"),
    )
    assert found.outcome is Outcome.SAME, found.reason
    name = next(n for n in body if n.endswith("layer.0.output.dense.weight"))
    changed = body | {name: 1.01 * body[name]}
    found = compare_models(
        StoredModel.of(with_head, source, "hidden", "first"),
        StoredModel.of(without, changed, "hidden", "second"),
    )
    assert found.outcome is Outcome.DIFFERENT
