"""Every class with twins: truly float64, a clear gap, a saturated rank."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from fiberscope.checkpoints.twins import (  # noqa: E402
    build_twin,
    float64_evaluation,
    saturation,
    spectrum,
    toy_config,
)
from fiberscope.checkpoints.twins.architectures import ARCHITECTURES  # noqa: E402

torch.set_num_threads(1)

GROUPED = {"num_attention_heads": 32, "num_key_value_heads": 8}
CLASSES = {
    "GPT2Model": ("gpt2", {}),
    "GPT2LMHeadModel": ("gpt2", {}),
    "OPTModel": ("opt", {}),
    "OPTForCausalLM": ("opt", {}),
    "GPTNeoXModel": ("gpt_neox", {"rotary_pct": 0.5}),
    "GPTNeoXForCausalLM": ("gpt_neox", {"rotary_pct": 0.5}),
    "PhiModel": ("phi", {}),
    "PhiForCausalLM": ("phi", {}),
    "LlamaModel": ("llama", GROUPED),
    "LlamaForCausalLM": ("llama", GROUPED),
    "MistralModel": ("mistral", {}),
    "MistralForCausalLM": ("mistral", {}),
    "Qwen2Model": ("qwen2", {}),
    "Qwen2ForCausalLM": ("qwen2", {}),
    "Qwen3Model": ("qwen3", {}),
    "Qwen3ForCausalLM": ("qwen3", {}),
    "GemmaModel": ("gemma", {}),
    "GemmaForCausalLM": ("gemma", {"num_key_value_heads": 1}),
    "BertModel": ("bert", {}),
    "BertForMaskedLM": ("bert", {}),
    "BertForPreTraining": ("bert", {}),
    "BertForSequenceClassification": ("bert", {}),
    "RobertaModel": ("roberta", {}),
    "RobertaForMaskedLM": ("roberta", {}),
    "RobertaForSequenceClassification": ("roberta", {}),
    "RobertaForMaskedLM padding 3": ("roberta", {"pad_token_id": 3}),
    "DistilBertModel": ("distilbert", {}),
    "DistilBertForMaskedLM": ("distilbert", {}),
    "ViTModel": ("vit", {}),
    "ViTForImageClassification": ("vit", {"id2label": {str(i): str(i) for i in range(1000)}}),
    "T5Model": ("t5", {}),
    "T5EncoderModel": ("t5", {}),
    "T5ForConditionalGeneration": ("t5", {"feed_forward_proj": "relu"}),
    "T5ForConditionalGeneration v1.1": (
        "t5",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}
HEADED = [name for name in CLASSES if not name.endswith("Model") or "LMHead" in name]


def small(name):
    model_type, flags = CLASSES[name]
    config = {"model_type": model_type, "architectures": [name.split()[0]], **flags}
    toy = toy_config(config, layers=1)
    # Smaller than a count allows (the vocabulary is short of its conditions), but quick.
    if "head_dim" in toy or toy.get("num_key_value_heads") == 2:
        toy["head_dim"] = 2
    names = ARCHITECTURES[model_type]
    toy.update({names.width: 4, names.inner: 5})
    if model_type == "t5":
        toy["d_kv"] = 2
    if model_type != "vit":
        toy["vocab_size"] = 10
    return toy


def main_observable(name):
    return "logits" if name in HEADED else "hidden"


class NarrowFloats(TorchDispatchMode):
    """Counts the operations that read or return a floating tensor narrower than float64."""

    def __init__(self):
        super().__init__()
        self.operations = 0
        self.narrow = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in (
                torch.float32,
                torch.float16,
                torch.bfloat16,
            ):
                self.narrow.append(str(func))
        return result


@pytest.mark.parametrize("name", CLASSES)
def test_no_narrow_float_appears_in_the_forward_pass(name):
    twin = build_twin(small(name), main_observable(name), 0)
    with NarrowFloats() as seen:
        outputs = twin.observe(twin.parameters)
    assert seen.operations > 20
    assert seen.narrow == []
    assert outputs.dtype == np.float64
    assert np.isfinite(outputs).all()


def test_the_counter_sees_float32_in_a_class_evaluated_as_published():
    twin = build_twin(small("LlamaForCausalLM"), "logits", 0)
    ids = torch.from_numpy(twin.bank["input_ids"])
    model = twin._module.model
    with NarrowFloats() as seen, torch.no_grad():
        published = model(input_ids=ids).logits.numpy()
    assert seen.narrow
    # And it matters: the float32 inside costs nine digits.
    truth = twin.observe(twin.parameters).reshape(published.shape)
    assert 1e-9 < np.abs(published - truth).max() < 1e-3


def test_rotary_frequencies_are_computed_in_float64():
    twin = build_twin({**small("LlamaForCausalLM"), "rope_theta": 7.0}, "logits", 0)
    found = twin._module.model.model.rotary_emb.inv_freq.numpy()
    assert found.dtype == np.float64
    width = twin.parameters["model.layers.0.self_attn.q_proj.weight"].shape[0] // 4
    expected = 7.0 ** (-np.arange(0, width, 2) / width)
    assert np.abs(found / expected - 1).max() < 1e-15


def test_the_default_type_is_restored():
    before = torch.get_default_dtype()
    with float64_evaluation():
        assert torch.zeros(2).dtype == torch.float64
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2).float().dtype == torch.float64
        assert torch.zeros(2).to(torch.bfloat16).dtype == torch.float64
    assert torch.get_default_dtype() == before
    with pytest.raises(RuntimeError), float64_evaluation():
        torch.zeros(2).reshape(3)
    assert torch.get_default_dtype() == before
    assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", CLASSES)
def test_the_main_observable_has_a_gap_and_a_saturated_rank(name):
    config, observable = small(name), main_observable(name)
    found = spectrum(build_twin(config, observable, 1, epsilon=1e-2))
    assert found.gap > 1e4
    assert found.rank + found.nullity == found.parameters
    assert 0 < found.nullity < found.parameters
    shown = saturation(config, observable, 1, first=found)
    assert len(shown.nullities) >= 2
    assert shown.saturated, shown


@pytest.mark.parametrize("observable", ["probabilities", "hidden"])
@pytest.mark.parametrize("name", HEADED)
def test_the_other_observables_see_no_more_than_the_logits(name, observable):
    config = small(name)
    found = spectrum(build_twin(config, observable, 2, epsilon=1e-2))
    assert found.gap > 1e4
    if observable == "probabilities":  # a function of the logits
        logits = spectrum(build_twin(config, "logits", 2, epsilon=1e-2))
        assert logits.gap > 1e4
        assert found.nullity >= logits.nullity
