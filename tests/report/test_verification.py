"""The twin check on the spot, with the published classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fiberscope.checkpoints import twins
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.report import verification
from fiberscope.report.inspection_report import inspect
from fiberscope.report.verification import verify
from tests.checkpoints.architecture import published_shapes as shapes
from tests.report.reports import TINY_GPT2, checkpoint, random_tensors, report_of

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def measured() -> Iterator[list[twins.TwinMeasurement]]:
    """Measurements made by the tests of this file, so that one of them can be used again."""
    kept: list[twins.TwinMeasurement] = []

    def measure_and_keep(*arguments: Any) -> twins.TwinMeasurement:
        kept.append(real(*arguments))
        return kept[-1]

    real = twins.measure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twins, "measure", measure_and_keep)
        yield kept


def test_agrees_and_catches_a_wrong_rule(
    measured: list[twins.TwinMeasurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The smallest class; the tests of the twins measure all of them.
    inspection = report_of(tmp_path, shapes.BERT_BASE).inspection
    check = verify(inspection)
    assert check.agrees
    assert check.measured_approximate == 3  # one for each norm of one layer and the embedding's
    assert check.failing == ()

    right = verification.ledger

    def forgetful(*arguments: Any) -> Any:
        found = right(*arguments)
        kept = tuple(item for item in found.items if item.mechanism != "key bias")
        return replace(found, items=kept)

    monkeypatch.setattr(verification, "ledger", forgetful)
    monkeypatch.setattr(twins, "measure", lambda *_: measured[-1])
    wrong = verify(inspection)
    assert not wrong.agrees
    assert wrong.measured_exact - wrong.predicted_exact == 6  # one key bias of width 6 a layer


def test_untied_weights_are_checked_untied(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    tensors["lm_head.weight"] = random_tensors(TINY_GPT2, seed=1)["transformer.wte.weight"]
    report = inspect(checkpoint(tmp_path / "m", TINY_GPT2, tensors))
    assert not report.ledger.architecture.tied
    check = verify(report.inspection)
    assert check.agrees
    sizes = {name: int(str(value)) for name, value in check.sizes.items()}
    tied = ledger(architecture({**TINY_GPT2, **sizes, "n_inner": 7}))
    assert check.parameters - tied.parameters == sizes["n_embd"] * sizes["vocab_size"]
