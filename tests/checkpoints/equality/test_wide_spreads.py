"""Channels, rows and columns whose sizes differ by powers of ten: moved copies stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.equality.factors import fit_basis
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.parameters import View
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import Parameters, compared, drawn, laid_out, moved
from tests.checkpoints.ledger import toys

EPSILON = 2.0**-52
GPT2 = toys.gpt2(n_embd=8, n_layer=2, n_inner=12, vocab_size=24)
LLAMA = toys.llama(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40)
BERT = toys.bert(cls="BertForMaskedLM", hidden_size=8, vocab_size=30)


def far_moved(model: Architecture, parameters: Parameters, seed: int, condition: float) -> Any:
    """A copy whose every move has this condition number."""
    catalogue = Catalogue(model, model.default_observable)
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
