"""The Jacobian against differences of the observation, its layout, and bad input."""

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.twins import build_twin, toy_config  # noqa: E402
from fiberscope.errors import InputError  # noqa: E402


def twin_of(model_type, name, observable="logits", **flags):
    config = {"model_type": model_type, "architectures": [name], **flags}
    return build_twin(toy_config(config, layers=1), observable, 5)


def central_difference(twin, direction, step=1e-3):
    """Fourth-order central difference of the observation along a direction."""

    def at(distance):
        return twin.observe(
            {name: value + distance * direction[name] for name, value in twin.parameters.items()}
        )

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


@pytest.mark.parametrize(
    ("model_type", "name", "observable"),
    [
        ("gpt2", "GPT2LMHeadModel", "logits"),
        ("gemma", "GemmaForCausalLM", "probabilities"),
        ("bert", "BertForSequenceClassification", "logits"),
        ("roberta", "RobertaForMaskedLM", "hidden"),
        ("vit", "ViTModel", "hidden"),
        ("t5", "T5ForConditionalGeneration", "hidden"),
    ],
)
def test_jacobian_against_differences(model_type, name, observable):
    flags = {"feed_forward_proj": "gated-gelu"} if model_type == "t5" else {}
    twin = twin_of(model_type, name, observable, **flags)
    jacobian, columns = twin.jacobian()
    assert jacobian.shape == (twin.observe(twin.parameters).size, twin.parameter_count)
    assert [tensor for tensor, _ in columns] == list(twin.parameters)
    rng = np.random.default_rng(6)
    for _ in range(3):
        direction = {
            tensor: rng.standard_normal(value.shape) / np.sqrt(twin.parameter_count)
            for tensor, value in twin.parameters.items()
        }
        flat = np.empty(twin.parameter_count)
        for tensor, where in columns:
            flat[where] = direction[tensor].reshape(-1)
        expected = central_difference(twin, direction)
        assert np.abs(jacobian @ flat - expected).max() < 1e-6 * np.abs(expected).max()


def test_the_padding_row_has_its_derivative():
    # torch hides the gradient of the padding row; the outputs depend on it all the same.
    twin = twin_of("bert", "BertModel", "hidden", pad_token_id=0)
    name = "embeddings.word_embeddings.weight"
    jacobian, columns = twin.jacobian()
    width = twin.parameters[name].shape[1]
    start = dict(columns)[name].start
    assert (twin.bank["input_ids"] == 0).any()
    direction = {tensor: np.zeros_like(value) for tensor, value in twin.parameters.items()}
    direction[name][0] = np.arange(1.0, width + 1)
    expected = central_difference(twin, direction)
    found = jacobian[:, start : start + width] @ np.arange(1.0, width + 1)
    assert np.abs(expected).max() > 1e-2
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()


def test_tied_tensors_are_counted_once():
    tied = twin_of("t5", "T5ForConditionalGeneration")
    untied = twin_of("t5", "T5ForConditionalGeneration", tie_word_embeddings=False)
    assert "lm_head.weight" not in tied.parameters
    table = untied.parameters["lm_head.weight"]
    assert untied.parameter_count - tied.parameter_count == table.size
    moved = dict(untied.parameters, **{"lm_head.weight": 2 * table})
    before, after = untied.observe(untied.parameters), untied.observe(moved)
    assert np.abs(after - 2 * before).max() < 1e-13 * np.abs(before).max()


def test_unread_tensors_have_null_columns():
    twin = twin_of("bert", "BertModel", "hidden")
    jacobian, columns = twin.jacobian()
    null = {tensor for tensor, where in columns if not jacobian[:, where].any()}
    assert null == {"pooler.dense.weight", "pooler.dense.bias"}


def test_every_token_and_position_is_read():
    twin = twin_of("gpt2", "GPT2LMHeadModel", tie_word_embeddings=False)
    ids = twin.bank["input_ids"]
    counts = np.bincount(ids.ravel(), minlength=twin.parameters["transformer.wte.weight"].shape[0])
    assert counts.min() >= 3
    assert counts.max() - counts.min() <= 1
    assert twin.parameters["transformer.wpe.weight"].shape[0] == ids.shape[1] == twin.length


def test_the_seed_fixes_parameters_whatever_the_bank():
    config = toy_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, layers=1)
    first = build_twin(config, "logits", 7, inputs=3)
    second = build_twin(config, "logits", 7, inputs=5, length=6)
    other = build_twin(config, "logits", 8, inputs=3)
    name = "lm_head.weight"
    assert np.array_equal(first.parameters[name], second.parameters[name])
    assert not np.array_equal(first.parameters[name], other.parameters[name])


def test_observing_leaves_the_twin_as_it_was():
    twin = twin_of("gpt2", "GPT2LMHeadModel")
    before = twin.observe(twin.parameters)
    twin.observe({name: value + 1.0 for name, value in twin.parameters.items()})
    assert np.array_equal(twin.observe(twin.parameters), before)


def test_relu_neurons_switch_and_norms_stay_finite():
    # With ReLU in the head as well, a norm may read a vector of zeros: no limit at epsilon 0.
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "relu"}
    twin = build_twin(toy_config(config, layers=1), "logits", 5, epsilon=0.0)
    assert np.isfinite(twin.jacobian()[0]).all()


GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}


@pytest.mark.parametrize(
    ("config", "observable", "arguments", "message"),
    [
        ({"model_type": "mamba"}, "logits", {}, "mamba"),
        ({}, "logits", {}, "model_type None"),
        ({**GPT2, "architectures": ["BertModel"]}, "logits", {}, "BertModel"),
        ({**GPT2, "architectures": []}, "logits", {}, "architectures"),
        (toy_config(GPT2), "attention", {}, "attention"),
        (toy_config({"model_type": "gpt2"}), "logits", {}, "has no logits"),
        (GPT2, "logits", {"length": 4}, "too large"),
        ({**GPT2, "n_positions": 1024}, "logits", {}, "1024 tokens"),
        (toy_config(GPT2), "logits", {"inputs": 0}, "0 inputs"),
        ({**toy_config(GPT2), "n_head": 4}, "logits", {}, "cannot build"),
    ],
)
def test_bad_input_is_one_sentence(config, observable, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        build_twin(config, observable, 0, **arguments)
    assert "\n" not in str(caught.value)


def test_bad_parameters_are_named():
    twin = twin_of("gpt2", "GPT2LMHeadModel")
    name = "transformer.ln_f.bias"
    missing = {key: value for key, value in twin.parameters.items() if key != name}
    with pytest.raises(InputError, match=name):
        twin.observe(missing)
    with pytest.raises(InputError, match="shape"):
        twin.observe({**twin.parameters, name: np.zeros(2)})
