"""Tensors of every table against the state dictionary of the class itself."""

from __future__ import annotations

import copy
from math import prod

import pytest

from fiberscope.checkpoints.architecture.matching import match
from fiberscope.checkpoints.architecture.registry import CLASSES, architecture
from tests.checkpoints.architecture.published import published_model
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def test_every_class_has_a_toy():
    assert {config["architectures"][0] for config in TOYS} == set(CLASSES)


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_tensors_are_those_of_the_class(config):
    before = copy.deepcopy(config)
    laid_out = architecture(config)
    assert config == before

    model = published_model(config)
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    expected = dict(laid_out.tensors) | {
        name: laid_out.tensors[original] for name, original in laid_out.optional_copies.items()
    }
    assert expected == state
    assert laid_out.parameters == sum(p.numel() for p in model.parameters())
    assert laid_out.parameters == sum(prod(p.shape) for _, p in model.named_parameters())


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_the_files_that_the_class_writes_match(config, tmp_path):
    from safetensors import safe_open

    laid_out = architecture(config)
    model = published_model(config)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    matching = match(laid_out, stored, "model.safetensors")
    state = model.state_dict()
    assert matching.architecture == laid_out
    for name, place in matching.stored.items():
        assert (stored[place] == state[name].numpy()).all()
