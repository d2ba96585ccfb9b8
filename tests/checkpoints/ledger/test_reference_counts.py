"""Counts against hand arithmetic and published references.

The nullities of toy models and the worked examples come from the reference table that the rules
were drawn up from; the full-size ones are evaluated by formulas written out here, factor by factor.
"""

import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind
from tests.checkpoints.ledger.toys import gpt2, llama, neox, phi


def counts(config, observable="logits"):
    found = ledger(architecture(config), Observable(observable))
    return found.parameters, found.undetermined


def dimensions(config, observable="logits"):
    found = ledger(architecture(config), Observable(observable))
    return {m.name: m.dimension for m in found.mechanisms(Kind.EXACT)}


TOY_LLAMA = {"hidden_size": 4, "vocab_size": 6}


@pytest.mark.parametrize(
    ("config", "observable", "expected"),
    [
        (gpt2(vocab_size=5), "logits", (198, 74)),
        (gpt2(vocab_size=5), "probabilities", (198, 78)),
        (gpt2(vocab_size=5, tie_word_embeddings=False), "logits", (218, 93)),
        (gpt2(vocab_size=5, n_layer=2), "logits", (352, 144)),
        (gpt2(n_embd=6, n_inner=8, vocab_size=7, n_positions=5), "logits", (386, 119)),
        (llama(**TOY_LLAMA), "logits", (216, 43)),
        (llama(**TOY_LLAMA, tie_word_embeddings=True), "logits", (192, 33)),
        (llama(**TOY_LLAMA, num_key_value_heads=2), "logits", (248, 63)),
        (llama(**TOY_LLAMA, num_hidden_layers=2), "logits", (380, 76)),
        (neox(), "logits", (1035, 212)),
        (phi(), "logits", (1059, 236)),
    ],
)
def test_reference_nullities(config, observable, expected):
    assert counts(config, observable) == expected


def test_worked_example_gpt2():
    assert dimensions(gpt2(vocab_size=5)) == {
        "query/key basis change": 2 * 2**2,
        "value/output basis change": 2 * 2**2,
        "key bias": 4,
        "value bias": 4,
        "norm gain": 2 * 4,
        "norm bias": 2 * 4,
        "residual write along 1": 4 + 5 + 7,  # positions; outputs and bias; MLP and bias
        "LayerNorm input direction": 12 + 6,
    }


def test_worked_example_llama():
    assert dimensions(llama(**TOY_LLAMA)) == {
        "query/key basis change": 4,
        "value/output basis change": 16,
        "norm gain": 3 * 4,
        "residual rotation": 6,
        "gated MLP scaling": 5,
    }


def test_gpt2_small_by_hand():
    layers, d, heads, r, f, positions = 12, 768, 12, 64, 3072, 1024
    expected = (
        2 * layers * heads * r**2  # query/key and value/output
        + layers * d  # key biases
        + layers * d  # value biases
        + layers * 2 * d  # norm gains
        + layers * 2 * d  # norm biases
        + layers * (3 * d + f)  # input directions of query, key, value and up
        + positions  # position rows along 1 (token rows are tied)
        + layers * (d + 1 + f + 1)  # output and down columns and their biases along 1
    )
    assert counts({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}) == (
        124_439_808,
        expected,
    )


def llama_3_8b():
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
    }


def test_llama_3_8b_by_hand():
    layers, d, groups, r, f = 32, 4096, 8, 128, 14336
    expected = (
        layers * groups * r  # a rotation and a scale per rotary plane
        + layers * groups * r**2
        + (2 * layers + 1) * d
        + layers * f
        + d * (d - 1) // 2
    )
    assert counts(llama_3_8b()) == (8_030_261_248, expected)


def test_qwen3_by_hand():
    layers, d, groups, r, f = 28, 1024, 8, 128, 3072
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": d,
        "intermediate_size": f,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": groups,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    expected = layers * (r // 2 + groups * r**2 + 2 * d + f)
    assert counts(config) == (596_049_920, expected)
    found = ledger(architecture(config))
    approximate = {m.name: m.dimension for m in found.mechanisms(Kind.APPROXIMATE)}
    assert sum(approximate.values()) == 1 + layers * (16 + groups)


def test_t5_by_hand():
    layers, d, heads, s, f = 6, 512, 8, 64, 2048
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": d,
        "d_kv": s,
        "d_ff": f,
        "num_layers": layers,
        "num_heads": heads,
        "vocab_size": 32128,
    }
    attentions, norms = 3 * layers, 2 * layers + 3 * layers + 1
    expected = (
        2 * attentions * heads * s**2
        + norms * d  # all but the decoder's last, which the tied table reads
        + 2 * layers * f
        + 2 * heads  # one constant per head and table
        + heads  # the encoder's bucket half the table, which no distance reaches
    )
    assert counts(config) == (60_506_624, expected)


def test_parts_add_up_for_every_observable():
    for observable in Observable:
        found = ledger(architecture(neox()), observable)
        assert found.identified + found.undetermined == found.parameters
        total = sum(m.dimension for m in found.mechanisms(Kind.EXACT))
        assert total - sum(o.dimension for o in found.overlaps) == found.undetermined


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (gpt2(vocab_size=4), "vocabulary"),
        (llama("qwen3", "Qwen3ForCausalLM", vocab_size=7), "normalised queries"),
        (neox(vocab_size=12), "parallel residual"),
        (gpt2(n_embd=6, n_head=1), "head widths"),
        (llama(rope_theta=1.0), "frequencies"),
    ],
)
def test_a_condition_that_fails_is_named(config, words):
    if "rope_theta" in config:
        config = {**config, "head_dim": 4, "vocab_size": 18}
    found = ledger(architecture(config))
    failing = [c.statement for c in found.conditions if not c.holds]
    assert any(words in statement for statement in failing) == (not found.is_exact)
    assert words == "head widths" or not found.is_exact


def test_gpt_neox_20b_misses_its_vocabulary_condition_by_the_fitted_excess():
    config = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
    found = ledger(architecture(config))
    failing = [c.statement for c in found.conditions if not c.holds]
    assert len(failing) == 1
    assert "29,910,271" in failing[0]


def test_logits_of_a_base_model_are_refused():
    with pytest.raises(InputError, match="BertModel has no head"):
        ledger(
            architecture({"model_type": "bert", "architectures": ["BertModel"]}),
            Observable.LOGITS,
        )
