"""Changes of the function are DIFFERENT, and the circuit that changed is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.parameters import View
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

LLAMA = toys.llama(
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=12, vocab_size=40
)
GPT2 = toys.gpt2(n_embd=8, n_layer=2, n_inner=12, vocab_size=24)
BERT = toys.bert(cls="BertForMaskedLM", hidden_size=8, vocab_size=30)


def with_one_change(parameters: Parameters, view: View, form: str, times: float) -> Parameters:
    """One entry moved by that many roundings of a number of its row's size."""
    copy = {name: value.copy() for name, value in parameters.items()}
    array = np.array(view.read(copy))
    row = array.reshape(-1, array.shape[-1])[1] if array.ndim > 1 else array
    spacing = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[form]
    row[1] += times * 2.0**-spacing * np.sqrt(np.mean(row**2))
    view.write(copy, array)
    return copy


@pytest.mark.parametrize("form", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "role", "name"),
    [
        (LLAMA, "query", "layer 1 attention QK"),
        (LLAMA, "key", "layer 1 attention QK"),
        (LLAMA, "value", "layer 1 attention VO"),
        (LLAMA, "output", "layer 1 attention VO"),
        (LLAMA, "up", "layer 1 MLP neurons"),
        (LLAMA, "gate", "layer 1 MLP neurons"),
        (LLAMA, "down", "layer 1 MLP neurons"),
        (GPT2, "query", "layer 1 attention QK"),
        (GPT2, "value", "layer 1 attention VO"),
        (GPT2, "up", "layer 1 MLP neurons"),
        (GPT2, "down", "layer 1 MLP neurons"),
        (BERT, "key", "layer 0 attention QK"),
        (BERT, "output", "layer 0 attention VO"),
    ],
)
def test_one_weight(config: dict[str, Any], role: str, name: str, form: str) -> None:
    model = laid_out(config)
    wiring = wire(model, model.default_observable)
    layer = int(name.split()[1])
    blocks = [*wiring.attentions, *wiring.mlps]
    block = next(b for b in blocks if b.layer == layer and hasattr(b, role))
    source = {k: v.astype(np.float64) for k, v in stored(drawn(model, 1), form).items()}
    # Ten tolerances of eight roundings; in float64 these are 32 operations at a condition of 8.
    times = 10 * 8 * 32 * 8.0 if form == "float64" else 300.0
    changed = with_one_change(source, getattr(block, role), form, times)
    copy = stored(moved(model, changed, 2), form)
    found = compared(model, stored(source, form), copy)
    assert found.outcome is Outcome.DIFFERENT, found.reason
    assert found.first_difference.startswith(name), found.first_difference


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_few_units_in_the_last_place_of_a_tied_embedding(form: str) -> None:
    """Signed permutations are exact, so the embedding shows ten roundings."""
    model = laid_out(toys.llama(tie_word_embeddings=True))
    source = {k: v.astype(np.float64) for k, v in stored(drawn(model, 1), form).items()}
    copy = moved(model, source, 2)
    array = copy["model.embed_tokens.weight"].astype(FORMATS[form])
    spot = np.unravel_index(np.abs(array.astype(np.float64)).argmax(), array.shape)
    step = np.float64(array[spot]) * 2.0 ** -{"float64": 52, "float32": 23, "float16": 10}.get(
        form, 7
    )
    array[spot] = FORMATS[form](np.float64(array[spot]) + 12 * step)
    second = {**stored(copy, form), "model.embed_tokens.weight": array}
    found = compared(model, stored(source, form), second)
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference == "token embedding"


@pytest.mark.parametrize("name", ["word", "position", "token_type"])
def test_a_row_of_one_of_several_embeddings(name: str) -> None:
    """The mean of a short table counts in the first one, which has not changed."""
    model = laid_out(toys.bert())
    source = stored(drawn(model, 1), "float32")
    copy = {key: value.copy() for key, value in source.items()}
    copy[f"embeddings.{name}_embeddings.weight"][0, 1] += 1e-4
    found = compared(model, source, copy)
    assert found.outcome is Outcome.DIFFERENT
    label = {"word": "token"}.get(name, name.replace("_", " "))
    assert found.first_difference == f"{label} embedding"


