"""Weights with more freedom than the generic group: the exact fiber counts, not the group."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality.factors import fit_basis
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import (
    Parameters,
    compared,
    drawn,
    laid_out,
    moved,
    output_change,
    stored,
)
from tests.checkpoints.ledger import toys

FORMS = ("float64", "float32", "bfloat16")


def same(model: object, source: Parameters, copy: Parameters, *, arrives: bool = True) -> None:
    """Both are one function, and are found to be, with a witness from one to the other."""
    assert output_change(model, source, copy) < 1e-12  # type: ignore[arg-type]
    for form in FORMS:
        found = compared(model, source, stored(copy, form))  # type: ignore[arg-type]
        assert found.outcome is Outcome.SAME, (form, found.reason)
        if arrives:
            assert found.witness is not None
            assert any("arrives at every" in note for note in found.notes), (form, found.notes)


@pytest.mark.parametrize("config", [toys.gpt2(n_embd=8), toys.llama(tie_word_embeddings=True)])
def test_rotations_among_equal_final_gains(config: dict[str, object]) -> None:
    model = laid_out(config)
    source = drawn(model, 1)
    name = next(n for n in source if n.endswith(("ln_f.weight", "model.norm.weight")))
    half = len(source[name]) // 2
    source[name] = np.repeat([0.75, 1.25], half)
    move = RandomMove(Catalogue(model, Observable.LOGITS), 5)
    copy = {k: np.array(v) for k, v in move.tensors(lambda name: source[name].copy())}
    same(model, source, copy)


def test_mixed_duplicate_neurons_of_a_gated_layer() -> None:
    model = laid_out(toys.llama())
    mlp = wire(model, model.default_observable).mlps[0]
    assert mlp.gate is not None
    source = drawn(model, 1)
    gate = mlp.gate.read(source)
    gate[1] = gate[0]
    mlp.gate.write(source, gate)
    copy = {name: value.copy() for name, value in source.items()}
    mix = np.array([[1.0, 2.0], [-0.5, 1.5]])
    up, down = mlp.up.read(copy), mlp.down.read(copy)
    up[:2] = mix @ up[:2]
    down[:, :2] = down[:, :2] @ np.linalg.inv(mix)
    mlp.up.write(copy, up)
    mlp.down.write(copy, down)
    same(model, source, moved(model, copy, 7))


def test_outputs_moved_between_duplicate_neurons() -> None:
    model = laid_out(toys.gpt2())
    mlp = wire(model, model.default_observable).mlps[0]
    source = drawn(model, 1)
    up = mlp.up.read(source)
    up[1] = up[0]
    mlp.up.write(source, up)
    assert mlp.up_bias is not None
    bias = mlp.up_bias.read(source)
    bias[1] = bias[0]
    mlp.up_bias.write(source, bias)
    copy = {name: value.copy() for name, value in source.items()}
    down = mlp.down.read(copy)
    shift = np.random.default_rng(0).standard_normal(len(down))
    down[:, 0] += shift
    down[:, 1] -= shift
    mlp.down.write(copy, down)
    same(model, source, moved(model, copy, 7))


def test_values_mixed_between_equal_heads() -> None:
    model = laid_out(toys.gpt2(n_embd=12, n_head=3, vocab_size=40))
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    for view in (attention.query, attention.key, attention.query_bias, attention.key_bias):
        assert view is not None
        array = view.read(source)
        array[1] = array[0]
        view.write(source, array)
    copy = {name: value.copy() for name, value in source.items()}
    width = attention.value_width
    mix = np.eye(2 * width) + 0.3 * np.random.default_rng(0).standard_normal((2 * width,) * 2)
    value, output = attention.value.read(copy), attention.output.read(copy)
    joined = mix @ value[:2].reshape(2 * width, -1)
    outer = np.linalg.inv(mix).T @ output[:2, 0].reshape(2 * width, -1)
    value[:2], output[:2, 0] = joined.reshape(2, width, -1), outer.reshape(2, width, -1)
    assert attention.value_bias is not None
    bias = attention.value_bias.read(copy)
    bias[:2] = (mix @ bias[:2].reshape(-1)).reshape(2, width)
    for view, array in (
        (attention.value, value),
        (attention.output, output),
        (attention.value_bias, bias),
    ):
        view.write(copy, array)
    same(model, source, moved(model, copy, 7))


@pytest.mark.parametrize("role", ["output", "value", "query"])
def test_silent_heads_and_constant_attention(role: str) -> None:
    """The partner of a zero factor is free: in the copy it is something else altogether."""
    model = laid_out(toys.llama(num_attention_heads=2, num_key_value_heads=2))
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    view = getattr(attention, role)
    array = view.read(source)
    array[0] = 0.0
    view.write(source, array)
    copy = {name: value.copy() for name, value in source.items()}
    partner = {"output": attention.value, "value": attention.output, "query": attention.key}[role]
    array = partner.read(copy)
    array[0] = np.random.default_rng(1).standard_normal(array[0].shape)
    partner.write(copy, array)
    same(model, source, moved(model, copy, 7))


def test_one_number_in_a_silent_head_is_different() -> None:
    """A singular change of basis must not excuse anything."""
    model = laid_out(toys.llama(num_attention_heads=2, num_key_value_heads=2))
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    output = attention.output.read(source)
    output[0] = 0.0
    attention.output.write(source, output)
    copy = {name: value.copy() for name, value in source.items()}
    output = attention.output.read(copy)
    output[0, 0, 0, 0] = 0.1
    attention.output.write(copy, output)
    assert output_change(model, source, copy) > 1e-3
    for form in FORMS:
        for one, other in ((source, copy), (copy, source)):
            found = compared(model, stored(one, form), stored(other, form))
            assert found.outcome is Outcome.DIFFERENT, (form, found.reason)
            assert "attention" in found.first_difference


def test_dead_neurons_have_free_partners() -> None:
    model = laid_out(toys.llama())
    mlp = wire(model, model.default_observable).mlps[0]
    assert mlp.gate is not None
    source = drawn(model, 1)
    for view, row in ((mlp.gate, 0), (mlp.up, 1)):
        array = view.read(source)
        array[row] = 0.0
        view.write(source, array)
    copy = {name: value.copy() for name, value in source.items()}
    down = mlp.down.read(copy)
    down[:, :2] = np.random.default_rng(2).standard_normal((len(down), 2))
    mlp.down.write(copy, down)
    same(model, source, moved(model, copy, 7))


def test_removed_dead_neurons() -> None:
    small, large = laid_out(toys.llama(intermediate_size=4)), laid_out(toys.llama())
    source = drawn(small, 1)
    grown = {}
    for name, shape in large.tensors.items():
        array = np.zeros(shape)
        array[tuple(slice(0, size) for size in source[name].shape)] = source[name]
        grown[name] = array
    from fiberscope.checkpoints.equality.comparison import compare_models
    from fiberscope.checkpoints.equality.stored import StoredModel

    copy = moved(large, grown, 3)
    found = compare_models(StoredModel.of(small, source), StoredModel.of(large, copy))
    assert found.outcome is Outcome.SAME, found.reason


def test_tied_against_stored_twice(tmp_path: object) -> None:
    tied = laid_out(toys.llama(tie_word_embeddings=True))
    untied = laid_out(toys.llama(tie_word_embeddings=False))
    source = drawn(tied, 1)
    copy = {**source, "lm_head.weight": source["model.embed_tokens.weight"]}
    from fiberscope.checkpoints.equality.comparison import compare_models
    from fiberscope.checkpoints.equality.stored import StoredModel

    first = StoredModel.of(tied, source)
    first.config = toys.llama(tie_word_embeddings=True)
    second = StoredModel.of(untied, moved(untied, copy, 3))
    for one, other in ((first, second), (second, first)):
        found = compare_models(one, other)
        assert found.outcome is Outcome.SAME, found.reason


def test_signs_and_quarter_turns_of_normalised_queries_and_keys() -> None:
    """Rows take the sign of their gain along, and a plane's quarter turn exchanges its gains."""
    config = toys.llama(
        "qwen3", "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2, vocab_size=24
    )
    model = laid_out(config)
    attention = wire(model, model.default_observable).attentions[0]
    assert attention.rotary is not None
    assert attention.query_norm is not None and attention.key_norm is not None
    gains = [attention.query_norm.gain, attention.key_norm.gain]
    source = drawn(model, 1)
    copy = {name: value.copy() for name, value in source.items()}
    query, key = attention.query.read(copy), attention.key.read(copy)
    query[:, :, 1] *= -1.0
    first, second = attention.rotary.planes[0]
    for array in (query, key):
        rows = np.moveaxis(array, -2, 0)
        one, other = rows[first].copy(), rows[second].copy()
        rows[first], rows[second] = -other, one
    attention.query.write(copy, query)
    attention.key.write(copy, key)
    for number, gain in enumerate(gains):
        assert gain is not None
        values = np.array(gain.read(copy))
        if number == 0:
            values[1] *= -1.0
        values[[first, second]] = values[[second, first]]
        gain.write(copy, values)
    same(model, source, copy)
    same(model, source, moved(model, copy, 7))


