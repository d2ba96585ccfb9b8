"""The canonical form: same function, same for all points of an orbit, settled once stored."""

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.architecture.program import Observable  # noqa: E402
from fiberscope.checkpoints.architecture.registry import architecture  # noqa: E402
from fiberscope.checkpoints.canonical import canonical_parameters  # noqa: E402
from fiberscope.checkpoints.ledger import ledger  # noqa: E402
from fiberscope.checkpoints.ledger.rules.discrete import HEAD_PERMUTATION  # noqa: E402
from fiberscope.checkpoints.twins import build_twin  # noqa: E402
from fiberscope.checkpoints.writing import FORMATS, rounded  # noqa: E402
from fiberscope.symmetry import Kind  # noqa: E402
from tests.checkpoints.ledger.toys import CASES, bert, gpt2, llama, opt, t5  # noqa: E402


def case_name(case):
    config, observable = case
    return f"{config['architectures'][0]}-{observable}"


def set_up(case, seed=0):
    config, observable = case
    found = architecture(dict(config))
    return found, Observable(observable), build_twin(config, observable, seed, inputs=6)


def moved(found, observable, parameters, seed, rounds=2):
    """Every symmetry of the ledger, discrete ones too, in random order, several times."""
    rng = np.random.default_rng(seed)
    items = [
        i for i in ledger(found, observable).items if i.build and i.kind is not Kind.APPROXIMATE
    ]
    for _ in range(rounds):
        for place in rng.permutation(len(items)):
            symmetry = items[place].build()
            parameters = symmetry.act(symmetry.random(rng), parameters)
    return parameters


def largest_difference(first, second):
    return max(
        np.abs(first[name] - second[name]).max() / max(np.abs(first[name]).max(), 1e-300)
        for name in first
        if first[name].any() or second[name].any()
    )


def stored(parameters, dtype):
    return {name: rounded(value, FORMATS[dtype]) for name, value in parameters.items()}


def widened(parameters):
    return {name: value.astype(np.float64) for name, value in parameters.items()}


def deviation(twin, parameters, reference):
    return np.abs(twin.observe(widened(parameters)) - reference).max() / np.abs(reference).max()


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_the_function_stays_and_orbits_have_one_form(case):
    found, observable, twin = set_up(case)
    form, _ = canonical_parameters(found, twin.parameters, observable)
    assert deviation(twin, form, twin.observe(twin.parameters)) < 1e-12
    other, _ = canonical_parameters(
        found, moved(found, observable, twin.parameters, seed=5), observable
    )
    assert largest_difference(form, other) < 1e-8


@pytest.mark.parametrize("bias", [False, True])
def test_planes_of_normalised_heads_turn_group_by_group(bias):
    config = llama(
        "qwen3",
        "Qwen3ForCausalLM",
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=24,
        attention_bias=bias,
    )
    found, observable, twin = set_up((config, "logits"))
    form, _ = canonical_parameters(found, twin.parameters, observable)
    for seed in range(3):
        copy = moved(found, observable, twin.parameters, seed)
        other, _ = canonical_parameters(found, copy, observable)
        assert largest_difference(form, other) < 1e-8


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_stored_form_is_settled_in_every_format(case):
    found, observable, twin = set_up(case, seed=1)
    for dtype in FORMATS:
        form, _ = canonical_parameters(found, stored(twin.parameters, dtype), observable)
        again, computed = canonical_parameters(found, stored(form, dtype), observable)
        assert computed.work.moved == set(), dtype
        assert all(np.array_equal(again[name], stored(form, dtype)[name]) for name in form)


@pytest.mark.parametrize("case", CASES[::3], ids=case_name)
def test_orbits_stored_in_float32_have_one_form(case):
    found, observable, twin = set_up(case, seed=2)
    first = stored(twin.parameters, "float32")
    second = stored(moved(found, observable, widened(first), seed=6), "float32")
    form, _ = canonical_parameters(found, first, observable)
    other, _ = canonical_parameters(found, second, observable)
    assert largest_difference(form, other) < 1e-3


