"""Heads as wide as the model: generic weights must not look deficient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.inspection import inspect
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors


@pytest.mark.parametrize(
    "config",
    [
        # One head of width 8 behind a LayerNorm, which passes on 7 directions.
        {**TINY_GPT2, "n_head": 1},
        # Heads of width 12 and 20 on a stream of width 8.
        {**TINY_LLAMA, "head_dim": 12},
        {**TINY_LLAMA, "head_dim": 20},
    ],
    ids=["as wide as the stream", "wider", "much wider"],
)
def test_generic_weights_are_not_exceptional(config: dict[str, Any], tmp_path: Path) -> None:
    found = inspect(checkpoint(tmp_path / "m", config, random_tensors(config))).weights
    assert found is not None
    assert found.exceptional == ()
    for heads in found.conditioning:
        assert heads.query_key is not None
        assert np.all(np.isfinite(heads.query_key + heads.value_output))


def test_condition_number_leaves_out_the_direction_that_a_layer_norm_hides(tmp_path: Path) -> None:
    config = {**TINY_GPT2, "n_head": 1, "n_layer": 1}
    tensors = {name: value.astype(np.float64) for name, value in random_tensors(config).items()}
    found = inspect(checkpoint(tmp_path / "m", config, random_tensors(config))).weights
    assert found is not None
    centre = np.eye(8) - 1 / 8
    gain = np.diag(tensors["transformer.h.0.ln_1.weight"])
    value = tensors["transformer.h.0.attn.c_attn.weight"][:, 16:]
    product = centre @ gain @ value @ tensors["transformer.h.0.attn.c_proj.weight"] @ centre
    spectrum = np.linalg.svd(product, compute_uv=False)
    assert np.isclose(found.conditioning[0].value_output[0], spectrum[0] / spectrum[6], rtol=1e-9)
