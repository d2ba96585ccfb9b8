"""The twin check on the spot, with the published classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fiberscope.report import verification
from fiberscope.report.inspection_report import inspect
from fiberscope.report.verification import verify
from tests.checkpoints.architecture import published_shapes as shapes
from tests.report.reports import TINY_GPT2, checkpoint, random_tensors, report_of

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


# Small ones; the tests of the twins measure every class.
@pytest.mark.parametrize(
    ("config", "approximate"), [(shapes.BERT_BASE, 3), (shapes.OPT_125M, 1)], ids=["BERT", "OPT"]
)
def test_agrees(config: dict[str, Any], approximate: int, tmp_path: Path) -> None:
    check = verify(report_of(tmp_path, config).inspection)
    assert check.agrees
    assert check.measured_approximate == approximate
    assert check.failing == ()


def test_untied_weights_are_checked_untied(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    tensors["lm_head.weight"] = random_tensors(TINY_GPT2, seed=1)["transformer.wte.weight"]
    report = inspect(checkpoint(tmp_path / "m", TINY_GPT2, tensors))
    assert not report.ledger.architecture.tied
    check = verify(report.inspection)
    assert check.agrees
    sizes = dict(check.sizes)
    width, vocabulary = sizes["n_embd"], sizes["vocab_size"]
    tied = verify(report_of(tmp_path, TINY_GPT2).inspection)
    assert check.parameters - tied.parameters == int(str(width)) * int(str(vocabulary))


def test_a_wrong_rule_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = verification.ledger

    def forgetful(*arguments: Any) -> Any:
        from dataclasses import replace

        found = right(*arguments)
        kept = tuple(item for item in found.items if item.mechanism != "key bias")
        return replace(found, items=kept)

    monkeypatch.setattr(verification, "ledger", forgetful)
    check = verify(report_of(tmp_path, shapes.BERT_BASE).inspection)
    assert not check.agrees
    assert check.measured_exact - check.predicted_exact == 6  # one key bias of width 6 a layer
