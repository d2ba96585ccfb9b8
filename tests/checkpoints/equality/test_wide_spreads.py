"""Channels, rows and columns whose sizes differ by powers of ten: moved copies stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.equality.factors import fit_basis
from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.noisy import rounded
from fiberscope.checkpoints.equality.rotations import Tables
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.equality.witness_check import check
from fiberscope.checkpoints.ledger.rules.discrete import NEURON_PERMUTATION
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, VALUE_OUTPUT
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.parameters import View
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import Parameters, compared, drawn, laid_out, moved, stored
from tests.checkpoints.ledger import toys

EPSILON = 2.0**-52
GPT2 = toys.gpt2(n_embd=8, n_layer=2, n_inner=12, vocab_size=24)
LLAMA = toys.llama(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40)
BERT = toys.bert(cls="BertForMaskedLM", hidden_size=8, vocab_size=30)


def far_moved(
    model: Architecture,
    parameters: Parameters,
    seed: int,
    condition: float,
    observable: Observable | None = None,
) -> Any:
    """A copy whose every move has this condition number, and whose shifts are as large as it."""
    catalogue = Catalogue(model, observable or model.default_observable)
    move = RandomMove(catalogue, seed, condition=condition)
    return {k: np.array(v) for k, v in move.tensors(lambda name: parameters[name].copy())}


def with_small_channel(config: dict[str, Any], size: float) -> tuple[Architecture, Parameters]:
    """The last channel of every head of layer 0 is small in its values and in its outputs."""
    model = laid_out(config)
    source = drawn(model, 1)
    attention = wire(model, model.default_observable).attentions[0]
    for view in (attention.value, attention.output):
        array = np.array(view.read(source))
        array[..., -1, :] *= size
        view.write(source, array)
    return model, source


def with_one_change(parameters: Parameters, view: View, row: int, roundings: float) -> Parameters:
    """One number moved by that many roundings of a number of its row's size."""
    copy = {name: value.copy() for name, value in parameters.items()}
    array = np.array(view.read(copy))
    chosen = array.reshape(-1, array.shape[-1])[row]
    chosen[1] += roundings * EPSILON * np.sqrt(np.mean(chosen**2))
    view.write(copy, array)
    return copy


