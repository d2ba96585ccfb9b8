"""Directions that epsilon breaks, and what happens beyond the stated conditions, on twins."""

import pytest

from fiberscope.analysis import rank_of
from fiberscope.checkpoints.twins import build_twin
from fiberscope.symmetry import Kind
from tests.checkpoints.ledger.routes import draw_up
from tests.checkpoints.ledger.toys import bert, gpt2, llama, neox, t5

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def nullity(config, observable, epsilon):
    """Nullity on a bank that has saturated: half as many inputs again change nothing."""
    twin = build_twin(config, observable, 0, epsilon=epsilon)
    inputs, found = twin.sequences, rank_of(twin.jacobian()[0])
    while True:
        inputs = inputs * 3 // 2 + 1
        twin = build_twin(config, observable, 0, epsilon=epsilon, inputs=inputs)
        more = rank_of(twin.jacobian()[0])
        assert more.decided
        if more.nullity == found.nullity:
            return more.nullity
        found = more


@pytest.mark.parametrize(
    ("config", "observable", "expected"),
    [
        (gpt2(), "logits", 1),
        (llama(), "logits", 1),
        (llama("qwen3", "Qwen3ForCausalLM", vocab_size=24), "logits", 1 + 2 + 1),
        (bert(), "hidden", 3),
        (bert(cls="BertForMaskedLM", hidden_act="relu"), "logits", 3 + 1),
        (t5(), "logits", 1),
    ],
)
def test_directions_broken_by_epsilon_alone(config, observable, expected):
    found = draw_up(config, observable)
    predicted = sum(m.dimension for m in found.mechanisms(Kind.APPROXIMATE))
    assert predicted == expected
    exact = nullity(config, observable, 1e-2)
    assert exact == found.undetermined
    assert nullity(config, observable, 0.0) - exact == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (llama(hidden_size=4, vocab_size=4), "vocabulary"),
        (gpt2(vocab_size=4), "vocabulary"),
        (neox(vocab_size=12), "parallel residual"),
    ],
)
def test_where_a_condition_fails_the_count_is_only_a_bound(config, words):
    found = draw_up(config, "logits")
    assert any(words in c.statement for c in found.conditions if not c.holds)
    assert nullity(config, "logits", 1e-2) > found.undetermined


def test_wide_heads_leave_the_union_short_and_the_second_route_right():
    # Width 6 heads, one group of two: wider than the 5 key inputs, narrower than 2 x 6 query ones.
    config = llama(
        "qwen2", "Qwen2ForCausalLM", hidden_size=4, num_attention_heads=2, head_dim=6, vocab_size=14
    )
    found = draw_up(config, "logits")
    measured = nullity(config, "logits", 1e-2)
    assert found.parameters - found.effective == measured
    assert found.undetermined < measured
    assert any("head widths" in c.statement for c in found.conditions if not c.holds)
