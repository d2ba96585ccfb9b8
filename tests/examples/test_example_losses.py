"""The losses the shipped examples state, recomputed from the shipped weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fiberscope.examples import EXAMPLES, example_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

SLICE = Path(__file__).with_name("validation_slice.txt").read_bytes().decode()
CONTEXT = 128
TOLERANCE = 1e-3  # nats; float32 kernels of other machines differ by far less


def mean_loss(name: str, text: str) -> float:
    """Mean of -log p(character | those before it in its window of 128), float64 from the logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(example_path(name))
    assert next(model.parameters()).dtype == torch.float32
    ids = np.array([ord(c) if c.isascii() else 26 for c in text])
    windows = ids[: len(ids) - len(ids) % CONTEXT].reshape(-1, CONTEXT)
    with torch.no_grad():
        logits = model(torch.from_numpy(windows)).logits.numpy().astype(np.float64)
    logits = logits[:, :-1]
    peak = logits.max(axis=-1, keepdims=True)
    normalizer = peak[..., 0] + np.log(np.exp(logits - peak).sum(axis=-1))
    chosen = np.take_along_axis(logits, windows[:, 1:, None], axis=-1)[..., 0]
    return float((normalizer - chosen).mean())


def stated(name: str) -> dict[str, float]:
    return json.loads((example_path(name) / "training.json").read_text())["loss"]


def test_slice_has_the_stated_length() -> None:
    assert len(SLICE) == 8192
    assert {stated(name)["slice_characters"] for name in EXAMPLES} == {len(SLICE)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_stated_loss_on_the_slice_is_reproduced(name: str) -> None:
    assert abs(mean_loss(name, SLICE) - stated(name)["slice"]) < TOLERANCE


@pytest.mark.parametrize("name", EXAMPLES)
def test_stated_loss_on_the_whole_held_out_text_is_reproduced(
    name: str, train_examples: ModuleType
) -> None:
    corpus = train_examples.documentation_corpus()
    record = json.loads((example_path(name) / "training.json").read_text())
    if corpus.sha256 != record["corpus"]["sha256"]:
        pytest.skip("this Python ships other documentation than the example was trained on")
    assert corpus.validation.startswith(SLICE)
    assert abs(mean_loss(name, corpus.validation) - record["loss"]["validation"]) < TOLERANCE
