"""The function computed from the views alone is the function of the class."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.twins.precision import float64_evaluation
from tests.checkpoints.architecture.published import published_model, randomise
from tests.checkpoints.architecture.reference_forward import Evaluation
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def draw_inputs(config, laid_out, rng):
    """One input for the class, and the same for the evaluation from the views."""
    if laid_out.tokens is None:
        channels, size = config.get("num_channels", 3), config["image_size"]
        image = rng.standard_normal((1, channels, size, size))
        p = config["patch_size"]
        blocks = image[0].reshape(channels, size // p, p, size // p, p)
        patches = blocks.transpose(1, 3, 0, 2, 4).reshape(-1, channels * p * p)
        return {"pixel_values": image}, {"patches": patches}
    tokens = np.arange(laid_out.tokens)
    if laid_out.family == "RoBERTa":
        tokens = np.delete(tokens, config["pad_token_id"])
    inputs = {"input_ids": rng.permutation(tokens)[None, :5]}
    if laid_out.family in ("BERT", "RoBERTa"):
        types = config.get("type_vocab_size", 2)
        inputs["token_type_ids"] = rng.integers(0, types, (1, 5))
    if len(laid_out.streams) == 2:
        inputs["decoder_input_ids"] = rng.integers(0, laid_out.tokens, (1, 4))
    return inputs, {name: array[0] for name, array in inputs.items()}


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_forward_pass_from_views(config):
    import torch

    rng = np.random.default_rng(7)
    laid_out = architecture(config)
    model = published_model(config)
    weights = randomise(model, rng)
    inputs, plain = draw_inputs(config, laid_out, rng)
    evaluation = Evaluation(laid_out, weights, config)

    with torch.no_grad(), float64_evaluation():
        outputs = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    if laid_out.head is None:
        expected = outputs.last_hidden_state[0].numpy()
        found = evaluation.hidden(plain)
    else:
        logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
        expected = logits[0].numpy()
        found = evaluation.logits(plain)
    scale = np.abs(expected).max()
    assert scale > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * max(scale, 1.0))