def test_a_final_gain_of_a_tied_model() -> None:
    model = laid_out(toys.gpt2())
    source = drawn(model, 1)
    copy = moved(model, source, 2)
    copy["transformer.ln_f.weight"] = copy["transformer.ln_f.weight"] * 1.001
    found = compared(model, stored(source, "float32"), stored(copy, "float32"))
    assert found.outcome is Outcome.DIFFERENT
    assert "final norm" in found.first_difference or "unembedding" in found.first_difference


def test_values_exchanged_across_groups() -> None:
    model = laid_out(LLAMA)
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    copy = {name: value.copy() for name, value in source.items()}
    attention.value.write(copy, attention.value.read(copy)[::-1].copy())
    found = compared(model, source, moved(model, copy, 3))
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference.startswith("layer 0 attention")


def test_query_heads_permuted_without_regard_to_groups() -> None:
    model = laid_out(LLAMA)
    attention = wire(model, model.default_observable).attentions[1]
    source = drawn(model, 1)
    copy = {name: value.copy() for name, value in source.items()}
    for view in (attention.query, attention.output):
        array = view.read(copy)
        view.write(copy, np.roll(array.reshape(-1, *array.shape[2:]), 1, 0).reshape(array.shape))
    found = compared(model, source, copy)
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference.startswith("layer 1 attention")


def test_mean_of_embeddings_under_rms_norm() -> None:
    model = laid_out(LLAMA)
    source = drawn(model, 1)
    copy = dict(source)
    table = copy["model.embed_tokens.weight"]
    copy["model.embed_tokens.weight"] = table - table.mean(axis=1, keepdims=True)
    assert output_change(model, source, copy) > 1e-3
    found = compared(model, source, copy)
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference == "token embedding"
    assert "mean" in found.explanation


def test_rotary_layout_converted_without_permuting() -> None:
    """Rows reordered for interleaved planes while the configuration stays half-split."""
    model = laid_out(LLAMA)
    source = drawn(model, 1)
    copy = {name: value.copy() for name, value in source.items()}
    for attention in wire(model, model.default_observable).attentions:
        width = attention.key_width
        order = np.arange(width).reshape(2, width // 2).T.reshape(-1)
        for view, axis in ((attention.query, 2), (attention.key, 1)):
            view.write(copy, np.take(view.read(copy), order, axis))
    assert output_change(model, source, copy) > 1e-3
    found = compared(model, source, copy)
    assert found.outcome is Outcome.DIFFERENT
    assert " QK" in found.first_difference
    assert "interleaved" in found.explanation


@pytest.mark.parametrize("tied", [False, True])
def test_a_scaled_residual_stream_is_explained(tied: bool) -> None:
    model = laid_out(toys.llama(tie_word_embeddings=tied, rms_norm_eps=1e-4))
    wiring = wire(model, model.default_observable)
    source = drawn(model, 1)
    copy = {name: value.copy() for name, value in source.items()}
    for view in {writer.view for segment in wiring.segments for writer in segment.writers}:
        view.write(copy, 1.5 * view.read(copy))
    if tied:
        copy["model.norm.weight"] = copy["model.norm.weight"] / 1.5
    assert 1e-7 < output_change(model, source, copy) < 1e-2
    found = compared(model, source, copy)
    assert found.outcome is Outcome.DIFFERENT
    assert "multiplied by 1.5" in found.explanation


def test_settings_that_change_the_function() -> None:
    first, second = laid_out(toys.llama()), laid_out(toys.llama(rms_norm_eps=1e-3))
    parameters = drawn(first, 1)
    from fiberscope.checkpoints.equality.comparison import compare_models
    from fiberscope.checkpoints.equality.stored import StoredModel

    found = compare_models(StoredModel.of(first, parameters), StoredModel.of(second, parameters))
    assert found.outcome is Outcome.DIFFERENT
    assert "epsilon" in found.reason
