"""Models in which something is missing: zero tables and gains, few tokens, one frequency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality.alignment import Alignment
from fiberscope.checkpoints.equality.decision import _decide
from fiberscope.checkpoints.equality.frame import Frame
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import (
    FORMATS,
    Parameters,
    compared,
    drawn,
    laid_out,
    moved,
    output_change,
    stored,
)
from tests.checkpoints.ledger import toys

EMBEDDING = "model.embed_tokens.weight"


def rounded(parameters: Parameters, form: str) -> Parameters:
    """The numbers of a file, exactly."""
    return {name: value.astype(np.float64) for name, value in stored(parameters, form).items()}


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize(
    "config",
    [
        toys.llama(tie_word_embeddings=True),
        toys.llama(hidden_size=1, vocab_size=3),
        toys.llama("gemma", "GemmaForCausalLM", tie_word_embeddings=False),
    ],
)
def test_a_zero_embedding_shows_no_frame(config: dict[str, Any], form: str) -> None:
    """Coordinates that the tables do not tell apart are no ground for a difference."""
    model = laid_out(config)
    source = rounded(drawn(model, 1), form)
    source[EMBEDDING] = np.zeros_like(source[EMBEDDING])
    for seed in range(3):
        copy = stored(moved(model, source, seed), form)
        found = compared(model, stored(source, form), copy)
        assert found.outcome is not Outcome.DIFFERENT, found.reason


def test_one_column_without_entries_has_no_sign() -> None:
    model = laid_out(toys.llama(tie_word_embeddings=True))
    source = drawn(model, 1)
    source[EMBEDDING][:, 2] = 0.0
    copy = {name: value.copy() for name, value in source.items()}
    wiring = wire(model, model.default_observable)
    for segment in wiring.segments:
        for writer in segment.writers:
            array = np.moveaxis(writer.view.read(copy), writer.axis, 0)
            array[2] *= -1.0
            writer.view.write(copy, np.moveaxis(array, 0, writer.axis))
    for point in wiring.points:
        for reader in point.readers:
            if not reader.tied:
                array = reader.weight.read(copy)
                array[..., 2] *= -1.0
                reader.weight.write(copy, array)
    assert output_change(model, source, copy) < 1e-12
    for form in FORMATS:
        found = compared(model, stored(source, form), stored(copy, form))
        assert found.outcome is not Outcome.DIFFERENT, found.reason


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_constant_function(form: str) -> None:
    """A final gain of zero makes all logits zero; the copy is SAME, its witness finite."""
    model = laid_out(toys.llama())
    source = rounded(drawn(model, 1), form)
    source["model.norm.weight"] = np.zeros_like(source["model.norm.weight"])
    found = compared(model, stored(source, form), stored(source, form))
    assert found.outcome is Outcome.SAME, found.reason
    assert found.witness is not None
    assert all(np.isfinite(value).all() for value in found.witness.apply(source).values())


@pytest.mark.parametrize("form", list(FORMATS))
def test_fewer_tokens_than_features(form: str) -> None:
    """The frame is open in some directions, but tables that differ do so in every frame."""
    model = laid_out(toys.llama(hidden_size=8, vocab_size=5))
    first, second = drawn(model, 1), drawn(model, 2)
    found = compared(model, stored(first, form), stored(second, form))
    assert found.outcome is Outcome.DIFFERENT, found.reason
    assert found.first_difference == "token embedding"
    found = compared(model, stored(first, form), stored(moved(model, first, 3), form))
    assert found.outcome is not Outcome.DIFFERENT, found.reason


@pytest.mark.parametrize("form", list(FORMATS))
def test_heads_whose_planes_share_a_frequency(form: str) -> None:
    """Planes that can be mixed with each other must not tell heads apart by their order."""
    model = laid_out(
        toys.llama(rope_theta=1.0, num_attention_heads=4, num_key_value_heads=1, hidden_size=12)
    )
    for seed in range(4):
        source = rounded(drawn(model, seed), form)
        copy = stored(moved(model, source, seed + 10), form)
        found = compared(model, stored(source, form), copy)
        assert found.outcome is Outcome.SAME, found.reason


@pytest.mark.parametrize("role", ["query", "output"])
def test_gains_of_normalised_heads_that_nothing_reads(role: str) -> None:
    model = laid_out(toys.llama("qwen3", "Qwen3ForCausalLM", vocab_size=24))
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    view = getattr(attention, role)
    view.write(source, np.zeros(view.shape))
    copy = {name: value.copy() for name, value in source.items()}
    assert attention.query_norm is not None and attention.query_norm.gain is not None
    gain = attention.query_norm.gain
    gain.write(copy, gain.read(copy)[::-1] * 3.0)
    assert output_change(model, source, copy) == 0.0
    for form in FORMATS:
        found = compared(model, stored(source, form), stored(copy, form))
        assert found.outcome is Outcome.SAME, found.reason


def test_tables_that_leave_a_block_of_equal_gains_open() -> None:
    """Two tokens cannot show a rotation of three coordinates."""
    model = laid_out(toys.llama(tie_word_embeddings=True, hidden_size=3, vocab_size=2))
    source = drawn(model, 1)
    source["model.norm.weight"] = np.ones(3)
    source[EMBEDDING][1] = source[EMBEDDING][0]
    move = RandomMove(Catalogue(model, Observable.LOGITS), 5)
    copy = {k: np.array(v) for k, v in move.tensors(lambda name: source[name].copy())}
    assert output_change(model, source, copy) < 1e-9
    for form in FORMATS:
        found = compared(model, source, stored(copy, form))
        assert found.outcome is not Outcome.DIFFERENT, found.reason


@pytest.mark.parametrize("form", ["float64", "float32"])
@pytest.mark.parametrize(
    ("config", "name", "observable"),
    [
        (
            toys.gpt2(n_embd=8, n_inner=12, vocab_size=32, tie_word_embeddings=False),
            "transformer.ln_f.bias",
            "probabilities",
        ),
        (toys.neox(), "gpt_neox.final_layer_norm.bias", "logits"),
        (
            toys.vit("ViTForImageClassification", qkv_bias=False, num_labels=6),
            "vit.layers.0.layernorm_before.bias",
            "logits",
        ),
        (
            toys.opt(tie_word_embeddings=False, enable_bias=False),
            "model.decoder.layers.0.self_attn_layer_norm.bias",
            "logits",
        ),
    ],
)
def test_a_norm_bias_of_zero_behind_which_a_reader_has_no_bias(
    config: dict[str, Any], name: str, observable: str, form: str
) -> None:
    """No finite step shifts a norm's bias to zero there; the models are the same all the same."""
    model = laid_out(config)
    parameters = drawn(model, 0)
    assert name in parameters
    parameters[name] = np.zeros_like(parameters[name])
    other = stored(moved(model, parameters, 1, Observable(observable)), form)
    parameters = stored(parameters, form)
    for first, second in ((other, parameters), (parameters, other)):
        found = compared(model, first, second, observable)
        assert found.outcome is Outcome.SAME, found.reason
        assert found.witness is not None
        left = any("no finite step does" in note for note in found.notes)
        assert left == (second is parameters)


def test_a_count_of_live_neurons_is_no_difference_where_rounding_blurs_a_circuit() -> None:
    """A float64 model moved at condition 1,000 and stored in bfloat16 had lost a neuron to it."""
    frame, words = Frame(np.eye(2), False, "same"), "layer 1 MLP: 3 live neurons against 2"
    for uncertainty, outcome in ((0.0, Outcome.DIFFERENT), (1.5, Outcome.UNDECIDED)):
        found = Alignment(frame, mismatches=[words], uncertainty=(uncertainty, "layer 0 QK"))
        verdict, reason, name = _decide(found, set())
        assert verdict is outcome and words in reason
        assert name == ("layer 1 MLP" if outcome is Outcome.DIFFERENT else "")