@pytest.mark.parametrize("role", ["value", "up"])
def test_weights_that_storage_flushes_to_zero_are_not_different(role: str) -> None:
    """The copy is the rounding of the first model, but too little is left of it to say SAME."""
    model = laid_out(toys.llama(num_attention_heads=2, num_key_value_heads=2))
    wiring = wire(model, model.default_observable)
    block = wiring.attentions[0] if role == "value" else wiring.mlps[0]
    source = drawn(model, 1)
    view = getattr(block, role)
    array = view.read(source)
    array[0] *= 1e-9
    view.write(source, array)
    copy = stored(source, "float16")
    assert not view.read(copy)[0].any()
    for first, second in ((source, copy), (copy, source)):
        found = compared(model, first, second)
        assert found.outcome is not Outcome.DIFFERENT, found.reason


QWEN3 = toys.llama(
    "qwen3", "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2, vocab_size=24
)
GROUPED = toys.llama(num_attention_heads=4, num_key_value_heads=2, hidden_size=12, vocab_size=40)


@pytest.mark.parametrize("angles", [(np.pi, 0.0), (0.3, 1.1)])
def test_planes_of_normalised_heads_turned_group_by_group(angles: tuple[float, float]) -> None:
    """Half turns always; any angle where both gains of the plane are equal."""
    model = laid_out(QWEN3)
    attention = wire(model, model.default_observable).attentions[0]
    assert attention.rotary is not None
    assert attention.query_norm is not None and attention.key_norm is not None
    source = drawn(model, 1)
    if angles[1]:
        for gain in (attention.query_norm.gain, attention.key_norm.gain):
            assert gain is not None
            gain.write(source, np.ones(gain.shape))
    copy = {name: value.copy() for name, value in source.items()}
    query, key = attention.query.read(copy), attention.key.read(copy)
    plane = list(attention.rotary.planes[0])
    for group, angle in enumerate(angles):
        cosine, sine = np.cos(angle), np.sin(angle)
        turn = np.array([[cosine, -sine], [sine, cosine]])
        query[group][:, plane] = turn @ query[group][:, plane]
        key[group][plane] = turn @ key[group][plane]
    attention.query.write(copy, query)
    attention.key.write(copy, key)
    same(model, source, copy)
    same(model, source, moved(model, copy, 7))


