"""Exact gradients of every published class have no invisible part."""

import numpy as np
import pytest

from fiberscope.checkpoints.twins import build_twin
from fiberscope.symmetry import Kind
from fiberscope.training import TangentSpan
from tests.checkpoints.ledger.toys import CASES
from tests.training.toys import NAMES, drawn_up

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_exact_gradients_are_seen_entirely(case):
    config, observable = CASES[case]
    found = drawn_up(config, observable)
    twin = build_twin(config, observable, 0, inputs=2)
    jacobian, columns = twin.jacobian()
    # Any scalar function of the outputs has a gradient of this form.
    gradient = np.random.default_rng(case).standard_normal(len(jacobian)) @ jacobian
    named = {name: gradient[where].reshape(twin.parameters[name].shape) for name, where in columns}
    span = TangentSpan.at(found.symmetries(Kind.EXACT), twin.parameters)
    assert span.project(named).share < 1e-12
