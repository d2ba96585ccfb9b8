"""Which observable a checkpoint is opened with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.opening import open_model
from tests.checkpoints.ledger import toys


@pytest.mark.parametrize(
    ("config", "plain", "with_head"),
    [
        (toys.bert(cls="BertForMaskedLM"), Observable.HIDDEN, Observable.LOGITS),
        (toys.vit("ViTForImageClassification"), Observable.HIDDEN, Observable.LOGITS),
        (toys.bert(), Observable.HIDDEN, Observable.HIDDEN),
        (toys.gpt2(), Observable.LOGITS, Observable.LOGITS),
    ],
)
def test_heads_are_not_lost_where_weights_are_written(
    tmp_path: Path, config: dict[str, object], plain: Observable, with_head: Observable
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "config.json"
    assert open_model(path).observable is plain
    assert open_model(path, prefer_head=True).observable is with_head
    assert open_model(path, "hidden", prefer_head=True).observable is Observable.HIDDEN
