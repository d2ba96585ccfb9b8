"""Heads that attend alike, merged or split across groups: only their sums are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Attention
from fiberscope.checkpoints.equality.comparison import compare_models
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger.wiring import wire
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
    num_attention_heads=6, num_key_value_heads=3, hidden_size=12, head_dim=2, vocab_size=40
)
QWEN3 = toys.llama(
    "qwen3",
    "Qwen3ForCausalLM",
    num_attention_heads=6,
    num_key_value_heads=3,
    hidden_size=12,
    head_dim=2,
    vocab_size=40,
)
GPT2 = toys.gpt2(n_embd=12, n_head=3, vocab_size=40)
MODELS = {"llama": LLAMA, "qwen3": QWEN3, "gpt2": GPT2}
ROLES = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias")
Heads = dict[str, NDArray[Any]]


def first_attention(model: Architecture) -> Attention:
    return wire(model, model.default_observable).attentions[0]


def heads_of(model: Architecture, parameters: Mapping[str, NDArray[Any]]) -> Heads:
    """Arrays of the first attention, with a value bias of zero, which the output bias may take."""
    attention = first_attention(model)
    views = {role: getattr(attention, role) for role in ROLES}
    found = {r: np.array(v.read(parameters)) for r, v in views.items() if v is not None}
    if "value_bias" in found:
        found["value_bias"][:] = 0.0
    return found


def with_heads(model: Architecture, parameters: Parameters, heads: Heads) -> Parameters:
    copy = {name: value.copy() for name, value in parameters.items()}
    for role, array in heads.items():
        getattr(first_attention(model), role).write(copy, array)
    return copy


def attending_alike(heads: Heads, groups: tuple[int, ...]) -> None:
    """All these groups with the queries and keys of the first of them."""
    for role in ("query", "key", "query_bias", "key_bias"):
        if role in heads:
            heads[role][list(groups)] = heads[role][groups[0]]


def same(first: tuple[Architecture, Parameters], second: tuple[Architecture, Parameters]) -> None:
    """SAME in every storage, in either direction, for copies as they are and for moved ones."""
    for form in FORMATS:
        for one, other in ((first, second), (second, first)):
            for seed in (None, 7):
                copy = other[1] if seed is None else moved(other[0], other[1], seed)
                found = compare_models(
                    StoredModel.of(*one, None, "first"),
                    StoredModel.of(other[0], stored(copy, form), None, "second"),
                )
                if form in ("float16", "bfloat16") and "heads are silent" in found.reason:
                    # Factors that only such rounding makes zero leave open what they add.
                    assert found.outcome is Outcome.UNDECIDED
                    continue
                assert found.outcome is Outcome.SAME, (form, seed, found.reason)


def merged(
    config: Mapping[str, Any], dependent: str, seed: int = 1
) -> tuple[Architecture, Parameters, Parameters]:
    """Two groups that attend alike, whose values (or outputs) depend, and the first for both."""
    model = laid_out(config)
    source, rng = drawn(model, seed), np.random.default_rng(seed)
    heads = heads_of(model, source)
    attending_alike(heads, (0, 1))
    width = heads["value"].shape[1]
    mix = rng.standard_normal((width, width))
    if dependent == "value":
        heads["value"][1] = mix @ heads["value"][0]
    else:
        heads["output"][1] = mix @ heads["output"][0]
    source = with_heads(model, source, heads)
    if dependent == "value":
        heads["output"][0] += mix.T @ heads["output"][1]
        heads["output"][1] = 0.0
        # The silent group's other factors are free.
        for role in ("query", "key", "value"):
            heads[role][1] = rng.standard_normal(heads[role][1].shape)
    else:
        heads["value"][0] += mix.T @ heads["value"][1]
        heads["value"][1] = 0.0
    return model, source, with_heads(model, source, heads)


@pytest.mark.parametrize("dependent", ["value", "output"])
@pytest.mark.parametrize("name", MODELS)
def test_two_groups_merged_into_one(name: str, dependent: str) -> None:
    model, source, copy = merged(MODELS[name], dependent)
    assert output_change(model, source, copy) < 1e-12
    same((model, source), (model, copy))
    found = compared(model, source, copy)
    assert found.witness is not None
    assert any("leaves this layer's heads" in note for note in found.notes), found.notes


def test_outputs_of_a_head_that_only_rounding_silences() -> None:
    """Its values are zero up to bfloat16, so other outputs change what it adds by rounding only."""
    model, source, copy = merged(MODELS["gpt2"], "output")
    visible = 0
    for seed in range(12):
        rounded = stored(moved(model, copy, seed), "bfloat16")
        changed = {k: v.astype(np.float64) for k, v in rounded.items()}
        output = first_attention(model).output
        array = np.array(output.read(changed))
        # The silent head is the one whose values, centred, are next to nothing.
        value = np.array(first_attention(model).value.read(changed))
        gain = np.array(wire(model, model.default_observable).points[0].norm.gain.read(changed))
        size = np.square((value * gain) - (value * gain).mean(-1, keepdims=True)).sum(axis=(1, 2))
        rng = np.random.default_rng(seed)
        array[int(np.argmin(size))] = 10 * array.std() * rng.standard_normal(array[0].shape)
        output.write(changed, array)
        changed = stored(changed, "bfloat16")
        before, after = (
            {k: v.astype(np.float64) for k, v in p.items()} for p in (rounded, changed)
        )
        if output_change(model, before, after) < 0.1:
            continue
        visible += 1
        assert compared(model, source, changed).outcome is not Outcome.SAME
    assert visible


@pytest.mark.parametrize("form", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    ("role", "circuit"), [("query", "QK"), ("key", "QK"), ("value", "VO"), ("output", "VO")]
)
@pytest.mark.parametrize("name", MODELS)
def test_one_number_of_a_merged_group(name: str, role: str, circuit: str, form: str) -> None:
    """Ten tolerances of eight roundings; in float64 32 operations at a condition of 16."""
    model, source, copy = merged(MODELS[name], "value")
    copy = {k: v.astype(np.float64) for k, v in stored(moved(model, copy, 2), form).items()}
    view = getattr(first_attention(model), role)
    array = np.array(view.read(copy))
    outputs = np.square(first_attention(model).output.read(copy)).sum(axis=(1, 2, 3))
    group = int(np.argmax(outputs))  # the silent one's numbers are free
    row = array[group].reshape(-1, array.shape[-1])[0]
    spacing = {"float64": 52, "float32": 23, "bfloat16": 7}[form]
    times = 10 * 8 * 32 * 16.0 if form == "float64" else 300.0
    row[1] += times * 2.0**-spacing * np.sqrt(np.mean(row**2))
    view.write(copy, array)
    found = compared(model, source, stored(copy, form))
    if (name, circuit, form) == ("gpt2", "QK", "float64"):
        # Outputs of the silent head are zero up to rounding behind a LayerNorm: nothing is certain.
        assert found.outcome is not Outcome.SAME
        return
    assert found.outcome is Outcome.DIFFERENT, found.reason
    assert found.first_difference.startswith("layer 0 attention"), found.first_difference
    assert circuit in found.first_difference, found.first_difference


@pytest.mark.parametrize("name", MODELS)
def test_three_groups_merged_into_two(name: str) -> None:
    """The rank of the sum is that of two groups, however its factors are shared out."""
    model = laid_out(MODELS[name])
    source, rng = drawn(model, 2), np.random.default_rng(2)
    heads = heads_of(model, source)
    attending_alike(heads, (0, 1, 2))
    width = heads["value"].shape[1]
    mixes = rng.standard_normal((2, width, width))
    heads["value"][2] = mixes[0] @ heads["value"][0] + mixes[1] @ heads["value"][1]
    source = with_heads(model, source, heads)
    for group in (0, 1):
        heads["output"][group] += mixes[group].T @ heads["output"][2]
    heads["output"][2] = 0.0
    copy = with_heads(model, source, heads)
    assert output_change(model, source, copy) < 1e-12
    same((model, source), (model, copy))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_single_heads_move_between_groups(name: str) -> None:
    """Two groups share keys and values, and one query: that head's output may come from either."""
    model = laid_out(MODELS[name])
    source = drawn(model, 3)
    heads = heads_of(model, source)
    for role in ("key", "value"):
        heads[role][1] = heads[role][0]
    heads["query"][1, 1] = heads["query"][0, 0]
    source = with_heads(model, source, heads)
    heads["output"][0, 0] += heads["output"][1, 1]
    heads["output"][1, 1] = 0.0
    copy = with_heads(model, source, heads)
    assert output_change(model, source, copy) < 1e-12
    same((model, source), (model, copy))


