"""Reports of real trained weights, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.report.inspection_report import InspectionReport, inspect
from tests.checkpoints.real_weights import (
    MINILM_PARAMETERS,
    SMOLLM2_PARAMETERS,
    minilm_directory,
    smollm2_gguf,
)
from tests.report.test_inspect_html import check as check_html
from tests.report.test_inspect_json import check as check_json
from tests.report.test_inspect_terminal import check as check_text


@pytest.fixture(scope="module")
def minilm() -> InspectionReport:
    return inspect(minilm_directory())


@pytest.fixture(scope="module")
def smollm2() -> InspectionReport:
    return inspect(smollm2_gguf())


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_all_forms(name: str, request: pytest.FixtureRequest) -> None:
    report: InspectionReport = request.getfixturevalue(name)
    check_json(report.to_dict())
    check_html(report.to_html())
    for width in (100, 80):
        check_text(report.to_text(width), width)


def test_minilm(minilm: InspectionReport) -> None:
    data = minilm.to_dict()
    # d 384, L 6, H 12, r 32, f 1536, pooler unread, tables of 30522 + 512 + 2 rows.
    pooler, directions = 384**2 + 384, 6 * (3 * 384 + 1536)
    ones = 30522 + 512 + 2 + 6 * (384 + 1 + 1536 + 1)
    bases, biases = 2 * 6 * 12 * 32**2, 2 * 6 * 384
    norms, shift, overlap = 12 * 384, 2 * 384, 2
    expected = pooler + directions + ones + bases + biases + norms + shift - overlap
    assert data["parameters"] == MINILM_PARAMETERS
    assert data["undetermined"] == expected
    # Training leaves the key bias near zero: nothing ever moved it.
    for entry in data["leftovers"]:
        if "key_bias_rms" in entry["statistics"]:
            assert (
                entry["statistics"]["key_bias_rms"] < 0.02 * entry["statistics"]["query_bias_rms"]
            )


def test_vanishing_gains_of_minilm_are_in_the_file(minilm: InspectionReport) -> None:
    weights = open_checkpoint(Path(minilm_directory())).weights
    assert weights is not None
    gains = weights.read_float64("encoder.layer.5.output.LayerNorm.weight")
    small = [int(k) for k in (abs(gains) < 1e-7).nonzero()[0]]
    assert small
    (found,) = [e for e in minilm.to_dict()["exceptional"] if e["kind"] == "vanishing gains"]
    assert found["statistics"]["features"] == small


def test_smollm2(smollm2: InspectionReport) -> None:
    data = smollm2.to_dict()
    # d 576, L 30, G 3, r 64, f 1536, tied.
    assert data["parameters"] == SMOLLM2_PARAMETERS
    assert data["undetermined"] == 30 * (3 * 64 + 3 * 64**2 + 2 * 576 + 1536)
    assert {e["kind"] for e in data["exceptional"]} == {"equal final gains", "identical rows"}
    assert len(json.dumps(data)) < 100_000


def test_equal_gains_of_smollm2_counted_from_the_file(smollm2: InspectionReport) -> None:
    weights = open_checkpoint(smollm2_gguf()).weights
    assert weights is not None
    gains = weights.read_float64("model.norm.weight")
    sizes = [int((gains == value).sum()) for value in set(gains.tolist())]
    (found,) = [e for e in smollm2.to_dict()["exceptional"] if e["kind"] == "equal final gains"]
    assert found["extra_dimension"] == sum(m * (m - 1) // 2 for m in sizes)
