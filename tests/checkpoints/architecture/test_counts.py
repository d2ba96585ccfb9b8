"""Parameter counts of well-known models, by hand and by the class on the meta device."""

from __future__ import annotations

import time

import pytest

from fiberscope.checkpoints.architecture.registry import architecture
from tests.checkpoints.architecture.published_shapes import PARAMETERS


@pytest.mark.parametrize("model", PARAMETERS)
def test_counts_by_hand(model):
    config, expected = PARAMETERS[model]
    assert architecture(config).parameters == expected


def test_layouts_take_milliseconds():
    start = time.perf_counter()
    for config, _ in PARAMETERS.values():
        architecture(config)
    assert time.perf_counter() - start < 2.0


@pytest.mark.torch
@pytest.mark.parametrize("model", PARAMETERS)
def test_counts_by_the_class(model):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.checkpoints.architecture.published import published_model

    config, expected = PARAMETERS[model]
    # The T5 class ties whatever the configuration says; the oracle unties as the file does.
    assert sum(p.numel() for p in published_model(config, meta=True).parameters()) == expected
