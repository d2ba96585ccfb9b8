"""Duplicate neurons: however their writes are mixed, the form is the same."""

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.canonical import canonical_parameters  # noqa: E402
from fiberscope.checkpoints.canonical.equal_neurons import (  # noqa: E402
    EQUAL_NEURONS,
    MERGED,
    Rows,
    equal_sets,
)
from fiberscope.checkpoints.ledger.wiring import wire  # noqa: E402
from fiberscope.checkpoints.moves.exceptional import neuron_mixing, neuron_shift  # noqa: E402
from tests.checkpoints.canonical.test_form import (  # noqa: E402
    case_name,
    deviation,
    largest_difference,
    moved,
    set_up,
    stored,
    widened,
)
from tests.checkpoints.ledger.toys import bert, gpt2, llama  # noqa: E402

GATED = [(llama(), "logits"), (llama(tie_word_embeddings=True), "logits")]
PLAIN = [
    (gpt2(), "logits"),
    (gpt2(activation_function="relu"), "logits"),
    (gpt2(tie_word_embeddings=False, activation_function="tanh"), "logits"),
    (bert(), "hidden"),
]
TWINS = np.array([0, 3])


def with_equal_arguments(wiring, parameters, factor=1.0):
    """Neuron 3 of the first layer reads what neuron 0 reads, times a factor."""
    parameters = {name: value.copy() for name, value in parameters.items()}
    mlp = wiring.mlps[0]
    views = (mlp.up, mlp.up_bias) if mlp.gate is None else (mlp.gate, mlp.gate_bias)
    for view in views:
        if view is not None:
            rows = view.read(parameters)
            rows[TWINS[1]] = factor * rows[TWINS[0]]
    return parameters, mlp


def mixed(mlp, parameters, rng):
    """Another factorisation of what the two write, by an independent implementation."""
    if mlp.gate is None:
        symmetry = neuron_shift(mlp, TWINS).symmetry
        return symmetry.act(rng.standard_normal((1, mlp.down.shape[0])), parameters)
    symmetry = neuron_mixing(mlp, TWINS).symmetry
    return symmetry.act(rng.standard_normal((2, 2)) + 2 * np.eye(2), parameters)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", GATED + PLAIN, ids=case_name)
def test_mixed_duplicates_have_one_form(case, seed):
    found, observable, twin = set_up(case, seed)
    parameters, mlp = with_equal_arguments(wire(found, observable), twin.parameters)
    rng = np.random.default_rng(seed)
    if mlp.gate is None:
        # A shift between the writes of two equal rows.
        other = {name: value.copy() for name, value in parameters.items()}
        shift = rng.standard_normal(mlp.down.shape[0])
        down = mlp.down.read(other)
        down[:, TWINS[0]] += shift
        down[:, TWINS[1]] -= shift
    else:
        other = mixed(mlp, parameters, rng)
    reference = twin.observe(parameters)
    assert deviation(twin, other, reference) < 1e-12
    other = moved(found, observable, other, seed + 20)
    form, computed = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, reference) < 1e-12
    again, _ = canonical_parameters(found, other, observable)
    assert largest_difference(form, again) < 1e-8
    assert bool(computed.places.dead.get(MERGED)) == (mlp.gate is None)
    for dtype, tolerance in (("float64", 1e-8), ("float32", 1e-3)):
        narrow, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        second, _ = canonical_parameters(found, stored(other, dtype), observable)
        assert largest_difference(widened(narrow), widened(second)) < tolerance


@pytest.mark.parametrize("case", GATED + PLAIN, ids=case_name)
def test_a_stored_form_is_settled(case):
    found, observable, twin = set_up(case, seed=4)
    parameters, _ = with_equal_arguments(wire(found, observable), twin.parameters)
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        form, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        _, computed = canonical_parameters(found, stored(form, dtype), observable)
        assert computed.work.moved == set(), dtype


@pytest.mark.parametrize(("activation", "factor"), [("relu", 2.5), ("relu", 0.3), ("tanh", -1.0)])
def test_arguments_equal_up_to_scale_or_sign_are_merged(activation, factor):
    found, observable, twin = set_up((gpt2(activation_function=activation), "logits"))
    parameters, mlp = with_equal_arguments(wire(found, observable), twin.parameters, factor)
    reference = twin.observe(parameters)
    form, computed = canonical_parameters(found, parameters, observable)
    assert computed.places.dead == {MERGED: 1}
    assert deviation(twin, form, reference) < 1e-12
    silent = ~mlp.down.read(form).any(axis=0)
    assert silent.sum() == 1
    assert not mlp.up.read(form)[silent].any()


