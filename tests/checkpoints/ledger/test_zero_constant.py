"""Shifts of a norm's bias where readers without a bias divide by a constant that is zero.

In a fresh model every norm bias is zero, so bias/gain adds up to zero. The oracle is the gradient
of a loss by automatic differentiation, in float64: it has no component along a true symmetry.
"""

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.ledger.rules.constants import NORM_BIAS
from fiberscope.errors import InputError
from fiberscope.parameters import ParameterSpace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 23}


def fresh(name):
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=8, n_head=2, n_layer=1, n_inner=12, n_positions=16, vocab_size=23,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).double()
    config = transformers.GPTNeoXConfig(**SIZES, intermediate_size=12, tie_word_embeddings=False)
    return transformers.GPTNeoXForCausalLM(config).double()


def drawn_up(model):
    raw = model.config.to_diff_dict() | {"architectures": [type(model).__name__]}
    raw["model_type"] = model.config.model_type
    found = ledger(architecture(raw, tied=False), Observable.PROBABILITIES)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    (final,) = [
        item for item in found.items if item.mechanism == NORM_BIAS and "final" in item.where
    ]
    return final.build(), weights


def log_probabilities(model, weights=None):
    tokens = torch.arange(40).reshape(4, 10) % 23
    if weights is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(weights[name]))
    return torch.log_softmax(model(input_ids=tokens).logits, -1)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_listed_directions_are_invisible_and_those_of_the_map(name):
    model = fresh(name)
    symmetry, weights = drawn_up(model)
    coefficients = np.random.default_rng(0).standard_normal((4, 10, 23))
    (log_probabilities(model) * torch.from_numpy(coefficients)).sum().backward()
    space = ParameterSpace({key: value.shape for key, value in weights.items()})
    gradient = space.vector({key: p.grad.numpy() for key, p in model.named_parameters()})
    rows = symmetry.tangents(weights, space)
    lengths = np.linalg.norm(rows, axis=1)
    assert (lengths > 0).all()
    along = rows @ gradient / lengths / np.linalg.norm(gradient)
    assert np.abs(along).max() < 1e-13
    tangent_map = symmetry.tangent_map(weights)
    x = np.random.default_rng(1).standard_normal(symmetry.generators)
    pushed = {key: np.zeros(weights[key].shape) for key in symmetry.touches}
    tangent_map.add(x, pushed)
    whole = space.vector({k: pushed.get(k, np.zeros(v.shape)) for k, v in weights.items()})
    assert np.allclose(whole, x @ rows, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_moves_away_from_zero_are_exact_and_moves_onto_it_are_refused(name):
    model = fresh(name)
    symmetry, weights = drawn_up(model)
    before = log_probabilities(model).detach()
    rested = symmetry.act(symmetry.identity(), weights)
    assert all(np.array_equal(rested[key], value) for key, value in weights.items())
    element = symmetry.random(np.random.default_rng(0))
    moved = symmetry.act(element, weights)
    assert not np.array_equal(moved[symmetry.touches[0]], weights[symmetry.touches[0]])
    assert (log_probabilities(model, moved) - before).abs().max() < 1e-13
    with pytest.raises(InputError, match="add up to zero"):
        symmetry.act(symmetry.inverse(element), moved)
    cancelling = element - element.mean()  # Gains are one: it adds up to zero.
    with pytest.raises(InputError, match="add up to zero"):
        symmetry.act(cancelling, weights)
