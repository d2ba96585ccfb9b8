"""The balanced point is the smallest, and the nearest of the smallest: other routes to it."""

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import minimize

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.training.balance import balanced
from fiberscope.training.balance_factors import balance_factors

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 4,
    "n_head": 2,
    "n_layer": 1,
    "n_inner": 6,
    "n_positions": 4,
    "vocab_size": 12,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 6,
    "intermediate_size": 5,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 18,
    "tie_word_embeddings": False,
}


def drawn(laid_out, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in laid_out.tensors.items()}


def attention(laid_out):
    return laid_out.streams[-1].steps[0].branches[0].sublayers[0]


def mlp(laid_out):
    return laid_out.streams[-1].steps[-1].branches[0].sublayers[0]


def moved(move, left, right):
    matrix = move.matrix
    a, b = matrix @ left, np.linalg.inv(matrix).conj().T @ right
    a[move.live :], b[move.live :] = 0, 0
    return move.rotation @ a, move.rotation @ b


@pytest.mark.parametrize("complex_rows", [False, True])
@pytest.mark.parametrize(("width", "rank"), [(3, 3), (4, 2), (3, 0), (6, 4)])
def test_the_norm_is_twice_the_nuclear_norm_of_the_product(width, rank, complex_rows):
    """|A|^2 + |B|^2 >= 2 |A^H B|_*, whatever the factors; the bound is met."""
    rng = np.random.default_rng([width, rank, complex_rows])

    def normal(*shape):
        draw = rng.standard_normal((2, *shape))
        return draw[0] + 1j * draw[1] if complex_rows else draw[0]

    left, right = normal(width, rank) @ normal(rank, 5), 1e3 * normal(width, 4)
    product = left.conj().T @ right
    a, b = moved(balance_factors(left, right), left, right)
    nuclear = np.linalg.svd(product, compute_uv=False).sum()
    assert np.abs(a.conj().T @ b - product).max() <= 1e-12 * max(1.0, np.abs(product).max())
    assert np.linalg.norm(a) ** 2 + np.linalg.norm(b) ** 2 == pytest.approx(2 * nuclear, rel=1e-12)
    assert np.abs(a @ a.conj().T - b @ b.conj().T).max() <= 1e-12 * max(nuclear, 1.0)


def test_no_rotation_is_nearer():
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((3, 5)), rng.standard_normal((3, 7))
    a, b = moved(balance_factors(left, right), left, right)
    nearest = np.linalg.norm(a - left) ** 2 + np.linalg.norm(b - right) ** 2

    def distance(entries, reflection):
        skew = np.zeros((3, 3))
        skew[np.triu_indices(3, 1)] = entries
        turn = expm(skew - skew.T) @ reflection
        return np.linalg.norm(turn @ a - left) ** 2 + np.linalg.norm(turn @ b - right) ** 2

    for reflection in (np.eye(3), np.diag([1.0, 1.0, -1.0])):
        for _ in range(5):
            start = rng.uniform(-3, 3, 3)
            found = minimize(distance, start, args=(reflection,)).fun
            assert found >= nearest * (1 - 1e-9)


def value_norm(entries, value, output, biases, total, heads, width):
    """Norm of values, outputs and biases after a free change of basis and shift (no algebra)."""
    matrices = entries[: heads * width**2].reshape(heads, width, width)
    shift = entries[heads * width**2 :].reshape(heads, width)
    # The constant that leaves the value bias, in the old basis, lands in the output bias.
    norm, constant = 0.0, total.copy()
    for g in range(heads):
        new = biases[g] + shift[g]
        constant = constant - output[g].T @ shift[g]
        norm += np.sum((matrices[g] @ np.column_stack([value[g], new])) ** 2)
        norm += np.sum((np.linalg.inv(matrices[g]).T @ output[g]) ** 2)
    return norm + constant @ constant


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 1.0), (2, 20.0), (3, 20.0)])
def test_values_and_biases_reach_the_joint_minimum(seed, scale):
    laid_out = architecture(GPT2)
    parameters = drawn(laid_out, seed)
    a = attention(laid_out)
    a.output_bias.write(parameters, scale * a.output_bias.read(parameters))
    value, output = a.value.read(parameters), a.output.read(parameters)[:, 0]
    bias, total = a.value_bias.read(parameters), a.output_bias.read(parameters)
    found = balanced(laid_out, parameters)
    reached = sum(
        float(np.sum(view.read(found.parameters) ** 2))
        for view in (a.value, a.output, a.value_bias, a.output_bias)
    )
    data = (value, output, bias, total, 2, 2)
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(6):
        start = np.concatenate([np.tile(np.eye(2).ravel(), 2), np.zeros(4)])
        start = start + 0.3 * rng.standard_normal(len(start))
        results.append(minimize(value_norm, start, args=data, options={"maxiter": 5000}).fun)
    assert min(results) == pytest.approx(reached, rel=1e-7)
    assert min(results) >= reached * (1 - 1e-12)


