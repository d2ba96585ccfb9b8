"""Matching stored names: what other releases write, and every way a file can disagree."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fiberscope.checkpoints.architecture.matching import match
from fiberscope.checkpoints.architecture.registry import CLASSES, architecture
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys


def laid_out(base, name=None, **keys):
    config = {**base, **keys}
    return architecture(config if name is None else {**config, "architectures": [name]})


def stored(arch, **renamed):
    return {name: SimpleNamespace(shape=shape) for name, shape in arch.tensors.items()}


def rename(tensors, *pairs):
    result = {}
    for name, info in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        result[name] = info
    return result


def refusal(arch, tensors, **options) -> str:
    with pytest.raises(InputError) as caught:
        match(arch, tensors, "weights.safetensors", **options)
    message = str(caught.value)
    assert message.startswith("weights.safetensors: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", CLASSES)
def test_exact_names(name):
    arch = architecture({"architectures": [name]})
    matching = match(arch, stored(arch), "file")
    assert matching.architecture is arch
    assert matching.stored == {tensor: tensor for tensor in arch.tensors}
    assert (matching.copies, matching.ignored, matching.notes) == ((), (), ())


@pytest.mark.parametrize(
    ("base", "name", "prefix"),
    [
        (toys.GPT2, "GPT2LMHeadModel", "transformer."),
        (toys.LLAMA, "LlamaForCausalLM", "model."),
        (toys.OPT, "OPTForCausalLM", "model."),
        (toys.NEOX, "GPTNeoXForCausalLM", "gpt_neox."),
        (toys.PHI, "PhiForCausalLM", "model."),
        (toys.BERT, "BertForMaskedLM", "bert."),
        (toys.ROBERTA, "RobertaForMaskedLM", "roberta."),
        (toys.DISTILBERT, "DistilBertForMaskedLM", "distilbert."),
        (toys.VIT, "ViTForImageClassification", "vit."),
    ],
)
def test_the_prefix_may_be_there_or_not(base, name, prefix):
    arch = laid_out(base, name)
    bare = {key.removeprefix(prefix): info for key, info in stored(arch).items()}
    assert match(arch, bare, "file").stored == {
        tensor: tensor.removeprefix(prefix) for tensor in arch.tensors
    }
    base_arch = laid_out(base)
    prefixed = {prefix + key: info for key, info in stored(base_arch).items()}
    assert match(base_arch, prefixed, "file").stored == {
        tensor: prefix + tensor for tensor in base_arch.tensors
    }


def test_names_of_other_releases():
    bert = laid_out(toys.BERT)
    old = rename(
        stored(bert), ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")
    )
    found = match(bert, old, "file").stored
    assert found["embeddings.LayerNorm.weight"] == "embeddings.LayerNorm.gamma"
    assert found["encoder.layer.1.output.LayerNorm.bias"] == "encoder.layer.1.output.LayerNorm.beta"

    neox = laid_out(toys.NEOX, "GPTNeoXForCausalLM")
    found = match(neox, rename(stored(neox), ("lm_head", "embed_out")), "file").stored
    assert found["lm_head.weight"] == "embed_out.weight"

    vit = laid_out(toys.VIT, "ViTForImageClassification")
    old = rename(
        stored(vit),
        ("vit.layers", "vit.encoder.layer"),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    )
    found = match(vit, old, "file").stored
    assert found["vit.layers.1.mlp.fc2.bias"] == "vit.encoder.layer.1.output.dense.bias"
    assert (
        found["vit.layers.0.attention.o_proj.weight"]
        == "vit.encoder.layer.0.attention.output.dense.weight"
    )


@pytest.mark.parametrize(
    ("base", "name", "buffer"),
    [
        (toys.GPT2, "GPT2LMHeadModel", "transformer.h.0.attn.bias"),
        (toys.GPT2, "GPT2LMHeadModel", "transformer.h.0.attn.masked_bias"),
        (toys.LLAMA, "LlamaForCausalLM", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        (toys.NEOX, "GPTNeoXForCausalLM", "gpt_neox.layers.0.attention.bias"),
        (toys.NEOX, "GPTNeoXForCausalLM", "gpt_neox.layers.0.attention.masked_bias"),
        (toys.NEOX, "GPTNeoXForCausalLM", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        (toys.BERT, "BertModel", "embeddings.position_ids"),
        (toys.ROBERTA, "RobertaForMaskedLM", "roberta.embeddings.position_ids"),
        (
            toys.T5,
            "T5ForConditionalGeneration",
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ),
    ],
)
def test_known_buffers_are_ignored(base, name, buffer):
    arch = laid_out(base, name)
    tensors = {**stored(arch), buffer: SimpleNamespace(shape=(3,))}
    assert match(arch, tensors, "file").ignored == (buffer,)


def test_tied_tensors_stored_twice_are_listed_for_comparison():
    arch = laid_out(toys.BERT, "BertForMaskedLM")
    tensors = stored(arch)
    tensors["cls.predictions.decoder.weight"] = SimpleNamespace(shape=(11, 6))
    tensors["cls.predictions.decoder.bias"] = SimpleNamespace(shape=(11,))
    matching = match(arch, tensors, "file")
    assert matching.copies == (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    )
    assert len(matching.notes) == 2


def test_a_tied_tensor_may_be_stored_under_the_name_of_its_copy():
    arch = laid_out(toys.GPT2, "GPT2LMHeadModel")
    tensors = rename(stored(arch), ("transformer.wte.weight", "lm_head.weight"))
    matching = match(arch, tensors, "file")
    assert matching.stored["transformer.wte.weight"] == "lm_head.weight"
    assert matching.copies == ()
    assert "lm_head.weight" in matching.notes[0]


def test_the_alias_table_of_the_file():
    arch = laid_out(toys.GPT2, "GPT2LMHeadModel")
    tensors = stored(arch)
    aliases = {"lm_head.weight": "transformer.wte.weight"}
    matching = match(arch, tensors, "file", aliases=aliases)
    assert matching.stored == {name: name for name in arch.tensors}
    assert matching.copies == ()
    # The table points the other way round.
    swapped = rename(tensors, ("transformer.wte.weight", "lm_head.weight"))
    matching = match(arch, swapped, "file", aliases={"transformer.wte.weight": "lm_head.weight"})
    assert matching.stored["transformer.wte.weight"] == "lm_head.weight"
    # The file ties what the configuration says is separate.
    untied = laid_out(toys.GPT2, "GPT2LMHeadModel", tie_word_embeddings=False)
    assert "tie_word_embeddings" in refusal(untied, tensors, aliases=aliases)


def test_separate_head_missing_although_the_configuration_unties():
    arch = laid_out(toys.LLAMA, "LlamaForCausalLM")
    tensors = stored(arch)
    del tensors["lm_head.weight"]
    message = refusal(arch, tensors)
    assert "'lm_head.weight'" in message
    assert "tie_word_embeddings" in message


def test_a_missing_tensor_is_named():
    arch = laid_out(toys.LLAMA, "LlamaForCausalLM")
    tensors = stored(arch)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    assert "'model.layers.1.mlp.up_proj.weight'" in refusal(arch, tensors)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("BertForMaskedLM", "bert.pooler.dense.weight"),
        ("BertModel", "cls.predictions.bias"),
        ("BertModel", "encoder.layer.2.output.dense.weight"),
        ("BertModel", "adapter.weight"),
    ],
)
def test_an_unknown_tensor_is_named(name, extra):
    arch = laid_out(toys.BERT, name)
    message = refusal(arch, {**stored(arch), extra: SimpleNamespace(shape=(2,))})
    assert repr(extra) in message
    assert "architectures" in message


def test_two_names_for_one_tensor():
    arch = laid_out(toys.BERT)
    tensors = stored(arch)
    tensors["embeddings.LayerNorm.gamma"] = SimpleNamespace(shape=(6,))
    message = refusal(arch, tensors)
    assert "'embeddings.LayerNorm.gamma'" in message
    assert "'embeddings.LayerNorm.weight'" in message


def test_a_contradicting_shape_is_named_with_its_keys():
    arch = laid_out(toys.LLAMA, "LlamaForCausalLM")
    tensors = stored(arch)
    tensors["model.layers.0.mlp.up_proj.weight"] = SimpleNamespace(shape=(9, 8))
    message = refusal(arch, tensors)
    for part in ("'model.layers.0.mlp.up_proj.weight'", "(9, 8)", "(7, 8)", "intermediate_size 7"):
        assert part in message
    assert "hidden_size" not in message


def test_a_copy_of_another_shape():
    arch = laid_out(toys.GPT2, "GPT2LMHeadModel")
    tensors = {**stored(arch), "lm_head.weight": SimpleNamespace(shape=(12, 6))}
    message = refusal(arch, tensors)
    assert "'lm_head.weight'" in message
    assert "vocab_size 11" in message


@pytest.mark.parametrize("base", [toys.BERT, toys.ROBERTA, toys.VIT])
def test_a_file_without_the_pooler(base):
    arch = laid_out(base)
    tensors = {k: v for k, v in stored(arch).items() if "pooler" not in k}
    matching = match(arch, tensors, "file")
    assert matching.architecture.parameters == arch.parameters - 42
    assert not any("pooler" in part.label for part in matching.architecture.unread)
    assert "pooler" in matching.notes[0]
    half = {**tensors, "pooler.dense.bias": SimpleNamespace(shape=(6,))}
    assert "'pooler.dense.weight'" in refusal(arch, half)


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        ("h.0.attn.c_attn.weight", "int32"),
        ("h.1.mlp.c_fc.weight", "uint8"),
        ("ln_f.weight", "bool"),
        ("wte.weight", "float8_e4m3fn"),
    ],
)
def test_parameters_are_stored_in_floating_point(tensor, dtype):
    arch = laid_out(toys.GPT2)
    tensors = stored(arch)
    tensors[tensor] = SimpleNamespace(shape=tensors[tensor].shape, dtype=dtype)
    message = refusal(arch, tensors)
    for part in (repr(tensor), dtype, "convert the file to floating point"):
        assert part in message


def test_buffers_may_be_integers_and_blocks_are_dequantised():
    arch = laid_out(toys.GPT2)
    tensors = {
        name: SimpleNamespace(shape=shape, dtype=dtype)
        for (name, shape), dtype in zip(
            arch.tensors.items(), ["Q4_1", "float16", "bfloat16", "IQ4_NL"] * 20, strict=False
        )
    }
    tensors["h.0.attn.bias"] = SimpleNamespace(shape=(1, 1, 5, 5), dtype="bool")
    assert match(arch, tensors, "file").ignored == ("h.0.attn.bias",)


SIBLING_HEADS = [
    (toys.BERT, "BertForMaskedLM", "BertForPreTraining", ["pooler", "seq_relationship"]),
    (toys.BERT, "BertForMaskedLM", "BertModel", ["pooler"]),
    (toys.BERT, "BertModel", "BertForPreTraining", ["cls."]),
    (toys.ROBERTA, "RobertaModel", "RobertaForMaskedLM", ["lm_head."]),
    (toys.DISTILBERT, "DistilBertModel", "DistilBertForMaskedLM", ["vocab_"]),
    (toys.VIT, "ViTModel", "ViTForImageClassification", ["classifier."]),
    (toys.LLAMA, "LlamaModel", "LlamaForCausalLM", ["lm_head."]),
    (toys.NEOX, "GPTNeoXModel", "GPTNeoXForCausalLM", ["lm_head."]),
    (toys.T5, "T5EncoderModel", "T5ForConditionalGeneration", ["decoder."]),
]


@pytest.mark.parametrize(("base", "name", "file_class", "parts"), SIBLING_HEADS)
def test_tensors_of_another_class_of_the_model_type_are_passed_over(base, name, file_class, parts):
    arch, other = laid_out(base, name), laid_out(base, file_class)
    prefix = other.prefix if file_class.endswith("Model") else ""
    file = {**stored(arch), **{prefix + key: info for key, info in stored(other).items()}}
    both = {
        key: info
        for key, info in file.items()
        if key in arch.tensors or key.removeprefix(arch.prefix) not in arch.tensors
    }
    extra = sorted(key for key in both if any(part in key for part in parts))
    matching = match(arch, both, "file")
    assert sorted(matching.ignored) == extra
    assert len(extra) > 0
    assert matching.architecture == arch
    assert all(key in matching.notes[0] for key in matching.ignored[:12])


def test_a_tied_head_beside_the_base_model_is_passed_over():
    arch = laid_out(toys.GPT2)
    tensors = {**stored(arch), "lm_head.weight": SimpleNamespace(shape=(11, 6))}
    assert match(arch, tensors, "file").ignored == ("lm_head.weight",)


def test_one_stranger_among_the_tensors_of_siblings_is_named():
    arch = laid_out(toys.BERT, "BertForMaskedLM")
    tensors = {**stored(arch), "bert.pooler.dense.bias": SimpleNamespace(shape=(6,))}
    assert match(arch, tensors, "file").ignored == ("bert.pooler.dense.bias",)
    tensors["lora.weight"] = SimpleNamespace(shape=(6,))
    assert "'lora.weight'" in refusal(arch, tensors)
