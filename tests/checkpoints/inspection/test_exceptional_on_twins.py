"""The extra dimension at exceptional weights, against the nullity of the twin's Jacobian there."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fiberscope.analysis import rank_of
from fiberscope.checkpoints.inspection import inspect
from fiberscope.checkpoints.twins import build_twin
from tests.checkpoints.ledger.toys import gpt2, llama, neox, t5

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def zero_value_output(p):
    """GPT-2, head 1: nothing it attends to is written."""
    p["transformer.h.0.attn.c_proj.weight"][2:4] = 0.0


def equal_value_rows(p):
    """GPT-2, head 0: both value rows are the same."""
    fused = p["transformer.h.0.attn.c_attn.weight"]
    fused[:, 9] = fused[:, 8]


def rank_one_keys(p):
    """GPT-2, head 1: both key rows are proportional."""
    fused = p["transformer.h.0.attn.c_attn.weight"]
    fused[:, 7] = -2.0 * fused[:, 6]


def zero_queries(p):
    """GPT-2, head 0: no query at all."""
    p["transformer.h.0.attn.c_attn.weight"][:, 0:2] = 0.0
    p["transformer.h.0.attn.c_attn.bias"][0:2] = 0.0


def product_zero_in_a_rotated_basis(p):
    """GPT-2, head 0: values and outputs of rank one on complementary directions."""
    fused, out = p["transformer.h.0.attn.c_attn.weight"], p["transformer.h.0.attn.c_proj.weight"]
    fused[:, 9], out[1] = 0.7 * fused[:, 8], -out[0] / 0.7


def queries_orthogonal_to_keys(p):
    """GPT-2, head 0: the same for queries (with their bias) and keys."""
    fused, bias = p["transformer.h.0.attn.c_attn.weight"], p["transformer.h.0.attn.c_attn.bias"]
    fused[:, 1], bias[1] = 0.7 * fused[:, 0], 0.7 * bias[0]
    fused[:, 5] = -fused[:, 4] / 0.7


def cloned_neuron(p):
    """GPT-2: one neuron is a copy of another, down column included."""
    duplicate_neurons(p)
    p["transformer.h.0.mlp.c_proj.weight"][2] = p["transformer.h.0.mlp.c_proj.weight"][0]
    p["transformer.h.0.mlp.c_proj.weight"][3] = -p["transformer.h.0.mlp.c_proj.weight"][0]


def opposite_neuron(p):
    """GPT-2 with tanh: one row is the negative of another."""
    up, bias = p["transformer.h.0.mlp.c_fc.weight"], p["transformer.h.0.mlp.c_fc.bias"]
    up[:, 2], bias[2] = -up[:, 0], -bias[0]


def proportional_relu_neuron(p):
    """GPT-2 with ReLU: one row is twice another."""
    up, bias = p["transformer.h.0.mlp.c_fc.weight"], p["transformer.h.0.mlp.c_fc.bias"]
    up[:, 2], bias[2] = 2 * up[:, 0], 2 * bias[0]


def llama_cloned_neuron(p):
    """Gate, up and down copied."""
    at = "model.layers.0.mlp"
    for part in ("gate_proj", "up_proj"):
        p[f"{at}.{part}.weight"][1] = p[f"{at}.{part}.weight"][3]
    p[f"{at}.down_proj.weight"][:, 1] = p[f"{at}.down_proj.weight"][:, 3]


def llama_proportional_gate(p):
    """Llama with ReLU: one gate row is twice another."""
    gate = p["model.layers.0.mlp.gate_proj.weight"]
    gate[1] = 2 * gate[3]


def cloned_head(p):
    """GPT-2: head 1 is a copy of head 0 in every part."""
    heads_that_attend_alike(p)
    fused, bias = p["transformer.h.0.attn.c_attn.weight"], p["transformer.h.0.attn.c_attn.bias"]
    out = p["transformer.h.0.attn.c_proj.weight"]
    fused[:, 10:12], bias[10:12] = fused[:, 8:10], bias[8:10]
    out[2:4] = out[0:2]


def alike_and_silent(p):
    """GPT-2: head 1 attends as head 0 does and writes nothing."""
    heads_that_attend_alike(p)
    p["transformer.h.0.attn.c_proj.weight"][2:4] = 0.0


def qwen3_equal_gains(p):
    """Gains of normalised queries and keys as freshly initialised."""
    for part in "qk":
        p[f"model.layers.0.self_attn.{part}_norm.weight"][:] = 1.0


def heads_that_attend_alike(p):
    """GPT-2: head 1 attends as head 0 does, in another basis."""
    fused, bias = p["transformer.h.0.attn.c_attn.weight"], p["transformer.h.0.attn.c_attn.bias"]
    basis = np.array([[1.0, 0.5], [-0.3, 2.0]])
    dual = np.linalg.inv(basis).T
    fused[:, 2:4], bias[2:4] = fused[:, 0:2] @ basis.T, basis @ bias[0:2]
    fused[:, 6:8] = fused[:, 4:6] @ dual.T


def heads_that_attend_alike_of_three(p):
    """GPT-2 with three heads: the last attends as the first does."""
    fused, bias = p["transformer.h.0.attn.c_attn.weight"], p["transformer.h.0.attn.c_attn.bias"]
    fused[:, 4:6], bias[4:6] = fused[:, 0:2], bias[0:2]
    fused[:, 10:12] = fused[:, 6:8]


def llama_heads_that_attend_alike(p):
    """Two heads of one group have the same query."""
    query = p["model.layers.0.self_attn.q_proj.weight"]
    query[4:8] = query[0:4]


def llama_groups_that_attend_alike(p):
    """Two heads with keys of their own attend alike, up to a turn of every plane."""
    query, key = (p[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qk")
    z = (0.8 - 1.1j, -0.4 + 0.2j)
    for plane, factor in enumerate(z):
        rows = [plane, plane + 2]
        turn = np.array([[factor.real, -factor.imag], [factor.imag, factor.real]])
        query[[4 + r for r in rows]] = turn @ query[rows]
        key[[4 + r for r in rows]] = np.linalg.inv(turn).T @ key[rows]


def dead_down_columns(p):
    """GPT-2: two neurons write nothing."""
    p["transformer.h.0.mlp.c_proj.weight"][[1, 4]] = 0.0


def duplicate_neurons(p):
    """GPT-2: three neurons read the same."""
    p["transformer.h.0.mlp.c_fc.weight"][:, [2, 3]] = p["transformer.h.0.mlp.c_fc.weight"][:, [0]]
    p["transformer.h.0.mlp.c_fc.bias"][[2, 3]] = p["transformer.h.0.mlp.c_fc.bias"][0]


def silent_up_row(p):
    """GPT-2: one neuron reads nothing."""
    p["transformer.h.0.mlp.c_fc.weight"][:, 5] = 0.0
    p["transformer.h.0.mlp.c_fc.bias"][5] = 0.0


def equal_final_gains(p):
    """Tied: three equal gains."""
    p["transformer.ln_f.weight"][:3] = p["transformer.ln_f.weight"][0]


def all_final_gains_equal(p):
    """Tied, as freshly initialised."""
    p["transformer.ln_f.weight"][:] = 1.0


def silent_but_biased_neuron(p):
    """GPT-2: one neuron reads nothing but its bias."""
    p["transformer.h.0.mlp.c_fc.weight"][:, 5] = 0.0


def llama_equal_final_gains(p):
    """Tied Llama: blocks of three and two equal gains."""
    gains = p["model.norm.weight"]
    gains[:3], gains[3:5] = gains[0], gains[3]


def llama_zero_plane(p):
    """The second rotary plane of the one key head is zero."""
    p["model.layers.0.self_attn.k_proj.weight"][[1, 3]] = 0.0


def llama_silent_group(p):
    """No head of the last layer's one group writes anything."""
    p["model.layers.1.self_attn.o_proj.weight"][:] = 0.0