@pytest.mark.parametrize("size", [1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize("config", [GPT2, LLAMA, BERT])
def test_two_copies_of_a_model_with_a_small_channel(config: dict[str, Any], size: float) -> None:
    """Neither copy holds the channel by itself: it is mixed into rows of ordinary size."""
    model, source = with_small_channel(config, size)
    for seed in range(4):
        one, other = (moved(model, source, 10 * seed + number) for number in (1, 2))
        found = compared(model, one, other)
        assert found.outcome is Outcome.SAME, found.reason
        assert found.witness is not None
        assert any("arrives at every stored number" in note for note in found.notes), found.notes
    one, other = (far_moved(model, source, seed, 1000.0) for seed in (1, 2))
    found = compared(model, one, other)
    assert found.outcome is Outcome.SAME, found.reason


@pytest.mark.parametrize("role", ["value", "output"])
@pytest.mark.parametrize("config", [GPT2, LLAMA, BERT])
def test_a_change_beside_a_small_channel(config: dict[str, Any], role: str) -> None:
    """Ten tolerances: eight times 32 operations of float64 at a condition of 8."""
    model, source = with_small_channel(config, 1e-8)
    attention = wire(model, model.default_observable).attentions[0]
    changed = with_one_change(source, getattr(attention, role), 0, 10 * 8 * 32 * 8.0)
    for seed in range(3):
        one, other = moved(model, source, seed), moved(model, changed, seed + 7)
        found = compared(model, one, other)
        assert found.outcome is Outcome.DIFFERENT, found.reason
        assert found.first_difference.startswith("layer 0 attention VO"), found.first_difference


@pytest.mark.parametrize("size", [1.0, 1e-5, 1e-8])
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_a_basis_between_two_copies_of_one_circuit(size: float, condition: float) -> None:
    """What is left is the rounding of float64, times the condition of the change."""
    rng = np.random.default_rng(3)
    count, width, length = 20, 4, 24
    plain, dual = (rng.standard_normal((count, width, length)) for _ in range(2))
    plain[:, -1] *= size
    dual[:, -1] *= size
    pairs = []
    for _ in range(2):
        left, right = (np.linalg.qr(rng.standard_normal((count, width, width)))[0] for _ in "lr")
        by = left * np.geomspace(1, condition, width) @ right
        back = left / np.geomspace(1, condition, width) @ right
        pairs.append((by @ plain, back @ dual))
    (one, one_dual), (other, other_dual) = pairs
    noises = [(EPSILON**2 * np.square(x)).mean(axis=-1) for x in (other, other_dual, one, one_dual)]
    change = fit_basis(one, other, one_dual, other_dual, *noises)
    for by, first, second in ((change.matrix, one, other), (change.dual, one_dual, other_dual)):
        residual = np.linalg.norm(by @ first - second, axis=-1)
        allowed = 32 * EPSILON * change.condition[:, None] * np.linalg.norm(second, axis=-1)
        assert (residual < allowed).all()


def test_factors_of_one_number_follow_what_is_known_best() -> None:
    """The first model's rounding is carried along: a large row says as much as a small one."""
    rng = np.random.default_rng(4)
    count, length = 50, 12
    scale = 10.0 ** rng.uniform(-4, 4, count)
    plain, dual = (rng.standard_normal((count, 1, length)) for _ in range(2))
    # Exact to 1e-12 in the plain factors, to 1e-6 in the dual ones, in either model.
    spread = 1e-12, 1e-6

    def copy(by: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        factors = plain * by[:, None, None], dual / by[:, None, None]
        sizes = by[:, None, None], 1 / by[:, None, None]
        return [
            x + s * size * rng.standard_normal(x.shape)
            for x, s, size in zip(factors, spread, sizes, strict=True)
        ]

    one, other = copy(np.ones(count)), copy(scale)
    noises = [
        (s * size)[:, None] ** 2
        for s, size in (
            (spread[0], scale),
            (spread[1], 1 / scale),
            (spread[0], np.ones(count)),
            (spread[1], np.ones(count)),
        )
    ]
    for forwards in (True, False):
        first, second = (one, other) if forwards else (other, one)
        known = noises if forwards else noises[2:] + noises[:2]
        change = fit_basis(first[0], second[0], first[1], second[1], *known)
        truth = scale if forwards else 1 / scale
        error = np.abs(change.matrix[:, 0, 0] / truth - 1)
        assert error.max() < 6 * np.sqrt(2) * spread[0] / np.sqrt(length / 2)


def with_spread_columns(
    parameters: Parameters, model: Architecture, powers: float, *, everywhere: bool = False
) -> None:
    """Every coordinate of the tables has a size of its own, or every column of all matrices."""
    rng = np.random.default_rng(5)
    for name, array in parameters.items():
        if everywhere and array.ndim > 1:
            parameters[name] = array * 10.0 ** rng.uniform(-powers, powers, array.shape[-1])
    for segment in wire(model, model.default_observable).segments:
        sizes = 10.0 ** rng.uniform(-powers, powers, segment.width)
        for view in {w.view: None for w in segment.writers if w.layer is None}:
            view.write(parameters, view.read(parameters) * sizes)


UNTIED = [
    toys.llama(num_hidden_layers=2, hidden_size=8, vocab_size=48),
    toys.gpt2(n_embd=8, vocab_size=48, tie_word_embeddings=False),
    toys.phi(),
    toys.t5(tie_word_embeddings=False),
]
"""Nothing pins a coordinate, so a rotation is fitted."""


@pytest.mark.parametrize("form", ["float64", "float32"])
@pytest.mark.parametrize("config", UNTIED)
def test_tables_whose_columns_differ_in_size(config: dict[str, Any], form: str) -> None:
    model = laid_out(config)
    for powers in (1.0, 3.0):
        source = drawn(model, 1)
        with_spread_columns(source, model, powers, everywhere=True)
        for seed in range(5):
            copies = [far_moved(model, source, 10 * seed + number, 10.0) for number in (1, 2)]
            for first in (source, copies[0]):
                found = compared(model, stored(first, form), stored(copies[1], form))
                if form == "float32" and powers > 1:
                    # One uncertain turn of the frame shows in many rows: its size is chance.
                    assert found.outcome is not Outcome.DIFFERENT, found.reason
                    continue
                assert found.outcome is Outcome.SAME, (powers, found.reason)
                assert found.witness is not None


@pytest.mark.parametrize("config", [toys.gpt2(n_embd=8), toys.llama(tie_word_embeddings=True)])
def test_columns_of_different_sizes_turned_among_equal_gains(config: dict[str, Any]) -> None:
    model = laid_out(config)
    source = drawn(model, 1)
    name = next(n for n in source if n.endswith(("ln_f.weight", "model.norm.weight")))
    source[name] = np.ones_like(source[name])
    with_spread_columns(source, model, 3.0)
    for seed in range(3):
        one, other = (far_moved(model, source, 10 * seed + number, 10.0) for number in (1, 2))
        for first in (source, one):
            found = compared(model, first, other)
            assert found.outcome is Outcome.SAME, found.reason


@pytest.mark.parametrize("role", ["query", "value", "output", "up", "down"])
@pytest.mark.parametrize("config", UNTIED[:2])
def test_a_change_in_a_frame_of_spread_columns(config: dict[str, Any], role: str) -> None:
    """Faint directions of the frame excuse nothing in the others."""
    model = laid_out(config)
    source = drawn(model, 1)
    with_spread_columns(source, model, 3.0)
    wiring = wire(model, model.default_observable)
    block = next(b for b in (*wiring.attentions, *wiring.mlps) if hasattr(b, role))
    changed = with_one_change(source, getattr(block, role), 1, 10 * 8 * 32 * 8.0)
    for seed in range(3):
        one, other = moved(model, source, seed), moved(model, changed, seed + 7)
        for first in (source, one):
            found = compared(model, first, other)
            assert found.outcome is Outcome.DIFFERENT, found.reason
            assert found.first_difference.startswith("layer 0"), found.first_difference


@pytest.mark.parametrize("powers", [0.0, 2.0, 4.0])
def test_a_rotation_is_off_by_what_it_says(powers: float) -> None:
    """Against the rotation that made the second table: every turn within its own deviation."""
    rng = np.random.default_rng(6)
    width = 6
    for _ in range(10):
        truth = np.linalg.qr(rng.standard_normal((width, width)))[0]
        sizes = 10.0 ** rng.uniform(-powers, powers, width)
        one = rng.standard_normal((60, width)) * sizes
        other = one @ truth.T
        tables = [Vectors("table", rounded(x)) for x in (one, other)]
        whole = np.arange(width)
        fitted = Tables([(tables[0], tables[1])], width).fitted([(whole, whole)], centred=False)
        assert fitted.undetermined == 0
        between = fitted.directions.T @ (fitted.matrix @ truth.T) @ fitted.directions
        turns = np.abs(between - np.eye(width)) / np.sqrt(fitted.turns + EPSILON**2 * 100)
        assert turns.max() < 3
        # What is known about two directions is no less than what either shows by itself.
        strength = np.linalg.svd(one, compute_uv=False)
        typical = 32 * EPSILON * np.sqrt(np.square(one).mean())
        assert np.sqrt(fitted.turns.max()) < 3 * typical / strength[-1]


@pytest.mark.parametrize("config", [GPT2, BERT, toys.vit(), toys.distilbert()])
def test_a_witness_from_a_far_copy_arrives(config: dict[str, Any]) -> None:
    """The rounding of the copy, carried back by a condition of 1,000, reaches the last biases."""
    model = laid_out(config)
    source = drawn(model, 1)
    for seed in range(4):
        copy = stored(far_moved(model, source, seed, 1000.0), "float32")
        found = compared(model, copy, stored(source, "float32"))
        assert found.outcome is Outcome.SAME, found.reason
        assert any("arrives at every stored number" in note for note in found.notes), found.notes


def test_a_witness_that_misses_by_more_than_rounding_is_noticed() -> None:
    model = laid_out(GPT2)
    source = drawn(model, 1)
    copy = far_moved(model, source, 1, 1000.0)
    pair = [StoredModel.of(model, stored(p, "float32"), label="x") for p in (copy, source)]
    arrays = [{n: m.tensor(n).astype(np.float64) for n in model.tensors} for m in pair]
    found = compared(model, stored(copy, "float32"), stored(source, "float32"))
    assert found.witness is not None and found.alignment is not None
    for mechanism in (QUERY_KEY, VALUE_OUTPUT, NEURON_PERMUTATION):
        steps = list(found.witness.steps)
        at = next(i for i, step in enumerate(steps) if step.key.mechanism == mechanism)
        element = np.array(steps[at].element)
        if mechanism == NEURON_PERMUTATION:
            element[..., :2] = element[..., 1::-1]
        else:
            element[0] *= 1.001
        steps[at] = replace(steps[at], element=element)
        other = replace(found.witness, steps=tuple(steps))
        failed, remarks = check(other, found.alignment, *pair, *arrays)
        assert failed == ""
        assert any("does not arrive" in remark for remark in remarks), mechanism


TIED = [
    BERT,
    toys.bert("roberta", "RobertaForMaskedLM", max_position_embeddings=8, vocab_size=30),
    toys.opt(vocab_size=30),
]


@pytest.mark.parametrize("config", TIED)
def test_a_constant_that_dwarfs_the_rows_of_a_tied_table(config: dict[str, Any]) -> None:
    """The mean of the rows is taken off; its own rounding would be an error of all rows."""
    model = laid_out(config)
    wiring = wire(model, Observable.PROBABILITIES)
    views = [w.view for s in wiring.segments for w in s.writers if w.tied]
    source = drawn(model, 1)
    for view in dict.fromkeys(views):
        view.write(source, 1e-4 * view.read(source))
    view = max(views, key=lambda view: view.shape[0])
    for seed in range(6):
        # Shifts are as large as biases and other tables.
        one, other = (moved(model, source, 10 * seed + k, Observable.PROBABILITIES) for k in (1, 2))
        found = compared(model, one, other, "probabilities")
        assert found.outcome is Outcome.SAME, found.reason
    # Ten tolerances of eight roundings of numbers of the size of the shift.
    shift = max(float(np.abs(view.read(p)).max()) for p in (one, other))
    changed = {name: value.copy() for name, value in source.items()}
    array = np.array(view.read(changed))
    array[3, 1] += 10 * 8 * EPSILON * shift
    view.write(changed, array)
    for seed in range(6):
        copy = moved(model, changed, 10 * seed + 2, Observable.PROBABILITIES)
        found = compared(model, one, copy, "probabilities")
        assert found.outcome is Outcome.DIFFERENT, found.reason


WIDE_OPT = toys.opt(vocab_size=30, hidden_size=6, word_embed_proj_dim=6)


def with_huge_biases(config: dict[str, Any]) -> tuple[Architecture, Parameters]:
    model = laid_out(config)
    source = drawn(model, 0)
    for name in source:
        if name.endswith("bias"):
            source[name] = 1e14 * source[name]
    return model, source


def test_outputs_that_float64_itself_blurs() -> None:
    """A witness cannot keep them better than the rounding of the numbers that it moves."""
    model, source = with_huge_biases(WIDE_OPT)
    seen = 0
    for seed in range(8):
        copy = far_moved(model, source, seed, 10.0, Observable.PROBABILITIES)
        found = compared(model, source, copy, "probabilities")
        assert found.outcome is not Outcome.DIFFERENT, found.reason
        assert "not trusted" not in found.reason
        seen += found.outcome is Outcome.SAME
    assert seen


def test_gains_that_differ_only_in_order_may_be_the_fault_of_the_frame() -> None:
    """Shifts as large as 1e14 drown a table in float32, and with it the order of coordinates."""
    model, source = with_huge_biases(WIDE_OPT)
    for seed in range(4):
        copy = far_moved(model, source, seed, 10.0, Observable.PROBABILITIES)
        found = compared(model, stored(source, "float32"), stored(copy, "float32"), "probabilities")
        assert found.outcome is not Outcome.DIFFERENT, found.reason


def test_gains_that_differ_in_every_order_are_different() -> None:
    model = laid_out(toys.opt(vocab_size=30))
    source = drawn(model, 0)
    source["model.decoder.embed_tokens.weight"][:, 0] = 0.0
    changed = dict(source)
    name = "model.decoder.final_layer_norm.weight"
    changed[name] = changed[name] * np.where(np.arange(len(changed[name])) == 1, 1 + 1e-3, 1.0)
    found = compared(model, stored(source, "float32"), stored(changed, "float32"))
    assert found.outcome is Outcome.DIFFERENT, found.reason


POST_NORM = [
    toys.distilbert(activation="relu", hidden_dim=5),
    toys.bert("roberta", "RobertaModel", hidden_act="relu", max_position_embeddings=8),
]


def with_spread_entries(
    config: dict[str, Any], seed: int, powers: float = 3.0
) -> tuple[Architecture, Parameters]:
    """Every number has a size of its own, over six powers of ten or fewer."""
    model = laid_out(config)
    rng = np.random.default_rng(seed)
    source = drawn(model, seed)
    for name, array in source.items():
        source[name] = array * 10.0 ** rng.uniform(-powers, powers, array.shape)
    return model, {n: x.astype(np.float64) for n, x in stored(source, "float32").items()}


@pytest.mark.parametrize("config", POST_NORM)
def test_neurons_whose_numbers_differ_in_size(config: dict[str, Any]) -> None:
    """Each neuron's columns are weighed by its own rounding."""
    for seed in range(30):
        model, source = with_spread_entries(config, seed)
        one, other = (stored(far_moved(model, source, seed + k, 10.0), "float32") for k in (0, 50))
        found = compared(model, one, other)
        assert found.outcome is Outcome.SAME, (seed, found.reason)


@pytest.mark.parametrize("config", POST_NORM)
def test_a_change_among_numbers_of_different_sizes(config: dict[str, Any]) -> None:
    for seed in range(6):
        model, source = with_spread_entries(config, seed, 1.0)
        wiring = wire(model, model.default_observable)
        mlp = wiring.mlps[0]
        gain = wiring.point_reading(mlp.up).norm.gain
        assert gain is not None
        array = np.array(mlp.up.read(source))
        seen = np.abs(array[1] * gain.read(source))
        # Ten tolerances of eight roundings, of the largest number of a row with its constant,
        # which can be ten times as large.
        array[1, seen.argmax()] *= 1 + 10 * 8 * 10 * 2.0**-23
        changed = {name: value.copy() for name, value in source.items()}
        mlp.up.write(changed, array)
        one = stored(far_moved(model, source, seed, 10.0), "float32")
        other = stored(far_moved(model, changed, seed + 50, 10.0), "float32")
        found = compared(model, one, other)
        assert found.outcome is Outcome.DIFFERENT, (seed, found.reason)
        assert found.first_difference == "layer 0 MLP neurons"
