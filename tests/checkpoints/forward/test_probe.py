"""Drawing probe inputs, and observing some of the outputs."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.forward import (
    Probe,
    output_width,
    outputs,
    probe_inputs,
    readable_tokens,
)
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.checkpoints.forward.test_reading import draw


def laid_out_as(base, name, **changes):
    return architecture({**base, "architectures": [name], **changes})


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_a_seed_gives_the_same_inputs_and_outputs(config):
    laid_out = architecture(config)
    weights = draw(laid_out)
    observable = laid_out.default_observable
    found = [
        outputs(
            laid_out,
            lambda view: view.read(weights),
            probe_inputs(laid_out, seed, 2, 4),
            observable,
        )
        for seed in (0, 0, 1)
    ]
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_few_rows_are_these_rows_of_all(config):
    laid_out = architecture(config)
    if laid_out.head is None:
        with pytest.raises(InputError, match="has no logits"):
            output_width(laid_out, probe_inputs(laid_out, 0, 1, 3), Observable.LOGITS)
        return
    weights = draw(laid_out)
    # The rows are drawn first: the inputs differ, so they are taken over.
    few = probe_inputs(laid_out, 3, 2, 4, vocabulary_rows=2)
    if few.rows is None:
        assert laid_out.head.output.shape[0] <= 2
        return
    every = type(few)(few.tokens, few.types, few.vectors)
    read = lambda view: view.read(weights)  # noqa: E731
    width = laid_out.head.output.shape[0]
    assert output_width(laid_out, few, Observable.LOGITS) == 2
    logits = outputs(laid_out, read, every, Observable.LOGITS).reshape(-1, width)
    chosen = outputs(laid_out, read, few, Observable.LOGITS).reshape(-1, 2)
    np.testing.assert_allclose(chosen, logits[:, few.rows], rtol=1e-12, atol=1e-12)

    probabilities = np.exp(outputs(laid_out, read, every, Observable.PROBABILITIES))
    probabilities = probabilities.reshape(-1, width)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-12)
    conditional = np.exp(outputs(laid_out, read, few, Observable.PROBABILITIES)).reshape(-1, 2)
    expected = probabilities[:, few.rows] / probabilities[:, few.rows].sum(-1, keepdims=True)
    np.testing.assert_allclose(conditional, expected, rtol=1e-9, atol=1e-12)


def test_only_tokens_that_are_read_and_asked_for_are_drawn():
    roberta = laid_out_as(toys.ROBERTA, "RobertaForMaskedLM", pad_token_id=3)
    assert readable_tokens(roberta).tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    (drawn,) = probe_inputs(roberta, 0, 50, 3).tokens.values()
    assert set(drawn.reshape(-1)) == set(readable_tokens(roberta))
    (drawn,) = probe_inputs(roberta, 0, 50, 3, subset=np.array([3, 4, 9, 400])).tokens.values()
    assert set(drawn.reshape(-1)) == {4, 9}
    with pytest.raises(InputError, match="none of the given tokens"):
        probe_inputs(roberta, 0, 1, 3, subset=np.array([3]))


def test_shapes():
    t5 = laid_out_as(toys.T5, "T5Model")
    probe = probe_inputs(t5, 0, 2, 4)
    assert {label: ids.shape for label, ids in probe.tokens.items()} == {
        "encoder": (2, 5),
        "decoder": (2, 4),
    }
    bert = probe_inputs(laid_out_as(toys.BERT, "BertModel", type_vocab_size=3), 0, 40, 5)
    assert bert.types is not None and set(bert.types.reshape(-1)) == {0, 1, 2}
    vit = probe_inputs(laid_out_as(toys.VIT, "ViTModel"), 0, 3, 99)
    assert vit.vectors is not None and vit.vectors.shape == (3, 4, 12)


@pytest.mark.parametrize(
    ("sequences", "length", "rows"), [(0, 3, None), (1, 0, None), (1, 3, 0), (1, 6, None)]
)
def test_impossible_numbers_are_refused(sequences, length, rows):
    gpt2 = laid_out_as(toys.GPT2, "GPT2LMHeadModel")
    with pytest.raises(InputError, match="use "):
        probe_inputs(gpt2, 0, sequences, length, vocabulary_rows=rows)


def test_no_types_are_types_zero():
    bert = laid_out_as(toys.BERT, "BertModel")
    weights = draw(bert)
    probe = probe_inputs(bert, 0, 2, 4)
    zero = Probe(probe.tokens, np.zeros((2, 4), dtype=np.int64))
    found = [
        outputs(bert, lambda view: view.read(weights), each, Observable.HIDDEN)
        for each in (zero, Probe(probe.tokens), probe)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("tokens", [[[0, 11]], [[-1, 0]], [[0, 1, 2, 3, 4, 5]]])
def test_inputs_that_a_table_has_no_row_for_are_refused(tokens):
    gpt2 = laid_out_as(toys.GPT2, "GPT2Model")
    weights = draw(gpt2)
    probe = Probe({"residual stream": np.array(tokens)})
    with pytest.raises(InputError, match="has no row for index"):
        outputs(gpt2, lambda view: view.read(weights), probe, Observable.HIDDEN)
