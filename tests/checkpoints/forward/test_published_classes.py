"""The float64 evaluation is the function of the published class, for every class and flag."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import CLASSES, architecture
from fiberscope.checkpoints.forward import outputs
from fiberscope.checkpoints.twins import build_twin
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.checkpoints.forward.published_inputs import probe_of

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def observables(config):
    laid_out = architecture(config)
    return list(Observable) if laid_out.head is not None else [Observable.HIDDEN]


def agree(config, seed, **sizes):
    """Largest difference over outputs, relative to their size, for every observable."""
    worst = 0.0
    for observable in observables(config):
        twin = build_twin(config, observable.value, seed, **sizes)
        laid_out = architecture(twin.config)
        probe = probe_of(twin.bank, laid_out, twin.config)
        found = outputs(laid_out, lambda v, t=twin: v.read(t.parameters), probe, observable)
        expected = twin.observe(twin.parameters)
        assert found.shape == expected.shape
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
    return worst


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_class_and_flag(config):
    assert agree(config, 3, inputs=4) < 1e-12


def test_every_class_has_a_toy():
    assert {config["architectures"][0] for config in TOYS} == set(CLASSES)