def test_outputs_moved_between_equal_heads_of_a_group() -> None:
    model = laid_out(GROUPED)
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    query = attention.query.read(source)
    query[0, 1] = query[0, 0]
    attention.query.write(source, query)
    copy = {name: value.copy() for name, value in source.items()}
    output = attention.output.read(copy)
    shift = np.random.default_rng(0).standard_normal(output[0, 0].shape)
    output[0, 0] += shift
    output[0, 1] -= shift
    attention.output.write(copy, output)
    same(model, source, moved(model, copy, 7))


@pytest.mark.parametrize("config", [GROUPED, QWEN3])
def test_values_mixed_between_equal_groups(config: dict[str, object]) -> None:
    """Groups of several query heads, also with normalised queries and keys."""
    model = laid_out(config)
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    for view in (attention.query, attention.key):
        array = view.read(source)
        array[1] = array[0]
        view.write(source, array)
    copy = {name: value.copy() for name, value in source.items()}
    value, output = attention.value.read(copy), attention.output.read(copy)
    width = 2 * attention.value_width
    mix = np.eye(width) + 0.3 * np.random.default_rng(0).standard_normal((width, width))
    stacked = output.transpose(0, 2, 1, 3).reshape(width, -1)
    stacked = (np.linalg.inv(mix).T @ stacked).reshape(2, -1, *output.shape[1::2])
    attention.value.write(copy, (mix @ value.reshape(width, -1)).reshape(value.shape))
    attention.output.write(copy, stacked.transpose(0, 2, 1, 3))
    same(model, source, moved(model, copy, 7))


