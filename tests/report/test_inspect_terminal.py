from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fiberscope.examples import example_path
from fiberscope.report.inspect_terminal import render
from fiberscope.report.inspection_report import inspect
from fiberscope.report.verification import TwinCheck
from tests.checkpoints.architecture import published_shapes as shapes
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors, report_of


def check(text: str, width: int) -> None:
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    assert "…" not in text and "\x1b" not in text


@pytest.mark.parametrize("width", [100, 80, 60])
@pytest.mark.parametrize("name", shapes.PARAMETERS)
def test_fits_the_width(name: str, width: int, tmp_path: Path) -> None:
    check(report_of(tmp_path, shapes.PARAMETERS[name][0]).to_text(width), width)


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_class(config: dict[str, Any], tmp_path: Path) -> None:
    report = report_of(tmp_path, config)
    text = report.to_text(100)
    check(text, 100)
    for mechanism in report.ledger.mechanisms():
        assert re.search(rf"\b{mechanism.dimension or ''}.*{re.escape(mechanism.name)}", text)


def test_headline_and_rows_for_gpt2_small(tmp_path: Path) -> None:
    text = " ".join(report_of(tmp_path, shapes.GPT2_SMALL).to_text(100).split())
    assert (
        "124,439,808 parameters; the logits determine 123,093,224 of them; 1,346,584 (1.08 %) have "
        "no effect on them." in text
    )
    assert "589,824 43.8 % query/key basis change layers 0-11" in text
    assert "9,216 0.684 % key bias" in text
    assert "No weights were given" in text


def test_hidden_state_is_singular(tmp_path: Path) -> None:
    text = " ".join(report_of(tmp_path, shapes.BERT_BASE).to_text(100).split())
    assert "the last hidden state determines 107,531,950 of them; 1,950,290" in text
    assert "-2 counted twice: embedding shift, residual write along 1" in text


def test_failing_conditions_come_first_and_are_said_above(tmp_path: Path) -> None:
    text = report_of(tmp_path, {**TINY_GPT2, "vocab_size": 5}).to_text(100)
    assert "determine at most" in text and "at least" in text
    assert "An upper bound" in text.split("What has no effect")[0]
    marks = re.findall(r"^(holds|FAILS) ", text, re.MULTILINE)
    assert marks == ["FAILS", "holds"]


def test_example() -> None:
    text = inspect(example_path()).to_text(100)
    check(text, 100)
    assert "Nothing: no rank-deficient" in text
    assert "key bias over query bias" in text
    assert "Condition numbers of head products" in text


def test_exceptional_weights(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_LLAMA)
    tensors["model.layers.0.mlp.down_proj.weight"][:, :3] = 0.0
    tensors["model.norm.weight"][2] = 0.0
    report = inspect(checkpoint(tmp_path / "m", TINY_LLAMA, tensors))
    text = " ".join(report.to_text(100).split())
    # A neuron that writes nothing hides up and gate rows of 8 inputs, less its own scaling.
    assert f"{3 * (8 + 8 - 1)} dead neurons (zero down column) layer 0 MLP, neurons 0, 1, 2" in text
    assert "not known zero gains final norm" in text
    assert "FAILS all norm gains are nonzero: 1 are zero" in text


def test_paths_do_not_break_the_markup(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "[bold]x[", TINY_GPT2, random_tensors(TINY_GPT2))
    assert "[bold]x[" in "".join(inspect(folder).to_text(100).split())


def test_colour_only_where_it_is_wanted(tmp_path: Path) -> None:
    report = report_of(tmp_path, TINY_GPT2)
    stream = io.StringIO()
    render(report, Console(file=stream, width=100, force_terminal=True, color_system="standard"))
    assert "\x1b[" in stream.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).split() == report.to_text(100).split()


def twin(**changes: Any) -> TwinCheck:
    made = TwinCheck(
        name="GPT2LMHeadModel",
        observable="logits",
        sizes={"n_embd": 6},
        parameters=439,
        predicted_parameters=439,
        predicted_exact=117,
        predicted_approximate=1,
        measured_exact=117,
        measured_approximate=1,
        gap=4.8e11,
        saturated=True,
        failing=(),
        seed=0,
        seconds=1.0,
    )
    return replace(made, **changes)


def test_a_disagreeing_twin_is_loud(tmp_path: Path) -> None:
    report = report_of(tmp_path, TINY_GPT2)
    agreeing = " ".join(replace(report, twin=twin()).to_text(100).split())
    assert "agrees: toy GPT2LMHeadModel with 439 parameters" in agreeing
    for change in ({"measured_exact": 118}, {"measured_approximate": 0}, {"saturated": False}):
        text = replace(report, twin=twin(**change)).to_text(100)
        assert "DISAGREES" in text