def without_biases(parameters):
    """All biases zero, norms' ones too."""
    return {
        name: np.zeros_like(value) if name.endswith("bias") and value.ndim == 1 else value
        for name, value in parameters.items()
    }


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_biases_of_zero_are_like_any_others(case):
    """Freshly initialised models have them; constants of zero and almost zero have one form."""
    found, observable, twin = set_up(case)
    parameters = without_biases(twin.parameters)
    form, _ = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, twin.observe(parameters)) < 1e-12
    other, _ = canonical_parameters(found, moved(found, observable, parameters, 5), observable)
    for name, value in form.items():
        np.testing.assert_allclose(
            other[name], value, rtol=0, atol=1e-8 * max(np.abs(value).max(), 0.1)
        )
    for dtype in FORMATS:
        form, _ = canonical_parameters(found, stored(parameters, dtype), observable)
        _, computed = canonical_parameters(found, stored(form, dtype), observable)
        assert computed.work.moved == set(), dtype


@pytest.mark.parametrize(
    ("case", "zero"),
    [
        ((gpt2(), "logits"), ("ln_1.bias", "c_attn.bias")),
        (
            (opt(tie_word_embeddings=False, enable_bias=False), "logits"),
            ("self_attn_layer_norm.bias",),
        ),
    ],
    ids=["gpt2", "opt"],
)
def test_constants_of_one_attention_that_are_zero(case, zero):
    found, observable, twin = set_up(case)
    parameters = {
        name: np.zeros_like(value) if name.endswith(zero) else value
        for name, value in twin.parameters.items()
    }
    form, _ = canonical_parameters(found, parameters, observable)
    again, _ = canonical_parameters(found, form, observable)
    assert largest_difference(form, again) < 1e-12
    other, _ = canonical_parameters(found, moved(found, observable, parameters, 5), observable)
    for name, value in form.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dead", [0.0, 1e-20])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("heads", [1, 2])
def test_constant_values_outside_the_rows_are_kept(heads, rows, dead):
    """Without an output bias, a value's bias is all that its direction has where a row is zero."""
    config = llama(
        "qwen2",
        "Qwen2ForCausalLM",
        head_dim=None,
        hidden_size=8,
        num_key_value_heads=heads,
        num_hidden_layers=2,
    )
    found, observable, twin = set_up((config, "logits"))
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    parameters["model.layers.0.self_attn.v_proj.weight"][:rows] *= dead
    form, computed = canonical_parameters(found, parameters, observable)
    ties = {place.mechanism for place in computed.places.found}
    assert deviation(twin, form, twin.observe(parameters)) < 1e-12
    _, computed = canonical_parameters(found, form, observable)
    assert computed.work.moved == set()
    if (heads, rows, dead) == (1, 4, 0.0):
        # All that the group's two heads write is constant: nothing tells them apart.
        assert ties == {HEAD_PERMUTATION}
        return
    other, _ = canonical_parameters(found, moved(found, observable, parameters, 5), observable)
    for name, value in form.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_constant_values_with_a_kernel_are_kept_or_left_alone(rows):
    """OPT without biases: the norm's bias brings constants, of which one direction is unseen."""
    found, observable, twin = set_up(
        (opt(tie_word_embeddings=False, enable_bias=False), "logits"), seed=1
    )
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    gain = parameters["model.decoder.layers.0.self_attn_layer_norm.weight"]
    value = parameters["model.decoder.layers.0.self_attn.v_proj.weight"]
    # Rows along 1/gain bring a constant and nothing else.
    value[:rows] = np.outer(np.arange(1, rows + 1), 1.0 / gain)
    form, _ = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, twin.observe(parameters)) < 1e-12
    _, computed = canonical_parameters(found, form, observable)
    assert computed.work.moved == set()


def exceptional(parameters, kind):
    """Weights with more symmetry than generic ones."""
    parameters = {name: value.copy() for name, value in parameters.items()}
    for name, value in parameters.items():
        gain = value.ndim == 1 and name.endswith("weight")
        if kind == "equal gains" and gain:
            value[:] = 1.0
        if kind == "two equal gains" and gain:
            value[:2] = value[0]
        if kind == "zero gain" and gain and not name.endswith(("norm.weight", "ln_f.weight")):
            value[1] = 0.0
        if kind == "silent head" and "o_proj.weight" in name:
            value[:, :2] = 0.0
        if kind == "silent head" and "attn.c_proj.weight" in name:
            value[:2] = 0.0
        if kind == "dead and twin neurons":
            if "gate_proj.weight" in name:
                value[1] = value[0]
            if "mlp.c_fc.weight" in name:
                value[:, 1] = value[:, 0]
            if "mlp.c_fc.bias" in name:
                value[1] = value[0]
            if "down_proj.weight" in name:
                value[:, 2] = 0.0
            if "mlp.c_proj.weight" in name:
                value[2] = 0.0
    return parameters