@pytest.mark.parametrize("forms", [("float32", "float32"), ("bfloat16", "float16")])
def test_a_mixture_is_found_from_either_side(forms: tuple[str, str]) -> None:
    """Heads equal as stored in the source are equal up to rounding in a moved copy."""
    model = laid_out(toys.gpt2())
    a = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    for view in (a.query, a.key, a.query_bias, a.key_bias):
        assert view is not None
        array = view.read(source)
        array[1] = array[0]
        view.write(source, array)
    source = stored(source, forms[0])
    exact = {name: value.astype(np.float64) for name, value in source.items()}
    copy = {name: value.copy() for name, value in exact.items()}
    value, output = a.value.read(copy), a.output.read(copy)
    value[0] += 0.5 * value[1]
    output[1] = output[1] - 0.5 * output[0]
    a.value.write(copy, value)
    a.output.write(copy, output)
    assert a.value_bias is not None
    bias = a.value_bias.read(copy)
    bias[0] += 0.5 * bias[1]
    a.value_bias.write(copy, bias)
    copy = moved(model, copy, 7)
    assert output_change(model, exact, copy) < 1e-12
    copy = stored(copy, forms[1])
    forth, back = compared(model, source, copy), compared(model, copy, source)
    for found in (forth, back):
        assert found.outcome is Outcome.SAME, found.reason
    assert forth.witness is not None
    reached = forth.witness.apply(exact)
    assert output_change(model, exact, reached) < 1e-9
    assert back.witness is None
    assert "compare in that order" in back.notes[-1]


@pytest.mark.parametrize("query", ["kept", "other"])
def test_equal_heads_merged_into_one(query: str) -> None:
    """One head of a group takes over what an equal one adds; the silent one's query is free."""
    model = laid_out(GROUPED)
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    queries = attention.query.read(source)
    queries[0, 1] = queries[0, 0]
    attention.query.write(source, queries)
    copy = {name: value.copy() for name, value in source.items()}
    output = attention.output.read(copy)
    output[0, 0] += output[0, 1]
    output[0, 1] = 0.0
    attention.output.write(copy, output)
    if query == "other":
        queries = attention.query.read(copy)
        queries[0, 1] = np.random.default_rng(3).standard_normal(queries[0, 1].shape)
        attention.query.write(copy, queries)
    same(model, source, copy)
    same(model, copy, source)
    same(model, source, moved(model, copy, 7))


def test_equal_groups_merged_into_one() -> None:
    model = laid_out(GROUPED)
    attention = wire(model, model.default_observable).attentions[0]
    source = drawn(model, 1)
    for view in (attention.query, attention.key, attention.value):
        array = view.read(source)
        array[1] = array[0]
        view.write(source, array)
    copy = {name: value.copy() for name, value in source.items()}
    output = attention.output.read(copy)
    output[0] += output[1]
    output[1] = 0.0
    attention.output.write(copy, output)
    assert output_change(model, source, copy) < 1e-12
    for first, second in ((source, copy), (copy, source)):
        found = compared(model, first, second)
        assert found.outcome is Outcome.SAME, found.reason