def llama_silent_head(p):
    """One head of the group of two writes nothing."""
    p["model.layers.0.self_attn.o_proj.weight"][:, :4] = 0.0


def llama_equal_gates(p):
    """Two neurons share a gate row."""
    gate = p["model.layers.0.mlp.gate_proj.weight"]
    gate[1] = gate[3]


def llama_dead_down(p):
    """One gated neuron writes nothing."""
    p["model.layers.0.mlp.down_proj.weight"][:, 2] = 0.0


def llama_zero_up(p):
    """One gated neuron has no up row."""
    p["model.layers.0.mlp.up_proj.weight"][2] = 0.0


def llama_zero_gate(p):
    """One gated neuron has no gate row."""
    p["model.layers.0.mlp.gate_proj.weight"][2] = 0.0


def neox_rank_one_unrotated_keys(p):
    """Partial rotary, head 0: the two unrotated key rows are proportional (rows 4 to 7: keys)."""
    fused = p["gpt_neox.layers.0.attention.query_key_value.weight"]
    fused[7] = 3.0 * fused[6]


TIED_LLAMA = llama(tie_word_embeddings=True)

CASES = [
    (gpt2(), zero_value_output),
    (gpt2(), equal_value_rows),
    (gpt2(), rank_one_keys),
    (gpt2(), zero_queries),
    (gpt2(), product_zero_in_a_rotated_basis),
    (gpt2(), queries_orthogonal_to_keys),
    (gpt2(), cloned_neuron),
    (gpt2(activation_function="tanh"), opposite_neuron),
    (gpt2(activation_function="relu"), proportional_relu_neuron),
    (llama(), llama_cloned_neuron),
    (llama(hidden_act="relu"), llama_proportional_gate),
    (gpt2(), cloned_head),
    (gpt2(), alike_and_silent),
    (llama("qwen3", "Qwen3ForCausalLM", vocab_size=26), qwen3_equal_gains),
    (gpt2(), heads_that_attend_alike),
    (gpt2(n_embd=6, vocab_size=18, n_inner=4, n_head=3), heads_that_attend_alike_of_three),
    (llama(), llama_heads_that_attend_alike),
    (llama(num_key_value_heads=2, hidden_size=8, vocab_size=22), llama_groups_that_attend_alike),
    (gpt2(), dead_down_columns),
    (gpt2(), duplicate_neurons),
    (gpt2(), silent_up_row),
    (gpt2(), silent_but_biased_neuron),
    (gpt2(), equal_final_gains),
    (gpt2(), all_final_gains_equal),
    (gpt2(n_embd=6, vocab_size=18, n_inner=4), equal_final_gains),
    (gpt2(n_embd=6, vocab_size=18, n_inner=4), all_final_gains_equal),
    (TIED_LLAMA, llama_equal_final_gains),
    (llama(), llama_zero_plane),
    # The first layer keeps its heads: an MLP must see more than the vocabulary's points.
    (llama(num_hidden_layers=2), llama_silent_group),
    (llama(), llama_silent_head),
    (llama(), llama_equal_gates),
    (llama(), llama_dead_down),
    (llama(), llama_zero_up),
    (llama(), llama_zero_gate),
    (neox(), neox_rank_one_unrotated_keys),
]


