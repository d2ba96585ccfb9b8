from __future__ import annotations

from typing import Any

import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.checkpoints.ledger.rules import (
    constants,
    discrete,
    heads,
    mlp,
    norms,
    outputs,
    stream,
)
from fiberscope.report.mechanisms import CATALOGUE
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name

RULES = (constants, discrete, heads, mlp, norms, outputs, stream)


def test_every_rule_is_in_the_catalogue_and_nothing_else() -> None:
    named = {
        value
        for module in RULES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert set(CATALOGUE) == named


@pytest.mark.parametrize("name", CATALOGUE)
def test_entries_are_short_sentences_with_a_source(name: str) -> None:
    entry = CATALOGUE[name]
    assert entry.plain.endswith(".") and entry.plain.count(". ") == 0
    assert len(entry.plain) <= 90
    assert "\n" not in entry.mathematics and len(entry.mathematics) <= 140
    assert entry.source
    text = entry.plain + entry.mathematics + entry.source
    assert text.isascii()


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_all_classes_speak_of_known_mechanisms(config: dict[str, Any]) -> None:
    laid_out = architecture(config)
    for observable in Observable:
        if laid_out.head is None and observable is not Observable.HIDDEN:
            continue
        assert {m.name for m in ledger(laid_out, observable).mechanisms()} <= set(CATALOGUE)
