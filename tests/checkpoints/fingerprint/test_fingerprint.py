"""Fingerprints: the same after every move of every table, and honest about rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.fingerprint import (
    Fingerprint,
    Resemblance,
    fingerprint_of,
    resemblance,
)
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.checkpoints.moves.exceptional import NEURON_MIXING
from fiberscope.checkpoints.writing import FORMATS, rounded
from fiberscope.errors import InputError
from tests.checkpoints.ledger.toys import CASES, gpt2, llama

Arrays = dict[str, np.ndarray]
Config = dict[str, Any]
DTYPES = tuple(FORMATS)


def drawn(config: Config, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(1.0, 0.3, shape) if len(shape) == 1 else rng.normal(0.0, 0.6, shape)
        for name, shape in architecture(dict(config)).tensors.items()
    }


def stored(parameters: Arrays, dtype: str) -> Arrays:
    return {name: rounded(value, FORMATS[dtype]) for name, value in parameters.items()}


def of(config: Config, parameters: Arrays, observable: str = "logits") -> Fingerprint:
    return fingerprint_of(StoredModel.of(architecture(dict(config)), parameters, observable))


def moved(
    config: Config, parameters: Arrays, observable: str = "logits", seed: int = 0, **named: Any
) -> Arrays:
    catalogue = Catalogue(architecture(dict(config)), Observable(observable))
    move = RandomMove(catalogue, seed, **named)
    return dict(move.tensors(lambda name: parameters[name].astype(np.float64)))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_no_exact_mechanism_changes_it(number: int) -> None:
    config, observable = CASES[number]
    for dtype in (DTYPES[number % 4], DTYPES[(number + 2) % 4]):
        source = stored(drawn(config, number), dtype)
        first = of(config, source, observable)
        for condition in (None, 1000.0):
            copy = moved(config, source, observable, number, condition=condition)
            found = resemblance(first, of(config, stored(copy, dtype), observable))
            assert found.resemblance is Resemblance.POSSIBLY_THE_SAME, found.reason
            assert found.compared == len(first.invariants)
        other = of(config, stored(drawn(config, number + 1000), dtype), observable)
        assert resemblance(first, other).resemblance is Resemblance.DIFFERENT


def test_formats_can_differ() -> None:
    config = llama(num_hidden_layers=2)
    source = stored(drawn(config, 0), "float32")
    first = of(config, source)
    for dtype in DTYPES:
        copy = stored(moved(config, source), dtype)
        assert resemblance(first, of(config, copy)).resemblance is Resemblance.POSSIBLY_THE_SAME


def test_one_weight_is_seen_beyond_its_rounding() -> None:
    config = llama()
    source = stored(drawn(config, 0), "float32")
    first = of(config, source)
    for name, where in (
        ("model.embed_tokens.weight", (0, 1)),
        ("model.layers.0.self_attn.q_proj.weight", (2, 1)),
        ("model.layers.0.self_attn.v_proj.weight", (2, 1)),
        ("model.layers.0.mlp.down_proj.weight", (2, 1)),
    ):
        changed = {n: v.copy() for n, v in source.items()}
        changed[name][where] *= np.float32(1.01)
        assert resemblance(first, of(config, changed)).resemblance is Resemblance.DIFFERENT, name


def test_errors_follow_the_condition_and_the_format() -> None:
    config = llama()
    source = stored(drawn(config, 0), "float32")

    def relative(fingerprint: Fingerprint, *words: str) -> float:
        found = [i for i in fingerprint.invariants if all(word in i.name for word in words)]
        assert found
        return max(i.error / i.value for i in found)

    plain = of(config, source)
    for dtype, unit in (("float32", 2.0**-24), ("bfloat16", 2.0**-8)):
        tame = of(config, stored(moved(config, source, condition=1.0), dtype))
        wild = of(config, stored(moved(config, source, condition=1000.0), dtype))
        # A row and a gain, rounded by half a unit at most, and the safety factor: norms of rows do
        # not know about changes of basis in heads ...
        assert unit / 20 < relative(tame, ": row ", "norm") < 3 * unit
        assert unit / 20 < relative(wild, ": row ", "norm") < 3 * unit
        # ... the value/output circuits suffer.
        assert relative(wild, "norm of the value/output") > 5 * relative(tame, "value/output")
    assert relative(plain, ": row ", "norm") < 3 * 2.0**-24


def test_numbers_against_dense_products() -> None:
    config = llama(num_key_value_heads=2, tie_word_embeddings=True)
    parameters = drawn(config, 3)
    numbers = {i.name: i.value for i in of(config, parameters).invariants}
    at = "model.layers.0."
    rows = parameters["model.embed_tokens.weight"]
    assert numbers["token embedding: row 0, norm"] == pytest.approx(np.linalg.norm(rows[0]))
    gain = parameters[at + "input_layernorm.weight"]
    value = parameters[at + "self_attn.v_proj.weight"].reshape(2, 4, 6) * gain
    output = parameters[at + "self_attn.o_proj.weight"].reshape(6, 2, 4).transpose(1, 0, 2)
    circuits = output @ value
    name = "layer 0 attention: largest singular value of a value/output circuit"
    assert numbers[name] == pytest.approx(np.linalg.norm(circuits, 2, axis=(1, 2)).max())
    name = "layer 0 attention: norm of the value/output circuits"
    assert numbers[name] == pytest.approx(np.linalg.norm(circuits))


def test_what_can_be_anything_counts_as_nothing() -> None:
    config = llama(num_key_value_heads=2)
    parameters = drawn(config, 1)
    at = "model.layers.0."
    parameters[at + "mlp.gate_proj.weight"][1] = 0.0
    parameters[at + "mlp.down_proj.weight"][:, 2] = 0.0
    parameters[at + "self_attn.o_proj.weight"][:, :4] = 0.0
    other = {name: value.copy() for name, value in parameters.items()}
    rng = np.random.default_rng(0)
    other[at + "mlp.up_proj.weight"][1] = rng.standard_normal(6)
    other[at + "mlp.gate_proj.weight"][2] = rng.standard_normal(6)
    other[at + "self_attn.q_proj.weight"][:4] = rng.standard_normal((4, 6))
    other[at + "self_attn.v_proj.weight"][:4] = rng.standard_normal((4, 6))
    for dtype in DTYPES:
        first = of(config, stored(parameters, dtype))
        second = of(config, stored(moved(config, stored(other, dtype)), dtype))
        assert resemblance(first, second).resemblance is Resemblance.POSSIBLY_THE_SAME


def test_equal_neurons_and_heads_are_left_out() -> None:
    config = llama()
    parameters = drawn(config, 1)
    gate = parameters["model.layers.0.mlp.gate_proj.weight"]
    gate[3] = gate[1]
    query = parameters["model.layers.0.self_attn.q_proj.weight"]
    query[4:] = query[:4]
    first = of(config, parameters)
    assert any("neurons" in reason for reason in first.left_out)
    assert any("heads" in reason for reason in first.left_out)
    mixed = moved(config, parameters, only=[NEURON_MIXING], condition=20.0)
    output = mixed["model.layers.0.self_attn.o_proj.weight"]
    shift = np.random.default_rng(0).standard_normal((6, 4))
    output[:, :4] += shift
    output[:, 4:] -= shift
    found = resemblance(first, of(config, mixed))
    assert found.resemblance is Resemblance.POSSIBLY_THE_SAME


def test_plain_data_and_back() -> None:
    first = of(llama(), drawn(llama(), 0))
    assert Fingerprint.from_dict(first.to_dict(), "x") == first
    for broken in ({}, {**first.to_dict(), "invariants": 3}, {**first.to_dict(), "tokens": "many"}):
        with pytest.raises(InputError):
            Fingerprint.from_dict(broken, "x")
    with pytest.raises(InputError, match="mean different things"):
        resemblance(first, of(gpt2(), drawn(gpt2(), 0)))
    larger = llama(vocab_size=20)
    found = resemblance(first, of(larger, drawn(larger, 0)))
    assert found.resemblance is Resemblance.DIFFERENT


def test_heads_that_rounding_hides_are_left_out() -> None:
    """Behind a LayerNorm a row that nearly cancels is a live head in one file, noise in another."""
    config = gpt2()
    source = drawn(config, 3)
    weight = source["transformer.h.0.attn.c_attn.weight"]
    value = weight[:, 8:10]  # the first head's values, stored input by output
    weight[:, 8:10] = 1e-4 * value
    first = of(config, source)
    # Along 1 / gain nothing is seen, so the rows can be large: rounding then hides what is seen.
    copy = {name: array.copy() for name, array in source.items()}
    free = 1 / copy["transformer.h.0.ln_1.weight"]
    shift = 100.0 * free[:, None] * np.ones((1, 2))
    copy["transformer.h.0.attn.c_attn.weight"][:, 8:10] += shift
    bias = copy["transformer.h.0.attn.c_attn.bias"]
    bias[8:10] -= copy["transformer.h.0.ln_1.bias"] @ shift
    exact = resemblance(first, of(config, copy))
    assert exact.resemblance is Resemblance.POSSIBLY_THE_SAME, exact.reason
    for dtype in ("float16", "bfloat16"):
        second = of(config, stored(copy, dtype))
        assert any("rounding hides" in reason for reason in second.left_out)
        found = resemblance(first, second)
        assert found.resemblance is Resemblance.POSSIBLY_THE_SAME, found.reason
