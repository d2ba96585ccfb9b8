"""Models of every published class in memory: their tensors, ties and counts."""

import numpy as np
import pytest

from fiberscope.checkpoints.twins.model import build_model
from fiberscope.training import SymmetryMonitor
from tests.checkpoints.ledger.toys import CASES
from tests.training.toys import NAMES, dense_basis, drawn_up, listed_tangents, space_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
# The gradients of these tests are drawn at random, not those of a loss.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the gradient of step"),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_every_class_is_bound_by_its_own_configuration(case):
    config, observable = CASES[case]
    found = drawn_up(config, observable)
    torch.manual_seed(case)
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    monitor = SymmetryMonitor(model, optimizer, observable=observable, tolerance=1e-9)
    assert monitor.start.parameters == found.parameters
    assert monitor.start.invisible == found.undetermined
    rng = np.random.default_rng(case)
    gradient = {name: rng.standard_normal(value.shape) for name, value in before.items()}
    for name, parameter in model.named_parameters():
        parameter.grad = torch.from_numpy(gradient[name])
    optimizer.step()
    basis = dense_basis(listed_tangents(found, before))
    vector = space_of(found).vector(gradient)
    expected = np.sum((basis @ vector) ** 2) / (vector @ vector)
    assert monitor.measurements[0].update.share == pytest.approx(expected, abs=1e-8)
