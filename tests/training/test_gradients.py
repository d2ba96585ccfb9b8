"""Exact gradients of every published class have no invisible part."""

import numpy as np
import pytest

from fiberscope.checkpoints.twins import build_twin
from fiberscope.checkpoints.twins.model import build_model
from fiberscope.symmetry import Kind
from fiberscope.training import TangentSpan
from tests.checkpoints.ledger.toys import CASES
from tests.training.toys import NAMES, dense_basis, drawn_up, space_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def gradient_of(twin, weights, seed):
    """Gradient of a random scalar function of the outputs."""
    jacobian, columns = twin.jacobian(weights)
    gradient = np.random.default_rng(seed).standard_normal(len(jacobian)) @ jacobian
    return {name: gradient[where].reshape(weights[name].shape) for name, where in columns}


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_exact_gradients_are_seen_entirely(case):
    config, observable = CASES[case]
    found = drawn_up(config, observable)
    twin = build_twin(config, observable, 0, inputs=2)
    named = gradient_of(twin, twin.parameters, case)
    span = TangentSpan.at(found.symmetries(Kind.EXACT), twin.parameters)
    assert span.project(named).share < 1e-12


# Untied and without an unembedding bias, tied, parallel, RMSNorm, post-norm, images, relative.
FRESH = (1, 3, 4, 6, 16, 18, 24, 31, 36, 38)


@pytest.mark.parametrize("case", FRESH, ids=[NAMES[case] for case in FRESH])
def test_so_they_are_in_a_freshly_initialised_model(case):
    """Zero biases and equal gains are no generic weights, yet every training starts there."""
    config, observable = CASES[case]
    found = drawn_up(config, observable)
    twin = build_twin(config, observable, 0, inputs=2)
    torch.manual_seed(case)
    fresh = {
        name: parameter.detach().numpy().astype(np.float64)
        for name, parameter in build_model(config).named_parameters()
    }
    span = TangentSpan.at(found.symmetries(Kind.EXACT), fresh)
    named = gradient_of(twin, fresh, case)
    assert span.project(named).share < 1e-12
    # The directions still span as many dimensions: nothing invisible is lost at the start.
    space = space_of(found)
    rows = [
        space.vector({n: span.push(unit).get(n, np.zeros(s)) for n, s in space.shapes.items()})
        for unit in np.eye(span.generators)
    ]
    assert len(dense_basis(np.array(rows))) == found.undetermined
