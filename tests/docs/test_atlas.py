"""The atlas: up to date, complete, and right about the sizes of well-known models."""

import json
from functools import cache

import pytest
from scripts import build_atlas
from scripts.doc_blocks import ROOT

from fiberscope.checkpoints.architecture.registry import MODEL_TYPES, architecture

FOLDER = ROOT / "docs/atlas"

TOTALS = {
    # Parameter totals of the models' pages and papers, tied tables once.
    "gpt2-small.json": 124_439_808,
    "gpt2-medium.json": 354_823_168,
    "gpt2-large.json": 774_030_080,
    "gpt2-xl.json": 1_557_611_200,
    "opt-125m.json": 125_239_296,
    "opt-1.3b.json": 1_315_758_080,
    "pythia-70m.json": 70_426_624,
    "pythia-410m.json": 405_334_016,
    "pythia-1.4b.json": 1_414_647_808,
    "pythia-6.9b.json": 6_857_302_016,
    "pythia-12b.json": 11_846_072_320,
    "gpt-neox-20b.json": 20_554_567_680,
    "phi-1.5.json": 1_418_270_720,
    "phi-2.json": 2_779_683_840,
    "llama-2-7b.json": 6_738_415_616,
    "llama-2-70b.json": 68_976_648_192,
    "llama-3-8b.json": 8_030_261_248,
    "llama-3-70b.json": 70_553_706_496,
    "llama-3.1-8b.json": 8_030_261_248,
    "tinyllama-1.1b.json": 1_100_048_384,
    "smollm2-135m.json": 134_515_008,
    "smollm2-1.7b.json": 1_711_376_384,
    "mistral-7b-v0.1.json": 7_241_732_096,
    "mistral-7b-v0.3.json": 7_248_023_552,
    "qwen2-0.5b.json": 494_032_768,
    "qwen2-7b.json": 7_615_616_512,
    "qwen2.5-7b.json": 7_615_616_512,
    "qwen3-8b.json": 8_190_735_360,
    "qwen3-32b.json": 32_762_123_264,
    "gemma-2b.json": 2_506_172_416,
    "gemma-7b.json": 8_537_680_896,
    "bert-base.json": 109_514_298,
    "bert-large.json": 335_174_458,
    "minilm-l6.json": 22_713_216,
    "roberta-base.json": 124_697_433,
    "roberta-large.json": 355_412_057,
    "distilbert-base.json": 66_985_530,
    "vit-b-16.json": 86_567_656,
    "vit-l-16.json": 304_326_632,
    "t5-small.json": 60_506_624,
    "t5-base.json": 222_903_552,
    "t5-v1.1-base.json": 247_577_856,
    "flan-t5-xl.json": 2_849_757_184,
}
ROUNDED = {
    # Only a rounded total is published: in millions.
    "opt-6.7b.json": 6_700,
    "opt-66b.json": 66_000,
    "qwen3-0.6b.json": 600,
}


@cache
def index():
    return json.loads((FOLDER / "index.json").read_text())["models"]


def config_of(name):
    return json.loads((FOLDER / "configs" / name).read_text())


def test_page_is_up_to_date():
    assert build_atlas.PAGE.read_text() == build_atlas.page(), "run: make docs"


def test_index_and_folder_agree():
    listed = [model["config"] for model in index()]
    assert sorted(listed) == sorted(path.name for path in (FOLDER / "configs").iterdir())
    assert len(set(listed)) == len(listed) >= 30
    for model in index():
        assert model["name"]
        assert model["hub"].count("/") == 1
        assert model["shape_from"]


def test_every_architecture_occurs():
    assert {config_of(model["config"])["model_type"] for model in index()} == set(MODEL_TYPES)


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_the_published_ones(name):
    assert architecture(config_of(name)).parameters == TOTALS[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_totals(name):
    assert architecture(config_of(name)).parameters == pytest.approx(1e6 * ROUNDED[name], rel=0.01)


def test_every_model_has_a_published_total():
    assert {*TOTALS, *ROUNDED} == {model["config"] for model in index()}


def test_second_route_agrees_at_full_size():
    for entry in build_atlas.entries():
        assert entry.found.identified == entry.found.effective, entry.name


def test_counts_by_hand():
    found = {entry.config: entry.found.undetermined for entry in build_atlas.entries()}
    d, layers, groups, r, f = 4096, 32, 8, 128, 14336
    rotation, gains = d * (d - 1) // 2, (2 * layers + 1) * d
    heads = layers * groups * (r + r * r)
    assert found["llama-3-8b.json"] == rotation + gains + heads + layers * f
    # Grouped and ungrouped models differ in the number of key/value groups alone.
    assert found["mistral-7b-v0.1.json"] == found["llama-3-8b.json"]
    # Qwen3-0.6B, tied: products of gains on rotary planes, values, gains of all but the final norm.
    d, layers, groups, r, f = 1024, 28, 8, 128, 3072
    assert found["qwen3-0.6b.json"] == layers * (r // 2 + groups * r * r + 2 * d + f)
    # GPT-2 small, tied: heads; key and value biases; two norms; reader rows; writes along 1.
    d, layers, heads, r, f = 768, 12, 12, 64, 3072
    by_layer = 2 * heads * r * r + 2 * d + 4 * d + (3 * d + f) + (d + 1 + f + 1)
    assert found["gpt2-small.json"] == layers * by_layer + 1024


@pytest.mark.torch
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_totals_by_the_class(kind):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.checkpoints.architecture.published import published_model

    config = next(c for m in index() if (c := config_of(m["config"]))["model_type"] == kind)
    model = published_model(config, meta=True)
    assert sum(p.numel() for p in model.parameters()) == architecture(config).parameters
