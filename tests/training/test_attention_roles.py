"""Attention declared by roles: the rules for heads hold in any module."""

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Rotary
from fiberscope.errors import InputError
from fiberscope.training import AttentionRoles, SymmetryMonitor

torch = pytest.importorskip("torch")
# The gradients of these tests are drawn at random, not those of a loss.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the gradient of step"),
]


def encoder_layer(**changes):
    torch.manual_seed(3)
    settings = {"d_model": 12, "nhead": 3, "dim_feedforward": 7, "dropout": 0.0}
    return torch.nn.TransformerEncoderLayer(**settings | changes).double()


def one_step(model, monitored, loss_of):
    loss = loss_of()
    loss.backward()
    monitored.step()
    return model


def test_torch_attention_by_its_class():
    model = encoder_layer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    roles = AttentionRoles.of(model.self_attn, "self_attn")
    monitor = SymmetryMonitor(model, optimizer, attention=[roles])
    # Three heads of four: 16 for queries and keys, 16 for values and outputs, 4 dead key biases
    # and 4 value biases that fold into the output bias.
    assert monitor.start.invisible == 3 * (16 + 16 + 4 + 4)
    inputs = torch.randn(5, 6, 12, dtype=torch.float64)
    target = torch.randn(5, 6, 12, dtype=torch.float64)
    ((model(inputs) - target) ** 2).sum().backward()
    optimizer.step()
    (measured,) = monitor.measurements
    assert measured.gradient.share < 1e-12
    assert 1e-3 < measured.update.share < 1.0


class Fused(torch.nn.Module):
    """Grouped heads, one fused projection stored inputs first, as some libraries do."""

    def __init__(self, width=10, heads=4, groups=2, r=3, s=2):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        rows = heads * r + groups * (r + s)
        draw = lambda *shape: torch.nn.Parameter(  # noqa: E731
            torch.randn(*shape, generator=generator, dtype=torch.float64)
        )
        self.sizes = heads, groups, r, s
        self.joint, self.joint_bias = draw(width, rows), draw(rows)
        self.out, self.out_bias = draw(heads * s, width), draw(width)

    def forward(self, x):
        heads, groups, r, s = self.sizes
        n = x.shape[0]
        q, k, v = (x @ self.joint + self.joint_bias).split(
            [heads * r, groups * r, groups * s], dim=-1
        )
        q, k, v = q.view(n, groups, -1, r), k.view(n, groups, r), v.view(n, groups, s)
        weights = torch.softmax(torch.einsum("agmr,bgr->gmab", q, k), dim=-1)
        mixed = torch.einsum("gmab,bgs->agms", weights, v).reshape(n, heads * s)
        return mixed @ self.out + self.out_bias


def fused_roles(**changes):
    names = dict.fromkeys(("query", "key", "value"), "joint")
    biases = dict.fromkeys(("query_bias", "key_bias", "value_bias"), "joint_bias")
    settings = {"output": "out", "output_bias": "out_bias", "heads": 4, "groups": 2}
    return AttentionRoles(**names, **biases, **settings | {"input_first": True} | changes)


def test_fused_grouped_attention_by_names():
    model = Fused()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    monitor = SymmetryMonitor(model, optimizer, attention=[fused_roles()])
    assert monitor.start.invisible == 2 * (9 + 4 + 3 + 2)
    (model(torch.randn(6, 10, dtype=torch.float64)) ** 2).sum().backward()
    optimizer.step()
    measured = monitor.measurements[0]
    assert measured.gradient.share < 1e-12
    # SGD follows the gradient, up to the rounding of the stored weights.
    assert measured.update.share < 1e-12


def test_rotary_pairs_leave_less_freedom():
    model = Fused()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rotary = Rotary(planes=((0, 1),), frequencies=(1.0,))
    monitor = SymmetryMonitor(model, optimizer, attention=[fused_roles(rotary=rotary)])
    # One turned pair (2), one row that rests (1); only its key bias is dead.
    assert monitor.start.invisible == 2 * (2 + 1 + 4 + 1 + 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "no multiple"),
        ({"heads": 8, "groups": 8}, "not divisible|outputs"),
        ({"output": "nowhere"}, "no parameter 'nowhere'"),
        ({"heads": 0}, "no multiple"),
    ],
)
def test_roles_that_do_not_fit_are_refused(changes, sentence):
    model = Fused()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with pytest.raises(InputError, match=sentence):
        SymmetryMonitor(model, optimizer, attention=[fused_roles(**changes)])


def test_attention_with_a_key_of_its_own_is_refused():
    attention = torch.nn.MultiheadAttention(8, 2, add_bias_kv=True)
    with pytest.raises(InputError, match="appends a key"):
        AttentionRoles.of(attention, "attention")
    with pytest.raises(InputError, match="roles are not known"):
        AttentionRoles.of(torch.nn.Linear(2, 2), "linear")


def test_the_share_is_that_of_the_written_out_directions():
    """Directions written out by hand for the classical layout, one head at a time."""
    torch.manual_seed(1)
    module = torch.nn.MultiheadAttention(6, 2, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    monitor = SymmetryMonitor(module, optimizer, attention=[AttentionRoles.of(module)])
    joint, out = module.in_proj_weight.detach().numpy(), module.out_proj.weight.detach().numpy()
    rows = []
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        for i in range(3):
            for j in range(3):
                matrix = np.zeros((3, 3))
                matrix[i, j] = 1.0
                moved, rest = np.zeros_like(joint), np.zeros_like(out)
                moved[:6][part] = matrix @ joint[:6][part]
                moved[6:12][part] = -matrix.T @ joint[6:12][part]
                rows.append(np.concatenate([moved.ravel(), rest.ravel()]))
                moved = np.zeros_like(joint)
                moved[12:][part] = matrix @ joint[12:][part]
                rest[:, part] = -out[:, part] @ matrix
                rows.append(np.concatenate([moved.ravel(), rest.ravel()]))
    basis = np.linalg.svd(np.array(rows), full_matrices=False)[2]
    gradient = np.random.default_rng(0).standard_normal(basis.shape[1])
    module.in_proj_weight.grad = torch.from_numpy(gradient[: joint.size].reshape(joint.shape))
    module.out_proj.weight.grad = torch.from_numpy(gradient[joint.size :].reshape(out.shape))
    optimizer.step()
    expected = np.sum((basis @ gradient) ** 2) / (gradient @ gradient)
    assert monitor.start.invisible == len(basis) == 36
    assert monitor.measurements[0].update.share == pytest.approx(expected, abs=1e-6)