@pytest.mark.parametrize("case", [GATED[0], PLAIN[0]], ids=case_name)
def test_nearly_equal_neurons_are_counted_and_kept(case):
    found, observable, twin = set_up(case)
    parameters, mlp = with_equal_arguments(wire(found, observable), twin.parameters, 1 + 2.0**-31)
    form, computed = canonical_parameters(found, parameters, observable)
    assert computed.places.dead == {}
    assert EQUAL_NEURONS in {place.mechanism for place in computed.places.found}
    assert mlp.down.read(form).any(axis=0).all()


def test_a_norm_behind_the_units_forbids_merging():
    """BERT's prediction head normalises its dense units before the unembedding reads them."""
    config = bert(cls="BertForMaskedLM", tie_word_embeddings=False)
    found, observable, twin = set_up((config, "logits"))
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    for name in ("weight", "bias"):
        rows = parameters[f"cls.predictions.transform.dense.{name}"]
        rows[1] = rows[0]
    reference = twin.observe(parameters)
    form, _ = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, reference) < 1e-12


def test_sets_are_found_by_every_entry():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 12))
    rows[[5, 9, 30]] = rows[2]
    rows[21] = rows[11]
    rows[22] = rows[12]
    rows[22, 3] *= 1 + 1e-3

    class Part:
        constant = lost = summed = None

    part = Part()
    part.rows = rows
    sets, near = equal_sets(Rows(part), 2.0**-23)
    assert sorted(members.tolist() for members in sets) == [[2, 5, 9, 30], [11, 21]]
    assert near == 0


@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("case", [*GATED[:1], *PLAIN[:3]], ids=case_name)
def test_large_writes_that_cancel_keep_the_function(case, apart):
    """What rows an ulp apart write may be large and opposite: then the difference is visible."""
    found, observable, twin = set_up(case)
    narrow = stored(twin.parameters, "float32")
    parameters, mlp = with_equal_arguments(wire(found, observable), narrow)
    rows = (mlp.up if mlp.gate is None else mlp.gate).read(parameters)
    for _ in range(apart):
        rows[TWINS[1]] = np.nextafter(rows[TWINS[1]], np.float32(np.inf))
    down = mlp.down.read(parameters)
    rest = down[:, TWINS[1]].copy()
    down[:, TWINS[0]] *= np.float32(1e4)
    down[:, TWINS[1]] = -down[:, TWINS[0]]
    down[:, TWINS[1]] += np.float32(1e-3) * rest
    if mlp.gate is not None:
        mlp.up.read(parameters)[TWINS[1]] = mlp.up.read(parameters)[TWINS[0]]
    reference = twin.observe(widened(parameters))
    form, computed = canonical_parameters(found, parameters, observable)
    # Without the bound by the effect, 1e-5 to 1e-3.
    assert deviation(twin, form, reference) < 2e-6
    assert EQUAL_NEURONS in {place.mechanism for place in computed.places.found}
    if apart:
        assert np.count_nonzero(mlp.down.read(form).any(axis=0)) == mlp.down.shape[1]
    again, computed = canonical_parameters(found, form, observable)
    assert largest_difference(widened(form), again) < 1e-9