@pytest.mark.parametrize("name", MODELS)
def test_as_many_groups_but_shared_out_otherwise(name: str) -> None:
    """Two groups for one way to attend and one for the other, against one and two."""
    model = laid_out(MODELS[name])
    source, rng = drawn(model, 4), np.random.default_rng(4)
    heads = heads_of(model, source)
    attending_alike(heads, (0, 1))
    width = heads["value"].shape[1]
    mix = rng.standard_normal((width, width))
    heads["value"][1] = mix @ heads["value"][0]
    source = with_heads(model, source, heads)
    heads["output"][0] += mix.T @ heads["output"][1]
    attending_alike(heads, (2, 1))
    heads["value"][1] = mix @ heads["value"][2]
    heads["output"][1] = rng.standard_normal(heads["output"][1].shape)
    heads["output"][2] -= mix.T @ heads["output"][1]
    copy = with_heads(model, source, heads)
    assert output_change(model, source, copy) < 1e-12
    same((model, source), (model, copy))


def test_a_layout_with_fewer_groups() -> None:
    """Every layer's first two groups become one; the layouts differ, so no witness has a form."""
    large, small = (
        laid_out(LLAMA),
        laid_out(
            toys.llama(
                num_attention_heads=4,
                num_key_value_heads=2,
                hidden_size=12,
                head_dim=2,
                vocab_size=40,
            )
        ),
    )
    source = drawn(large, 5)
    pairs = [wire(m, m.default_observable).attentions for m in (large, small)]
    for wide in pairs[0]:
        heads = {role: np.array(getattr(wide, role).read(source)) for role in ROLES[:4]}
        attending_alike(heads, (0, 1))
        heads["value"][1] = 2.0 * heads["value"][0]
        for role, array in heads.items():
            getattr(wide, role).write(source, array)
    copy = {
        name: np.zeros(shape) if source[name].shape != shape else source[name].copy()
        for name, shape in small.tensors.items()
    }
    for wide, narrow in zip(*pairs, strict=True):
        heads = {role: np.array(getattr(wide, role).read(source)) for role in ROLES[:4]}
        heads["output"][0] += 2.0 * heads["output"][1]
        for role, array in heads.items():
            getattr(narrow, role).write(copy, array[[0, 2]])
    same((large, source), (small, copy))
    changed = {name: value.copy() for name, value in copy.items()}
    view = pairs[1][0].output
    array = np.array(view.read(changed))
    array[0, 0, 0, 0] *= 1.01
    view.write(changed, array)
    found = compare_models(
        StoredModel.of(large, source, None, "first"), StoredModel.of(small, changed, None, "second")
    )
    assert found.outcome is Outcome.DIFFERENT
    assert found.first_difference.startswith("layer 0 attention VO"), found.first_difference