@pytest.mark.parametrize(
    ("config", "change"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_extra_dimension_is_the_extra_nullity(config, change, tmp_path):
    twin = build_twin(config, "logits", 0, epsilon=1e-2)
    generic = rank_of(twin.jacobian()[0])
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    change(parameters)
    changed = rank_of(twin.jacobian(parameters)[0])
    assert generic.decided
    assert changed.decided

    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(parameters, tmp_path / "model.safetensors")
    report = inspect(tmp_path, "logits")
    assert report.ledger.undetermined == generic.nullity
    extras = [finding.extra_dimension for finding in report.weights.exceptional]
    assert extras
    assert sum(extras) == changed.nullity - generic.nullity


def test_generic_weights_have_nothing_exceptional(tmp_path):
    twin = build_twin(gpt2(), "logits", 0)
    (tmp_path / "config.json").write_text(json.dumps(gpt2()))
    save_file(dict(twin.parameters), tmp_path / "model.safetensors")
    report = inspect(tmp_path)
    assert report.weights.exceptional == ()
    assert all(np.isfinite(c.value_output).all() for c in report.weights.conditioning)


def test_a_silent_head_whose_position_column_nobody_else_reads_has_no_stated_dimension(tmp_path):
    config = t5()
    twin = build_twin(config, "logits", 0)
    parameters = {name: value.copy() for name, value in twin.parameters.items()}
    parameters["decoder.block.0.layer.0.SelfAttention.o.weight"][:, :2] = 0.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(parameters, tmp_path / "model.safetensors")
    found = {e.kind: e.extra_dimension for e in inspect(tmp_path, "logits").weights.exceptional}
    assert found["silent heads"] is None
