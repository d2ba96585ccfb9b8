from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.inspection import HeadConditioning
from fiberscope.examples import example_path
from fiberscope.report.charts import conditioning_map
from fiberscope.report.inspection_report import inspect
from tests.checkpoints.architecture import published_shapes as shapes
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors, report_of

VOID = {"meta", "br", "hr", "img", "input", "link"}
CLOSED = {"rect", "line"}


class Checker(HTMLParser):
    """Every element is closed in order; nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe", "object", "image", "use")
        for name, value in attrs:
            assert name not in ("href", "src", "xlink:href", "srcset", "data")
            assert not name.startswith("on")
            assert value is not None
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in CLOSED
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def check(page: str) -> Checker:
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|url\(|@import|//[a-z]", page)
    parser = Checker()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    numbers = re.findall(r' (?:x|y|width|height|x1|x2|y1|y2)="([^"]*)"', page)
    assert all(np.isfinite(float(number)) for number in numbers)
    assert all(float(n) >= 0 for n in re.findall(r' (?:width|height)="([^"]*)"', page))
    return parser


@pytest.mark.parametrize("name", shapes.PARAMETERS)
def test_full_size(name: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, shapes.PARAMETERS[name][0])
    text = check(report.to_html()).text
    assert f"{report.undetermined:,}" in text
    assert report.to_dict()["config_sha256"] in text


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_class(config: dict[str, Any], tmp_path: Path) -> None:
    check(report_of(tmp_path, config).to_html())


@pytest.mark.parametrize("layers", [1, 80])
def test_one_layer_and_eighty(layers: int, tmp_path: Path) -> None:
    config = {**shapes.LLAMA_3_8B, "num_hidden_layers": layers, "num_attention_heads": 64}
    page = report_of(tmp_path, config).to_html()
    check(page)
    # One bar a layer, four mechanisms in each.
    tips = re.findall(r"<title>layer (\d+): ([^<]*?) [\d,]+</title>", page)
    assert len(tips) == 4 * layers
    assert {int(layer) for layer, _ in tips} == set(range(layers))


def test_bars_add_up_to_the_mechanisms(tmp_path: Path) -> None:
    report = report_of(tmp_path, shapes.T5_SMALL)
    tips = re.findall(r"<title>[^<:]*: ([^<]*) ([\d,]+)</title>", report.to_html())
    totals: dict[str, int] = {}
    for name, size in tips:
        totals[name] = totals.get(name, 0) + int(size.replace(",", ""))
    assert totals == {e["name"]: e["dimension"] for e in report.to_dict()["mechanisms"]}


def test_example_has_both_pictures_and_all_parts() -> None:
    parser = check(inspect(example_path()).to_html())
    assert parser.seen["svg"] == 4  # bars, two maps, one colour scale
    for title in (
        "What has no effect on the logits",
        "Nearly without effect",
        "Renamings and signs",
        "What is exceptional about these weights",
        "Condition numbers of head products",
        "What training left where nothing is determined",
        "Conditions",
        "Evidence",
    ):
        assert title in parser.text
    assert "undetermined parameters" in parser.text
    assert "largest over smallest singular value" in parser.text


def test_map_marks_infinite_heads_and_has_a_cell_for_each() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for layer in range(80):
        values = 10 ** rng.uniform(0, 5, 64)
        values[layer % 64] = np.inf
        finite = tuple(10 ** rng.uniform(0, 1, 64))
        rows.append(HeadConditioning(f"layer {layer} attention", layer, tuple(values), finite))
    drawn = conditioning_map(rows)
    assert drawn.count('class="cell"') == 2 * 80 * 64
    assert drawn.count(": infinite</title>") == 80
    assert ">infinite</text>" in drawn


def test_map_of_nothing_finite_and_without_query_key() -> None:
    drawn = conditioning_map([HeadConditioning("layer 0 attention", 0, None, (np.inf,))])
    assert drawn.count('class="cell"') == 1
    assert "query/key" not in drawn


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "<script>alert(1)<&'\"", TINY_GPT2, random_tensors(TINY_GPT2))
    parser = check(inspect(folder).to_html())
    assert "<script>alert(1)<&'\"" in parser.text


def test_failing_condition_and_findings(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    tensors["model.layers.1.input_layernorm.weight"][0] = 0.0
    parser = check(inspect(checkpoint(tmp_path / "m", TINY_LLAMA, tensors)).to_html())
    assert "at most" in parser.text
    assert "FAILS" in parser.text
    assert "zero gains" in parser.text


def test_notebook_shows_the_same_without_a_page_around(tmp_path: Path) -> None:
    report = report_of(tmp_path, TINY_GPT2)
    shown = report._repr_html_()
    assert shown in report.to_html()
    assert "<html" not in shown and "<body" not in shown
    # Styles of a fragment must not leak into the notebook around it.
    style = shown.split("<style>")[1].split("</style>")[0]
    selectors = re.findall(r"(?:^|\})\s*([^{}@]+)\{", re.sub(r"@media[^{]*\{", "", style))
    assert all(s.strip().startswith(".fiberscope") for rule in selectors for s in rule.split(","))


def test_nothing_undetermined_is_said_in_words(tmp_path: Path) -> None:
    report = report_of(tmp_path, TINY_GPT2)
    empty = replace(report.ledger, items=(), overlaps=())
    page = replace(report, inspection=replace(report.inspection, ledger=empty)).to_html()
    assert "Nothing is undetermined." in check(page).text