def refactored(mlp, parameters, members, power, rng):
    """Gates of other lengths (power > 0) and another factorisation of what they write together."""
    parameters = {name: value.copy() for name, value in parameters.items()}
    count = len(members)
    scales = rng.uniform(0.3, 3.0, count) if power else np.ones(count)
    mixing = rng.standard_normal((count, count)) + 2 * np.eye(count)
    lengths = np.linalg.norm(mlp.gate.read(parameters)[members], axis=1)
    for view, matrix in (
        (mlp.gate, np.diag(scales)),
        (mlp.gate_bias, np.diag(scales)),
        (mlp.up, mixing),
        (mlp.up_bias, mixing),
    ):
        if view is not None:
            rows = view.read(parameters)
            rows[members] = matrix @ rows[members]
    down = mlp.down.read(parameters)
    # act(c g) = c^p act(g): what is written with gates of length 1 is mixed.
    down[:, members] = down[:, members] * lengths**power @ np.linalg.inv(mixing)
    down[:, members] /= (scales * lengths) ** power
    return parameters


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("case", "power"),
    [
        ((llama(hidden_act="relu"), "logits"), 1),
        ((llama(hidden_act="relu", mlp_bias=True), "logits"), 1),
        ((llama(hidden_act="relu2", tie_word_embeddings=True), "logits"), 2),
    ],
    ids=["relu", "relu with biases", "relu2"],
)
def test_gates_equal_up_to_a_positive_factor_have_one_form(case, power, seed, count):
    found, observable, twin = set_up(case, seed)
    mlp = wire(found, observable).mlps[0]
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    rng = np.random.default_rng(seed)
    members = np.array([0, 2, 4])[:count]
    lengths = rng.uniform(0.5, 2.0, count)
    for view in (mlp.gate, mlp.gate_bias):
        if view is not None:
            rows = view.read(parameters)
            rows[members] = np.multiply.outer(lengths, rows[0])
    other = refactored(mlp, parameters, members, power, rng)
    reference = twin.observe(parameters)
    assert deviation(twin, other, reference) < 1e-12
    other = moved(found, observable, other, seed + 30)
    form, computed = canonical_parameters(found, parameters, observable)
    assert computed.places.found == []
    assert deviation(twin, form, reference) < 1e-12
    again, _ = canonical_parameters(found, other, observable)
    assert largest_difference(form, again) < 1e-8
    # Gates alike, and as much of the scale in them as in the rows that they multiply.
    gates = mlp.gate.read(form)
    alike = np.flatnonzero((np.abs(gates[:, None] - gates).max(axis=-1) < 1e-12).sum(axis=1) > 1)
    assert len(alike) == count
    rows = [view.read(form)[alike] for view in (mlp.gate, mlp.up)]
    squares = [np.sum(part**2) for part in rows]
    if mlp.gate_bias is not None:
        squares[0] += np.sum(mlp.gate_bias.read(form)[alike] ** 2)
        squares[1] += np.sum(mlp.up_bias.read(form)[alike] ** 2)
    np.testing.assert_allclose(squares, np.sum(mlp.down.read(form)[:, alike] ** 2), rtol=1e-9)
    for dtype, tolerance in (("float64", 1e-8), ("float32", 1e-3)):
        narrow, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        second, _ = canonical_parameters(found, stored(other, dtype), observable)
        assert largest_difference(widened(narrow), widened(second)) < tolerance
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        form, _ = canonical_parameters(found, stored(other, dtype), observable)
        _, computed = canonical_parameters(found, stored(form, dtype), observable)
        assert computed.work.moved == set(), dtype


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_more_equal_gates_than_the_stream_is_wide(activation):
    """300 units write one matrix of 6 x 6 together: six of them take it over."""
    case = (llama(hidden_act=activation, intermediate_size=303), "logits")
    found, observable, twin = set_up(case)
    mlp = wire(found, observable).mlps[0]
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    members = np.arange(1, 301)
    mlp.gate.read(parameters)[members] = mlp.gate.read(parameters)[1]
    other = refactored(
        mlp, parameters, members, int(activation == "relu"), np.random.default_rng(1)
    )
    reference = twin.observe(parameters)
    assert deviation(twin, other, reference) < 1e-9
    other = moved(found, observable, other, 3)
    form, computed = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, reference) < 1e-12
    assert computed.places.dead == {MERGED: 294}
    assert computed.places.found == []
    assert np.count_nonzero(mlp.down.read(form).any(axis=0)) == 9
    again, _ = canonical_parameters(found, other, observable)
    assert largest_difference(form, again) < 1e-8
    for dtype in ("float64", "float32", "bfloat16"):
        form, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        _, computed = canonical_parameters(found, stored(form, dtype), observable)
        assert computed.work.moved == set(), dtype


def test_gates_that_differ_by_a_sign_behind_an_odd_activation():
    found, observable, twin = set_up((llama(hidden_act="tanh"), "logits"))
    parameters, mlp = with_equal_arguments(wire(found, observable), twin.parameters)
    other = mixed(mlp, parameters, np.random.default_rng(3))
    other = {name: value.copy() for name, value in other.items()}
    mlp.gate.read(other)[TWINS[1]] *= -1.0
    mlp.down.read(other)[:, TWINS[1]] *= -1.0
    assert deviation(twin, other, twin.observe(parameters)) < 1e-12
    form, _ = canonical_parameters(found, parameters, observable)
    again, _ = canonical_parameters(found, other, observable)
    assert largest_difference(form, again) < 1e-8
