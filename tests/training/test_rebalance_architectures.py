"""Balancing every architecture with a table: the class itself is the judge of the function."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.architecture.registry import architecture  # noqa: E402
from fiberscope.checkpoints.ledger import ledger  # noqa: E402
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, VALUE_OUTPUT  # noqa: E402
from fiberscope.checkpoints.twins import build_twin, toy_config  # noqa: E402
from fiberscope.parameters import ParameterSpace  # noqa: E402
from fiberscope.training.balance import BALANCED, balanced  # noqa: E402
from tests.checkpoints.twins.test_twin_classes import CLASSES, main_observable  # noqa: E402

torch.set_num_threads(1)

FLAGS = {
    "T5ForConditionalGeneration gated ReLU": ("t5", {"feed_forward_proj": "gated-relu"}),
    "GPTNeoXForCausalLM all rotated": ("gpt_neox", {"rotary_pct": 1.0}),
    "OPTForCausalLM gelu": ("opt", {"activation_function": "gelu"}),
    "DistilBertForSequenceClassification": ("distilbert", {}),
    # Value biases without an output bias, and more value rows than the stream is wide.
    "Qwen2ForCausalLM wide heads": ("qwen2", {"num_attention_heads": 2, "head_dim": 8}),
}
CASES = {**CLASSES, **FLAGS}


def toy(name):
    model_type, flags = CASES[name]
    class_name = name.split()[0]
    config = toy_config(
        {"model_type": model_type, "architectures": [class_name], **flags}, layers=1
    )
    if "wide" in name:
        config.update(head_dim=8, num_attention_heads=2, num_key_value_heads=2)
    return config


def observable(name):
    return main_observable(name) if name in CLASSES else "logits"


@pytest.fixture(scope="module", params=CASES)
def case(request):
    twin = build_twin(toy(request.param), observable(request.param), 0, inputs=3)
    laid_out = architecture(twin.config)
    return twin, laid_out, balanced(laid_out, twin.parameters)


def test_the_function_of_the_class_is_the_same(case):
    twin, _, found = case
    before, after = twin.observe(twin.parameters), twin.observe(found.parameters)
    assert np.abs(after - before).max() < 2e-14 * np.abs(before).max()


def test_every_mechanism_is_balanced_and_the_norm_falls(case):
    _, _, found = case
    assert found.mechanisms
    assert max(entry.imbalance_after for entry in found.mechanisms) < 1e-13
    assert max(entry.imbalance_before for entry in found.mechanisms) > 0.1
    assert found.norm_after < found.norm_before
    assert not [note for note in found.notes if "did not settle" in note]


def test_the_parameters_are_orthogonal_to_the_orbits(case):
    _, laid_out, found = case
    space = ParameterSpace({name: v.shape for name, v in found.parameters.items()})
    theta = space.vector(found.parameters)
    seen = set()
    for item in ledger(laid_out).items:
        if item.mechanism in BALANCED and item.build is not None:
            tangents = item.build().tangents(found.parameters, space)
            overlap = tangents @ theta / (np.linalg.norm(tangents, axis=1) * np.linalg.norm(theta))
            assert np.abs(overlap).max() < 1e-13, item.mechanism
            seen.add(item.mechanism)
    assert VALUE_OUTPUT in seen
    # With normalised queries and keys there is no change of basis, only a product of gains.
    assert QUERY_KEY in seen or laid_out.name.startswith("Qwen3")


def test_twice_is_once(case):
    _, laid_out, found = case
    again = balanced(laid_out, found.parameters)
    assert again.distance < 1e-13 * found.norm_after


def test_gradients_are_carried_to_gradients(case):
    """The chain rule through the class itself, for a random loss of the outputs."""
    twin, _, found = case
    old, columns = twin.jacobian(twin.parameters)
    new, _ = twin.jacobian(found.parameters)
    loss = np.random.default_rng(5).standard_normal(len(old))
    gradient = {
        name: (loss @ old[:, where]).reshape(twin.parameters[name].shape) for name, where in columns
    }
    (carried,) = found.carry_covectors([gradient], twin.parameters)
    assert set(carried) == set(found.touched)
    for name, where in columns:
        expected = (loss @ new[:, where]).reshape(twin.parameters[name].shape)
        got = carried.get(name, gradient[name])
        assert np.abs(got - expected).max() < 1e-11 * max(1.0, np.abs(expected).max()), name