@pytest.mark.parametrize("name", MODELS)
def test_groups_that_cancel_against_none(name: str) -> None:
    model = laid_out(MODELS[name])
    source, rng = drawn(model, 6), np.random.default_rng(6)
    heads = heads_of(model, source)
    attending_alike(heads, (0, 1))
    heads["value"][1] = heads["value"][0]
    heads["output"][1] = -heads["output"][0]
    source = with_heads(model, source, heads)
    heads["output"][:2] = 0.0
    heads["query"][0] = rng.standard_normal(heads["query"][0].shape)
    copy = with_heads(model, source, heads)
    assert output_change(model, source, copy) < 1e-12
    same((model, source), (model, copy))


@pytest.mark.parametrize("lost", ["value", "output"])
@pytest.mark.parametrize("name", MODELS)
def test_independent_groups_do_not_fit_into_one(name: str, lost: str) -> None:
    model = laid_out(MODELS[name])
    source = drawn(model, 7)
    heads = heads_of(model, source)
    attending_alike(heads, (0, 1))
    source = with_heads(model, source, heads)
    heads[lost][0] += heads[lost][1]
    heads["output"][1] = 0.0
    copy = with_heads(model, source, heads)
    assert output_change(model, source, copy) > 1e-3
    for form in FORMATS:
        for one, other in ((source, copy), (copy, source)):
            found = compared(model, one, stored(other, form))
            assert found.outcome is Outcome.DIFFERENT, (form, found.reason)
            assert found.first_difference.startswith("layer 0 attention VO")