def test_values_of_low_rank_reach_the_joint_infimum():
    """The bias may fill the row that the values leave empty: large constants make it worth it."""
    laid_out = architecture(GPT2)
    for scale in (0.1, 50.0):
        parameters = drawn(laid_out, 7)
        a = attention(laid_out)
        value = a.value.read(parameters).copy()
        value[:, 0] = 2 * value[:, 1]
        a.value.write(parameters, value)
        a.output_bias.write(parameters, scale * a.output_bias.read(parameters))
        data = (
            value,
            a.output.read(parameters)[:, 0].copy(),
            a.value_bias.read(parameters).copy(),
            a.output_bias.read(parameters).copy(),
            2,
            2,
        )
        found = balanced(laid_out, parameters, cut=True)
        reached = sum(
            float(np.sum(view.read(found.parameters) ** 2))
            for view in (a.value, a.output, a.value_bias, a.output_bias)
        )
        rng = np.random.default_rng(11)
        lowest = np.inf
        for _ in range(6):
            start = np.concatenate([np.tile(np.eye(2).ravel(), 2), np.zeros(4)])
            start = start + 0.3 * rng.standard_normal(len(start))
            options = {"maxiter": 5000, "gtol": 1e-9}
            lowest = min(lowest, minimize(value_norm, start, args=data, options=options).fun)
        # The infimum need not be attained by the search, but nothing lies below the balance.
        assert lowest >= reached * (1 - 1e-12)
        assert lowest == pytest.approx(reached, rel=1e-3)


def test_gated_relu_neurons_reach_the_minimum_over_both_scalings():
    config = {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "d_model": 4,
        "d_kv": 2,
        "num_heads": 2,
        "num_layers": 1,
        "d_ff": 3,
        "vocab_size": 10,
        "feed_forward_proj": "gated-relu",
    }
    laid_out = architecture(config)
    parameters = drawn(laid_out, 4)
    m = mlp(laid_out)
    up, gate, down = (view.read(parameters) for view in (m.up, m.gate, m.down))
    found = balanced(laid_out, parameters)
    for j in range(3):

        def norm(logs, j=j):
            x, y = np.exp(logs)
            return (
                x * np.sum(up[j] ** 2) + y * np.sum(gate[j] ** 2) + np.sum(down[:, j] ** 2) / x / y
            )

        lowest = minimize(norm, np.zeros(2), method="BFGS", options={"gtol": 1e-12}).fun
        reached = (
            np.sum(m.up.read(found.parameters)[j] ** 2)
            + np.sum(m.gate.read(found.parameters)[j] ** 2)
            + np.sum(m.down.read(found.parameters)[:, j] ** 2)
        )
        assert reached == pytest.approx(lowest, rel=1e-10)
        # Only positive factors keep a ReLU: each row is a positive multiple of what it was.
        for new, old in ((m.up, up), (m.gate, gate)):
            ratio = new.read(found.parameters)[j] / old[j]
            assert ratio.min() > 0 and np.ptp(ratio) < 1e-12 * ratio.max()


def test_rotary_planes_are_balanced_one_by_one_against_all_queries_of_the_group():
    laid_out = architecture(LLAMA)
    parameters = drawn(laid_out, 5)
    found = balanced(laid_out, parameters)
    a = attention(laid_out)
    query, key = a.query.read(found.parameters)[0], a.key.read(found.parameters)[0]
    before = a.query.read(parameters)[0], a.key.read(parameters)[0]
    for first, second in a.rotary.planes:
        rows = [first, second]
        sides = np.sum(query[:, rows] ** 2), np.sum(key[rows] ** 2)
        assert sides[0] == pytest.approx(sides[1], rel=1e-13)
        # A plane carries one scale (the nearest turn is none): everything is a multiple.
        factor = np.sqrt(np.sum(before[1][rows] ** 2) / np.sum(before[0][:, rows] ** 2)) ** 0.5
        assert np.allclose(query[:, rows], factor * before[0][:, rows], rtol=1e-13, atol=0)
        assert np.allclose(key[rows], before[1][rows] / factor, rtol=1e-13, atol=0)
    # Full Gram matrices do not agree: the smaller group cannot move them.
    gram = np.einsum("mrd,msd->rs", query, query) - key @ key.T
    assert np.abs(gram).max() > 0.1


