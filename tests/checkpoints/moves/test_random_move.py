"""Random moves of everything against the published classes, for every table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.moves import Catalogue, RandomMove, Witness, moved_tensors
from fiberscope.checkpoints.moves.exceptional import EQUAL_GAINS, NEURON_MIXING
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind
from tests.checkpoints.ledger.toys import CASES, bert, gpt2, llama

Arrays = dict[str, np.ndarray]

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def twin_of(
    config: dict[str, Any], observable: str, seed: int, epsilon: float | None = None
) -> Any:
    from fiberscope.checkpoints.twins import build_twin

    return build_twin(config, observable, seed, inputs=6, epsilon=epsilon)


def drawn(
    config: dict[str, Any], observable: str, parameters: Arrays, seed: int, **named: Any
) -> tuple[Arrays, Witness, RandomMove]:
    catalogue = Catalogue(architecture(dict(config)), Observable(observable))
    move = RandomMove(catalogue, seed, **named)
    moved = dict(move.tensors(lambda name: parameters[name].copy()))
    return {name: moved[name] for name in parameters}, move.witness, move


def difference(first: Arrays, second: Arrays) -> float:
    scale = max(float(np.abs(value).max()) for value in second.values())
    return max(float(np.abs(first[n] - second[n]).max()) for n in second) / scale


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_published_class_computes_the_same(number: int) -> None:
    config, observable = CASES[number]
    twin = twin_of(config, observable, number)
    before = twin.observe(twin.parameters)
    for condition in (1.0, None, 1000.0):
        moved, witness, move = drawn(
            config, observable, twin.parameters, number, condition=condition
        )
        # A matrix and its inverse bring in a rounding each, as large as its condition number;
        # a handful of mechanisms and layers of few terms each.
        unit = 100 * np.finfo(float).eps * (condition or 4.0)
        change = np.abs(twin.observe(moved) - before).max() / np.abs(before).max()
        assert change < unit
        assert all(np.isfinite(value).all() for value in moved.values())
        # Every mechanism that can act has acted, and every tensor but lone gains has moved.
        acting = {step.key.mechanism for step in witness.steps}
        exact = {
            key.mechanism
            for key, item in move.catalogue.items.items()
            if item.kind is not Kind.APPROXIMATE
        }
        assert exact <= acting
        # The three ways to apply a witness agree to the bit, and its inverse leads back.
        again = witness.apply(twin.parameters)
        streamed = dict(moved_tensors(witness, lambda name: twin.parameters[name].copy()))
        for name, value in moved.items():
            assert np.array_equal(again[name], value)
            assert np.array_equal(streamed[name], value)
        assert difference(witness.inverse().apply(moved), twin.parameters) < unit


def test_the_condition_is_met() -> None:
    config = llama(num_hidden_layers=2)
    parameters = twin_of(config, "logits", 0).parameters
    _, witness, _ = drawn(config, "logits", parameters, 3, condition=1234.0)
    found = {(d.mechanism, d.layer): d.condition for d in witness.describe() if d.condition > 100.0}
    for layer in (0, 1):
        for mechanism in (
            "query/key basis change",
            "value/output basis change",
            "gated MLP scaling",
            "norm gain",
        ):
            assert found[mechanism, layer] == pytest.approx(1234.0, rel=1e-9)


def test_draws_are_repeatable_and_seeds_differ() -> None:
    config = llama()
    parameters = twin_of(config, "logits", 0).parameters
    first, _, _ = drawn(config, "logits", parameters, 3)
    again, _, _ = drawn(config, "logits", parameters, 3)
    other, _, _ = drawn(config, "logits", parameters, 4)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert all(not np.array_equal(first[name], other[name]) for name in first)


def test_only_what_is_named() -> None:
    config = llama()
    parameters = twin_of(config, "logits", 0).parameters
    moved, witness, _ = drawn(
        config, "logits", parameters, 0, only=["value/output", "Permutation of neurons"]
    )
    changed = {
        name.split(".")[-2] for name in parameters if np.any(moved[name] != parameters[name])
    }
    assert changed == {"v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"}
    assert {step.key.mechanism for step in witness.steps} == {
        "value/output basis change",
        "permutation of neurons",
    }
    for wrong, words in (("basis", "names several"), ("nothing", "is no mechanism"), ("", "is no")):
        with pytest.raises(InputError, match=words):
            drawn(config, "logits", parameters, 0, only=[wrong])


def test_approximate_mechanisms_are_named_and_broken_by_epsilon() -> None:
    config = llama("qwen3", "Qwen3ForCausalLM", vocab_size=24)
    for epsilon, least, most in ((1e-2, 1e-5, 1.0), (0.0, 0.0, 1e-12)):
        twin = twin_of(config, "logits", 0, epsilon)
        before = twin.observe(twin.parameters)
        names = ["scale of a normalised sum", "scale of normalised queries and keys"]
        config["rms_norm_eps"] = 1e-2
        moved, witness, _ = drawn(config, "logits", twin.parameters, 0, only=names)
        assert {step.key.mechanism for step in witness.steps} == set(names)
        change = np.abs(twin.observe(moved) - before).max() / np.abs(before).max()
        assert least <= change < most


def test_shifts_are_as_large_as_the_weights() -> None:
    """In float16 a moved toy keeps three digits: nothing drowned in what cancels again."""
    for config, observable in ((gpt2(), "logits"), (bert(), "hidden")):
        twin = twin_of(config, observable, 1)
        parameters = {name: value * 0.02 for name, value in twin.parameters.items()}
        moved, witness, _ = drawn(config, observable, parameters, 1)
        shifts = [d.size for d in witness.describe() if d.condition == 1 and d.size < 0.9]
        assert shifts
        rounded = {n: v.astype(np.float16).astype(np.float64) for n, v in moved.items()}
        back = witness.inverse().apply(rounded)
        # Half a unit of float16 is 5e-4; condition at most 4 three or four times over.
        assert difference(back, parameters) < 64 * 5e-4


def test_models_as_they_are_initialised() -> None:
    """Biases of zero, gains of one, a pooler of zeros: everything can still be moved and undone."""
    for number, (config, observable) in enumerate(CASES[::3]):
        twin = twin_of(config, observable, number)
        offset = 1.0 if "gemma" in config["model_type"] else 0.0
        parameters = {
            name: np.full_like(value, 1.0 - offset if name.endswith("weight") else 0.0)
            if value.ndim == 1
            else np.zeros_like(value)
            if "pooler" in name
            else value
            for name, value in twin.parameters.items()
        }
        before = twin.observe(parameters)
        moved, witness, _ = drawn(config, observable, parameters, number)
        scale = max(1e-3, float(np.abs(before).max()))
        assert np.abs(twin.observe(moved) - before).max() < 1e-12 * scale
        assert difference(witness.inverse().apply(moved), parameters) < 1e-12


def with_tiny_and_zero_gains(parameters: Arrays, *, final: bool) -> Arrays:
    changed = {name: value.copy() for name, value in parameters.items()}
    for name, value in changed.items():
        is_final = "ln_f" in name or "model.norm" in name
        if (
            ("norm" in name or "ln_" in name)
            and name.endswith("weight")
            and (final or not is_final)
        ):
            value[1], value[2] = 0.0, 1e-9
    return changed


@pytest.mark.parametrize("untied", [llama(num_hidden_layers=2), gpt2(tie_word_embeddings=False)])
def test_zero_and_tiny_gains_are_folded_before_rotating(untied: dict[str, Any]) -> None:
    twin = twin_of(untied, "logits", 2)
    # GPT-2's head has no bias that could take over the final norm's at a zero gain.
    is_llama = untied["model_type"] == "llama"
    parameters = with_tiny_and_zero_gains(twin.parameters, final=is_llama)
    before = twin.observe(parameters)
    moved, witness, _ = drawn(untied, "logits", parameters, 2)
    assert np.abs(twin.observe(moved) - before).max() < 1e-12 * np.abs(before).max()
    assert max(float(np.abs(value).max()) for value in moved.values()) < 1e3
    back = witness.inverse().apply(moved)
    # Folding and unfolding a gain of 1e-9 costs that many digits of its readers.
    assert difference(back, parameters) < 100 * np.finfo(float).eps * 1e9
    with pytest.raises(InputError, match="norm gain"):
        drawn(untied, "logits", parameters, 2, only=["residual rotation"])
    if not is_llama:
        hopeless = with_tiny_and_zero_gains(twin.parameters, final=True)
        with pytest.raises(InputError, match="no reader can take over"):
            drawn(untied, "logits", hopeless, 2)


@pytest.mark.parametrize(
    ("config", "final"),
    [
        (llama(tie_word_embeddings=True), "model.norm.weight"),
        (gpt2(n_embd=6), "transformer.ln_f.weight"),
        (llama("gemma", "GemmaForCausalLM", tie_word_embeddings=True), "model.norm.weight"),
    ],
)
def test_tied_models_turn_among_equal_final_gains(config: dict[str, Any], final: str) -> None:
    twin = twin_of(config, "logits", 2)
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    width = len(parameters[final])
    parameters[final][: width - 1] = [1.25] * 3 + [0.5] * (width - 4)
    before = twin.observe(parameters)
    moved, witness, _ = drawn(config, "logits", parameters, 2, only=[EQUAL_GAINS])
    assert [step.key.mechanism for step in witness.steps] == [EQUAL_GAINS]
    assert np.array_equal(moved[final], parameters[final])
    embedding = next(name for name in parameters if "wte" in name or "embed_tokens" in name)
    assert np.abs(moved[embedding] - parameters[embedding]).max() > 0.1
    assert np.abs(twin.observe(moved) - before).max() < 1e-13 * np.abs(before).max()
    whole, witness, _ = drawn(config, "logits", parameters, 2)
    assert EQUAL_GAINS in {step.key.mechanism for step in witness.steps}
    assert np.abs(twin.observe(whole) - before).max() < 1e-12 * np.abs(before).max()
    _distinct, witness, _ = drawn(config, "logits", twin.parameters, 2)
    assert EQUAL_GAINS not in {step.key.mechanism for step in witness.steps}


def test_neurons_with_equal_gates_mix() -> None:
    config = llama()
    twin = twin_of(config, "logits", 2)
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    gate = "model.layers.0.mlp.gate_proj.weight"
    parameters[gate][[3, 4]] = parameters[gate][1]
    before = twin.observe(parameters)
    moved, witness, _ = drawn(config, "logits", parameters, 2, only=[NEURON_MIXING], condition=50)
    assert [list(step.data["neurons"]) for step in witness.steps] == [[1, 3, 4]]
    assert np.abs(twin.observe(moved) - before).max() < 1e-12 * np.abs(before).max()
    up = "model.layers.0.mlp.up_proj.weight"
    assert np.abs(moved[up][[1, 3, 4]] - parameters[up][[1, 3, 4]]).max() > 0.1
    assert np.array_equal(moved[up][[0, 2]], parameters[up][[0, 2]])
