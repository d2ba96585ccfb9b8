"""The float64 evaluation is the function of the published class, for every class and flag."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.config import (
    GENERIC_ACTIVATIONS,
    HOMOGENEOUS_ACTIVATIONS,
    ODD_ACTIVATIONS,
)
from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import CLASSES, MODEL_TYPES, architecture
from fiberscope.checkpoints.forward import Probe, outputs
from fiberscope.checkpoints.forward.activations import ACTIVATIONS
from fiberscope.checkpoints.twins import build_twin, float64_evaluation, toy_config
from tests.checkpoints.architecture import toy_configurations as toys
from tests.checkpoints.architecture.published import published_model, randomise
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.checkpoints.forward.published_inputs import patches, probe_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

AGREEMENT = 1e-12


def disagreement(config, observable=None, **sizes):
    """Largest difference of the outputs, relative to the largest output."""
    laid_out = architecture(config)
    observable = observable or laid_out.default_observable
    twin = build_twin(config, observable.value, 3, **sizes)
    laid_out = architecture(twin.config)
    probe = probe_of(twin.bank, laid_out, twin.config)
    found = outputs(laid_out, lambda view: view.read(twin.parameters), probe, observable)
    expected = twin.observe(twin.parameters)
    assert found.shape == expected.shape
    assert np.ptp(expected) > 1e-3
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_class_and_flag(config):
    assert disagreement(config, Observable.HIDDEN, inputs=3) < AGREEMENT
    if architecture(config).head is not None:
        assert disagreement(config, Observable.LOGITS, inputs=3) < AGREEMENT


def test_every_class_has_a_toy():
    assert {config["architectures"][0] for config in TOYS} == set(CLASSES)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [(kind, name) for kind, (_, names) in MODEL_TYPES.items() for name in names],
)
def test_every_class_by_its_defaults(model_type, name):
    config = toy_config({"model_type": model_type, "architectures": [name]})
    observable = Observable.HIDDEN
    if architecture(config).head is not None:
        observable = Observable.PROBABILITIES
    assert disagreement(config, observable, inputs=3) < AGREEMENT


def _as(base, name, **changes):
    return {**base, "architectures": [name], **changes}


def _llama(kind, **changes):
    base = {**toys.LLAMA, "num_hidden_layers": 3}
    stem = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    return _as(base, f"{stem}ForCausalLM", model_type=kind, **changes)


def _rope(**parameters):
    without = {key: value for key, value in _llama("llama").items() if key != "rope_theta"}
    return {**without, "rope_parameters": {"rope_theta": 100.0, **parameters}}


FLAGS = {
    "GPT-2 without score scale": _as(toys.GPT2, "GPT2Model", scale_attn_weights=False),
    "GPT-2 scaled by layer": _as(
        toys.GPT2, "GPT2LMHeadModel", scale_attn_by_inverse_layer_idx=True, n_layer=3
    ),
    "Mistral without window": _llama("mistral", sliding_window=None),
    "Qwen2 windows unused": _llama("qwen2", sliding_window=2),
    "Qwen2 windows in late layers": _llama(
        "qwen2", sliding_window=2, use_sliding_window=True, max_window_layers=1
    ),
    "Qwen2 windows in all layers": _llama(
        "qwen2", sliding_window=2, use_sliding_window=True, max_window_layers=0
    ),
    "Qwen3 windows by layer": _llama(
        "qwen3",
        sliding_window=2,
        use_sliding_window=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "linear": _rope(rope_type="linear", factor=3.0),
    "dynamic": _rope(rope_type="dynamic", factor=3.0),
    "yarn": _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=8),
    "yarn, long": _rope(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=4.0
    ),
    "yarn, not truncated": _rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=False
    ),
    "yarn, two scales": _rope(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        mscale=0.7,
        mscale_all_dim=0.3,
    ),
    "yarn, factor given": _rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=0.8
    ),
    "llama3": _rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "longrope": _rope(
        rope_type="longrope",
        factor=4.0,
        original_max_position_embeddings=16,
        short_factor=[1.1, 1.7],
        long_factor=[2.0, 4.0],
    ),
    "longrope, factor by length": _rope(
        rope_type="longrope",
        original_max_position_embeddings=16,
        short_factor=[1.0, 1.0],
        long_factor=[2.0, 4.0],
    ),
    "BERT without types": _as(toys.BERT, "BertModel", type_vocab_size=1),
    "RoBERTa, late padding token": _as(
        toys.ROBERTA, "RobertaForMaskedLM", pad_token_id=3, max_position_embeddings=9
    ),
    "T5 on long inputs": _as(
        toys.T5, "T5ForConditionalGeneration", relative_attention_num_buckets=12
    ),
    "T5 tied, not scaled": _as(
        toys.T5, "T5ForConditionalGeneration", tie_word_embeddings=True, scale_decoder_outputs=False
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_only_the_function_shows(name):
    config = FLAGS[name]
    length = 19 if "long inputs" in name else None
    assert disagreement(config, inputs=4, length=length) < AGREEMENT


def test_oblong_images():
    """Twins know square images only."""
    config = _as(toys.VIT, "ViTModel", image_size=[4, 6], patch_size=[2, 3], num_channels=2)
    rng = np.random.default_rng(5)
    model = published_model(config)
    weights = randomise(model, rng)
    images = rng.standard_normal((3, 2, 4, 6))
    laid_out = architecture(config)
    probe = Probe({}, vectors=patches(images, 2, 3))
    with torch.no_grad(), float64_evaluation():
        expected = model(pixel_values=torch.from_numpy(images)).last_hidden_state.numpy()
    found = outputs(laid_out, lambda view: view.read(weights), probe, Observable.HIDDEN)
    assert np.abs(found - expected.reshape(-1)).max() < AGREEMENT * np.abs(expected).max()


def test_every_activation():
    from transformers.activations import ACT2FN

    names = GENERIC_ACTIVATIONS | HOMOGENEOUS_ACTIVATIONS | ODD_ACTIVATIONS
    assert set(ACTIVATIONS) == names
    x = np.concatenate([np.linspace(-30, 30, 601), [0.0, -0.5, 3.0, -3.0, 6.0]])
    for name in sorted(names):
        with float64_evaluation():
            expected = ACT2FN[name](torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(ACTIVATIONS[name](x), expected, rtol=1e-13, atol=1e-15)