def test_dead_parts_are_cut_and_named_where_asked():
    laid_out = architecture(GPT2)
    parameters = drawn(laid_out, 6)
    a = attention(laid_out)
    a.output.write(parameters, np.zeros(a.output.shape))
    found = balanced(laid_out, parameters, cut=True)
    assert not a.value.read(found.parameters).any()
    assert not a.value_bias.read(found.parameters).any()
    assert np.array_equal(a.output_bias.read(found.parameters), a.output_bias.read(parameters))
    assert [note for note in found.notes if "receive no gradient" in note]
    again = balanced(laid_out, found.parameters, cut=True)
    assert again.distance < 1e-14 * found.norm_after

    neurons = architecture(LLAMA)
    parameters = drawn(neurons, 6)
    m = mlp(neurons)
    down = m.down.read(parameters).copy()
    down[:, 2] = 0
    m.down.write(parameters, down)
    found = balanced(neurons, parameters, cut=True)
    assert not m.up.read(found.parameters)[2].any()
    assert m.gate.read(found.parameters)[2].any()
    assert sum(entry.cut for entry in found.mechanisms) == 1


def test_dead_parts_rest_unless_asked():
    laid_out = architecture(GPT2)
    parameters = drawn(laid_out, 6)
    a = attention(laid_out)
    output = a.output.read(parameters).copy()
    output[1] = 0.0
    a.output.write(parameters, output)
    found = balanced(laid_out, parameters)
    for view in (a.value, a.value_bias, a.output, a.output_bias):
        assert np.array_equal(view.read(found.parameters), view.read(parameters))
    (note,) = [note for note in found.notes if "left unbalanced" in note]
    assert "2 dead rows of the value/output basis change" in note
    by_mechanism = {entry.mechanism: entry for entry in found.mechanisms}
    assert by_mechanism["query/key basis change"].imbalance_after < 1e-12
    assert by_mechanism["value/output basis change"].imbalance_after > 0.1
    again = balanced(laid_out, found.parameters)
    assert again.distance < 1e-13 * found.norm_after

    neurons = architecture(LLAMA)
    parameters = drawn(neurons, 6)
    m = mlp(neurons)
    down = m.down.read(parameters).copy()
    down[:, 2] = 0
    m.down.write(parameters, down)
    found = balanced(neurons, parameters)
    assert np.array_equal(m.up.read(found.parameters)[2], m.up.read(parameters)[2])
    up, moved = m.up.read(found.parameters), m.down.read(found.parameters)
    others = np.arange(len(up)) != 2
    sizes = np.linalg.norm(up, axis=1)[others], np.linalg.norm(moved, axis=0)[others]
    assert np.allclose(*sizes, rtol=1e-12)


def test_factors_of_very_different_size_keep_their_product():
    rng = np.random.default_rng(8)
    rows = 10.0 ** np.array([-150, -8, 0, 120])
    left = rows[:, None] * rng.standard_normal((4, 6))
    right = rng.standard_normal((4, 5)) / rows[:, None]
    move = balance_factors(left, right)
    assert move.live == 4
    a, b = moved(move, left, right)
    product = left.T @ right
    assert np.abs(a.T @ b - product).max() < 1e-12 * np.abs(product).max()


def test_frozen_tensors_stay_and_are_named():
    laid_out = architecture(GPT2)
    parameters = drawn(laid_out, 9)
    a = attention(laid_out)
    frozen = a.output.tensor
    found = balanced(laid_out, parameters, fixed=frozenset({frozen}))
    assert np.array_equal(found.parameters[frozen], parameters[frozen])
    assert [note for note in found.notes if frozen in note]
    assert {entry.mechanism for entry in found.mechanisms} == {
        "key bias",
        "query/key basis change",
        "value bias",
    }
    # What is left: the bias alone, as a ridge regression.
    output = a.output.read(parameters)[:, 0]
    total = a.output_bias.read(parameters) + np.einsum(
        "gsd,gs->d", output, a.value_bias.read(parameters)
    )
    rows = np.vstack([np.eye(4), output.reshape(4, -1).T])
    ridge = np.linalg.lstsq(rows, np.concatenate([np.zeros(4), total]), rcond=None)[0]
    assert np.allclose(a.value_bias.read(found.parameters).ravel(), ridge, atol=1e-12)


def test_nothing_given_is_changed():
    laid_out = architecture(LLAMA)
    parameters = drawn(laid_out, 10)
    kept = {name: value.copy() for name, value in parameters.items()}
    balanced(laid_out, parameters)
    assert all(np.array_equal(kept[name], parameters[name]) for name in kept)