@pytest.mark.parametrize(
    "kind",
    ["equal gains", "two equal gains", "zero gain", "silent head", "dead and twin neurons"],
)
@pytest.mark.parametrize(
    "case",
    [
        (gpt2(), "logits"),
        (gpt2(tie_word_embeddings=False, activation_function="relu"), "logits"),
        (llama(tie_word_embeddings=True), "logits"),
        (llama(), "logits"),
        (llama("qwen3", "Qwen3ForCausalLM", vocab_size=24), "logits"),
        (bert(), "hidden"),
        (t5(), "logits"),
    ],
    ids=case_name,
)
def test_exceptional_weights_keep_their_function_and_are_settled(case, kind):
    found, observable, twin = set_up(case)
    parameters = exceptional(twin.parameters, kind)
    reference = twin.observe(parameters)
    form, _ = canonical_parameters(found, parameters, observable)
    assert deviation(twin, form, reference) < 1e-12
    _, computed = canonical_parameters(found, form, observable)
    assert computed.work.moved == set()
    if kind != "zero gain":
        # The ledger's moves divide by gains.
        other, _ = canonical_parameters(
            found, moved(found, observable, parameters, seed=7), observable
        )
        assert largest_difference(form, other) < 1e-7


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tied", [True, False])
def test_rotations_of_equal_final_gains_have_one_form(tied, seed):
    """Not in the ledger: a freshly initialised model can be rotated whole although it is tied."""
    found, observable, twin = set_up((llama(tie_word_embeddings=tied), "logits"), seed)
    parameters = exceptional(twin.parameters, "equal gains")
    width = len(parameters["model.norm.weight"])
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]
    turned = {}
    for name, value in parameters.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            turned[name] = rotation @ value
        else:
            turned[name] = value @ rotation.T if value.ndim == 2 else value
    reference = twin.observe(parameters)
    assert deviation(twin, turned, reference) < 1e-12
    form, _ = canonical_parameters(found, parameters, observable)
    other, _ = canonical_parameters(found, turned, observable)
    assert largest_difference(form, other) < 1e-9


def test_properties_of_the_form_itself():
    """Balanced factors, unit gains, sorted neurons: computed here from the stored tensors."""
    found, observable, twin = set_up((llama(num_hidden_layers=2), "logits"))
    form, _ = canonical_parameters(found, twin.parameters, observable)
    for layer in range(2):
        at = f"model.layers.{layer}"
        np.testing.assert_array_equal(form[f"{at}.input_layernorm.weight"], 1.0)
        value = form[f"{at}.self_attn.v_proj.weight"]
        output = form[f"{at}.self_attn.o_proj.weight"].reshape(6, 2, 4)
        np.testing.assert_allclose(
            value @ value.T, np.einsum("dms,dmt->st", output, output), atol=1e-12
        )
        query = form[f"{at}.self_attn.q_proj.weight"].reshape(2, 2, 2, 6)
        key = form[f"{at}.self_attn.k_proj.weight"].reshape(2, 2, 6)
        np.testing.assert_allclose(
            (query**2).sum(axis=(0, 1, 3)), (key**2).sum(axis=(0, 2)), rtol=1e-12
        )
        gate = np.linalg.norm(form[f"{at}.mlp.gate_proj.weight"], axis=1)
        assert (np.diff(gate) < 0).all()
        np.testing.assert_allclose(
            np.linalg.norm(form[f"{at}.mlp.up_proj.weight"], axis=1),
            np.linalg.norm(form[f"{at}.mlp.down_proj.weight"], axis=0),
            rtol=1e-12,
        )


def test_ties_are_counted():
    found, observable, twin = set_up((llama(), "logits"))
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    gate = parameters["model.layers.0.mlp.gate_proj.weight"]
    gate[3] = -gate[1]  # of the same length, and not equal
    _, form = canonical_parameters(found, parameters, observable)
    assert [(p.mechanism, p.layer, p.count) for p in form.places.found] == [
        ("permutation of neurons", 0, 1)
    ]
