"""The largest difference of outputs, and their size."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.forward import deviation, deviation_of, probe_inputs
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys
from tests.checkpoints.forward.test_reading import draw


def test_by_hand():
    expected = np.array([101.0, 103.0, -7.0, -1.0])  # centred: -1, 1, -3, 3
    found = deviation(expected + np.array([0.0, -0.5, 0.25, 0.0]), expected, 2)
    assert (found.largest, found.outputs) == (0.5, 4)
    assert found.scale == pytest.approx(np.sqrt(5.0), rel=1e-15)
    assert found.relative == pytest.approx(0.5 / np.sqrt(5.0), rel=1e-15)
    # With one output a position, the mean is that over all positions, 49.
    assert deviation(expected, expected, 1).scale == pytest.approx(
        np.sqrt((52.0**2 + 54.0**2 + 56.0**2 + 50.0**2) / 4), rel=1e-15
    )


def test_degenerate_outputs():
    constant = np.full(4, 3.0)
    assert deviation(constant, constant, 2).relative == 0.0
    assert deviation(constant + 1e-9, constant, 2).relative == np.inf
    for bad in (np.nan, np.inf):
        assert deviation(np.array([bad, 0.0]), np.zeros(2), 2).largest == np.inf
        assert deviation(np.array([bad, 0.0]), np.array([bad, 0.0]), 2).relative == np.inf
    with pytest.raises(InputError, match="same probe"):
        deviation(np.zeros(2), np.zeros(3), 1)


def test_a_move_of_the_values_changes_nothing_and_a_changed_weight_something():
    laid_out = architecture({**toys.LLAMA, "architectures": ["LlamaForCausalLM"]})
    weights = draw(laid_out)
    moved = {name: array.copy() for name, array in weights.items()}
    attention = laid_out.streams[0].steps[0].branches[0].sublayers[0]
    rng = np.random.default_rng(1)
    change = np.eye(4) + 0.3 * rng.standard_normal((attention.groups, 4, 4))
    value, output = attention.value.read(moved), attention.output.read(moved)
    attention.value.write(moved, change @ value)
    inverse = np.linalg.inv(change).transpose(0, 2, 1)
    attention.output.write(moved, inverse[:, None] @ output)
    probe = probe_inputs(laid_out, 0, 2, 6)

    def compared(other):
        return deviation_of(
            laid_out,
            lambda view: view.read(weights),
            lambda view: view.read(other),
            probe,
            Observable.LOGITS,
        )

    assert not np.array_equal(moved[attention.value.tensor], weights[attention.value.tensor])
    assert compared(moved).relative < 1e-12
    moved[attention.value.tensor][0, 0] += 1e-3
    assert compared(moved).relative > 1e-6