@pytest.mark.parametrize("config", [toys.llama(), toys.gpt2(n_embd=8)])
def test_duplicate_neurons_merged_and_split(config: dict[str, object]) -> None:
    model = laid_out(config)
    mlp = wire(model, model.default_observable).mlps[0]
    source = drawn(model, 1)
    views = (mlp.gate, mlp.gate_bias) if mlp.gate is not None else (mlp.up, mlp.up_bias)
    for view in views:
        if view is not None:
            array = view.read(source)
            array[1] = array[0]
            view.write(source, array)
    factor = 1.0
    if mlp.gate is not None:
        factor = 2.0
        up = mlp.up.read(source)
        up[1] = factor * up[0]
        mlp.up.write(source, up)
    copy = {name: value.copy() for name, value in source.items()}
    down = mlp.down.read(copy)
    down[:, 0] += factor * down[:, 1]
    down[:, 1] = 0.0
    mlp.down.write(copy, down)
    same(model, source, copy)
    same(model, copy, source)


@pytest.mark.parametrize("channel", ["value", "query"])
@pytest.mark.parametrize("form", ["float64", "float32", "bfloat16"])
def test_channels_that_are_zero_in_both_factors(channel: str, form: str) -> None:
    """The change of basis is free along them, and must still be invertible."""
    config = toys.gpt2(n_embd=16, n_inner=12, vocab_size=64, n_head=2)
    model = laid_out(config)
    source = drawn(model, 0)
    at = "transformer.h.0.attn"
    fused, bias = source[f"{at}.c_attn.weight"], source[f"{at}.c_attn.bias"]
    if channel == "value":
        fused[:, 32 + 4] = bias[32 + 4] = 0.0
        source[f"{at}.c_proj.weight"][4] = 0.0
    else:
        for column in (3, 16 + 3):
            fused[:, column] = bias[column] = 0.0
    for seed in range(3):
        copy = stored(moved(model, source, seed), form)
        assert compared(model, source, copy).outcome is Outcome.SAME
        assert compared(model, copy, source).outcome is Outcome.SAME
    copy[f"{at}.c_attn.weight"] = np.array(copy[f"{at}.c_attn.weight"])
    copy[f"{at}.c_attn.weight"][2, 5] *= 1.2
    assert compared(model, source, copy).outcome is not Outcome.SAME


def test_groups_that_different_starts_explain() -> None:
    """Some circuits of a batch are fitted at once, others later."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        count, width, length = 5, 8, 32
        plain, dual = (rng.standard_normal((count, width, length)) for _ in range(2))
        matrices = []
        for _ in range(count):
            left, _, right = np.linalg.svd(rng.standard_normal((width, width)))
            matrices.append(left * np.logspace(0, rng.choice([0, 2, 4]), width) @ right)
        matrix = np.array(matrices)
        plain[1:3, 4:] = 0.0
        moved_plain = (matrix @ plain).astype(np.float32)
        moved_dual = (np.linalg.inv(matrix).swapaxes(1, 2) @ dual).astype(np.float32)
        noises = [
            (np.spacing(np.abs(x)).astype(np.float64) ** 2 / 12).mean(axis=-1)
            for x in (moved_plain, moved_dual)
        ]
        first, second = moved_plain.astype(np.float64), moved_dual.astype(np.float64)
        change = fit_basis(plain, first, dual, second, noises[0], noises[1])
        assert change.matrix.shape == (count, width, width)
        left = np.square(change.matrix @ plain - first) / np.maximum(noises[0], 1e-30)[..., None]
        assert np.sqrt(left.mean(axis=(1, 2))).max() < 3


def test_constants_that_dwarf_the_rows() -> None:
    config = toys.opt(
        hidden_size=24,
        word_embed_proj_dim=24,
        ffn_dim=48,
        vocab_size=96,
        max_position_embeddings=16,
    )
    model = laid_out(config)
    source = drawn(model, 0)
    norm = "model.decoder.layers.0.self_attn_layer_norm"
    source[f"{norm}.bias"] *= 1e10
    source[f"{norm}.weight"] *= 1e-10
    copy = stored(source, "float32")
    assert compared(model, copy, copy).outcome is Outcome.SAME
