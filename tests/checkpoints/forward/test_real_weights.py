"""Trained checkpoints against the published classes."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.forward import outputs, probe_inputs, stored_numbers
from fiberscope.checkpoints.opening import open_model
from fiberscope.checkpoints.twins import float64_evaluation
from fiberscope.examples import EXAMPLES, example_path
from tests.checkpoints.real_weights import minilm_directory, smollm2_gguf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def disagreement(location, published, observable):
    """Largest difference relative to the largest output, on two sequences."""
    opened = open_model(location, observable)
    laid_out = opened.architecture
    probe = probe_inputs(laid_out, 1, 2, 6)
    (tokens,) = probe.tokens.values()
    inputs = {"input_ids": torch.from_numpy(tokens)}
    if probe.types is not None:
        inputs["token_type_ids"] = torch.from_numpy(probe.types)
    with torch.no_grad(), float64_evaluation():
        result = published(**inputs)
    hidden = observable is Observable.HIDDEN
    expected = (result.last_hidden_state if hidden else result.logits).numpy()
    assert expected.dtype == np.float64
    read = stored_numbers(opened.source, opened.matching.stored)
    found = outputs(laid_out, read, probe, observable)
    return float(np.abs(found - expected.reshape(-1)).max() / np.abs(expected).max())


def load(automatic, location, **options):
    with float64_evaluation():
        model = automatic.from_pretrained(
            location, dtype=torch.float64, attn_implementation="eager", **options
        )
    return model.double().eval()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    published = load(transformers.AutoModelForCausalLM, example_path(name))
    assert disagreement(example_path(name), published, Observable.LOGITS) < 1e-12


def test_minilm():
    published = load(transformers.AutoModel, minilm_directory())
    assert disagreement(minilm_directory(), published, Observable.HIDDEN) < 1e-12


def test_smollm2():
    """Reading the quantised file is tested elsewhere; here its numbers are given to the class."""
    from transformers.initialization import no_init_weights

    path = smollm2_gguf()
    opened = open_model(path)
    settings = transformers.LlamaConfig.from_dict(dict(opened.config))
    settings._attn_implementation = "eager"
    with float64_evaluation(), no_init_weights():
        published = transformers.LlamaForCausalLM(settings).eval()
    published.tie_weights()
    with torch.no_grad():
        for name, parameter in published.named_parameters():
            parameter.copy_(torch.from_numpy(opened.source.read(name)))
    assert disagreement(path, published, Observable.LOGITS) < 1e-12
