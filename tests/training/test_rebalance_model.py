"""Rebalancing torch models in training: function, gradients, optimizers, refusals, decay law."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY  # noqa: E402
from fiberscope.errors import InputError  # noqa: E402
from fiberscope.training.rebalance import rebalance_  # noqa: E402

torch.set_num_threads(1)
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}


def gpt2(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        n_embd=8,
        n_head=2,
        n_layer=2,
        n_inner=12,
        n_positions=12,
        vocab_size=19,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.3,
        **NO_TOKENS,
    )
    config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 19, (4, 12)))


def loss_of(model, tokens):
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, steps, batches=None):
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(number if batches is None else number % batches)).backward()
        optimizer.step()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=batch(99), use_cache=False).logits.double().numpy()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_the_model_computes_the_same(dtype, tolerance):
    model = gpt2(dtype=dtype)
    tensors = {name: p.data_ptr() for name, p in model.named_parameters()}
    before = logits(model)
    found = rebalance_(model)
    after = logits(model)
    assert np.abs(after - before).max() < tolerance * np.abs(before).max()
    assert found.moved.relative < 1e-13
    assert found.stored.relative < (1e-13 if dtype is torch.float64 else 1e-5)
    assert found.norm_after < found.norm_before
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == tensors
    assert model.lm_head.weight is model.transformer.wte.weight


def test_what_is_stored_is_the_norm_that_is_reported():
    model = gpt2()

    def norm():
        return float(torch.sqrt(sum((p.detach() ** 2).sum() for p in model.parameters())))

    before = norm()
    found = rebalance_(model)
    assert found.norm_before == pytest.approx(before, rel=1e-13)
    assert found.norm_after == pytest.approx(norm(), rel=1e-13)


def test_gradients_that_are_waiting_are_carried():
    model = gpt2()
    loss_of(model, batch()).backward()
    rebalance_(model)
    carried = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss_of(model, batch()).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(carried[name], parameter.grad, atol=1e-13, rtol=1e-10), name


def test_momentum_of_one_gradient_is_the_gradient_at_the_new_point():
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    train(model, optimizer, 1)
    found = rebalance_(model, optimizer)
    assert "momentum" in found.optimizer
    model.zero_grad()
    loss_of(model, batch(0)).backward()
    for name, parameter in model.named_parameters():
        buffer = optimizer.state[parameter]["momentum_buffer"]
        assert torch.allclose(buffer, parameter.grad, atol=1e-13, rtol=1e-10), name


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_restarts_from_the_carried_mean(kind):
    """With a rate of zero the mean is that of gradients at one point, known at the other too."""
    model = gpt2()
    optimizer = kind(model.parameters(), lr=0.0, weight_decay=0.0, amsgrad=True)
    train(model, optimizer, 3)
    key = "transformer.h.0.attn.c_attn.weight"
    still = "transformer.wte.weight"
    kept = copy.deepcopy(optimizer.state[model.get_parameter(still)])
    found = rebalance_(model, optimizer, second_moments="reset")
    assert "reset" in found.optimizer
    weights = 0.1 * 0.9 ** np.arange(2, -1, -1)
    mean = 0.0
    for number, weight in enumerate(weights):
        model.zero_grad()
        loss_of(model, batch(number)).backward()
        mean = mean + weight / weights.sum() * model.get_parameter(key).grad
    state = optimizer.state[model.get_parameter(key)]
    assert float(state["step"]) == 1
    assert torch.allclose(state["exp_avg"], 0.1 * mean, atol=1e-14, rtol=1e-9)
    assert torch.allclose(state["exp_avg_sq"], 0.001 * mean**2, atol=1e-16, rtol=1e-9)
    assert torch.allclose(state["max_exp_avg_sq"], 0.001 * mean**2, atol=1e-16, rtol=1e-9)
    # What does not move keeps everything.
    for name, value in optimizer.state[model.get_parameter(still)].items():
        assert torch.equal(value, kept[name])


def test_second_moments_are_kept_unless_asked():
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    train(model, optimizer, 3)
    parameter = model.get_parameter("transformer.h.0.attn.c_attn.weight")
    before = copy.deepcopy(optimizer.state[parameter])
    found = rebalance_(model, optimizer)
    state = optimizer.state[parameter]
    assert "approximation" in found.optimizer
    assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"])
    assert float(state["step"]) == 3
    assert not torch.allclose(state["exp_avg"], before["exp_avg"])


def test_a_second_optimizer_is_not_passed_over_in_silence():
    model = gpt2()
    inside = [p for name, p in model.named_parameters() if "c_attn" in name]
    outside = [p for name, p in model.named_parameters() if "c_attn" not in name]
    first, second = torch.optim.AdamW(inside, lr=1e-3), torch.optim.AdamW(outside, lr=1e-3)
    loss_of(model, batch()).backward()
    first.step()
    second.step()
    found = rebalance_(model, first)
    assert "are not this optimizer's" in found.optimizer
    whole = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert "are not this optimizer's" not in rebalance_(model, whole).optimizer


def test_outputs_that_start_at_zero_go_on_learning():
    model = gpt2()
    attention = model.transformer.h[0].attn
    torch.nn.init.zeros_(attention.c_proj.weight)
    rebalance_(model)
    loss_of(model, batch()).backward()
    assert attention.c_proj.weight.grad.norm() > 1e-3
    model.zero_grad()
    found = rebalance_(model, cut=True)
    assert [note for note in found.notes if "are cut" in note]
    loss_of(model, batch()).backward()
    assert attention.c_proj.weight.grad.norm() < 1e-15


def test_training_goes_on_after_it():
    model = gpt2(dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 20, batches=1)
    before = float(loss_of(model, batch(0)).detach())
    rebalance_(model, optimizer)
    assert float(loss_of(model, batch(0)).detach()) == pytest.approx(before, rel=1e-5)
    train(model, optimizer, 30, batches=1)
    assert float(loss_of(model, batch(0)).detach()) < before


def head_imbalance(model):
    """``W_Q^T W_Q - W_K^T W_K`` of both heads of every layer, biases as one more input."""
    found = []
    for block in model.transformer.h:
        weight = block.attn.c_attn.weight.detach().numpy()
        bias = block.attn.c_attn.bias.detach().numpy()
        stacked = np.vstack([weight, bias])
        query, key = stacked[:, :8], stacked[:, 8:16]
        for head in (slice(0, 4), slice(4, 8)):
            found.append(query[:, head].T @ query[:, head] - key[:, head].T @ key[:, head])
    return np.array(found)


def test_decay_law_of_the_imbalance_under_sgd_with_weight_decay():
    """Gradient flow conserves the imbalance; decay shrinks it by ``(1 - lr wd)^2`` a step."""
    model = gpt2()
    rate, decay, steps = 1e-3, 2.0, 300
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    start = head_imbalance(model)
    loss = float(loss_of(model, batch(0)).detach())
    train(model, optimizer, steps)
    expected = (1 - rate * decay) ** (2 * steps)
    shrunk = np.linalg.norm(head_imbalance(model)) / np.linalg.norm(start)
    assert shrunk == pytest.approx(expected, rel=0.01)
    assert float(loss_of(model, batch(0)).detach()) < loss


def test_frozen_layers_are_left_alone_and_named():
    model = gpt2()
    frozen = model.transformer.h[0].attn.c_attn.weight
    frozen.requires_grad_(False)
    kept = frozen.clone()
    found = rebalance_(model)
    assert torch.equal(frozen, kept)
    assert [note for note in found.notes if "transformer.h.0.attn.c_attn.weight is frozen" in note]
    assert not [e for e in found.mechanisms if e.layer == 0 and e.mechanism == QUERY_KEY]
    assert [e for e in found.mechanisms if e.layer == 1 and e.mechanism == QUERY_KEY]


def refused(model, message, optimizer=None, **options):
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InputError, match=message) as error:
        rebalance_(model, optimizer, **options)
    assert "\n" not in str(error.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_cannot_be_moved_is_refused_in_one_sentence():
    refused(gpt2(dtype=torch.bfloat16), "bfloat16")
    refused(torch.nn.Linear(2, 2), "table")
    model = gpt2()
    refused(model, "carried", torch.optim.RMSprop(model.parameters()))
    refused(model, "none of the model", torch.optim.SGD(gpt2().parameters(), lr=0.1))
    refused(model, "'reset' or 'keep'", second_moments="drop")
    model.transformer.extra = torch.nn.Linear(2, 2)
    refused(model, "extra")
    broken = gpt2()
    with torch.no_grad():
        broken.transformer.h[0].mlp.c_fc.weight[0, 0] = np.inf
    refused(broken, "finite")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(gpt2().config)
    with pytest.raises(InputError, match="offloaded"):
        rebalance_(model)


def test_the_result_reads_well():
    found = rebalance_(gpt2())
    text = str(found)
    assert max(len(line) for line in text.splitlines()[: len(found.mechanisms) + 3]) <= 100
    assert "query/key basis change" in text
    data = found.to_dict()
    assert data["evidence"][0]["status"] == "theorem"
    assert len(data["mechanisms"]) == len(found.mechanisms)
