from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiberscope.examples import example_path
from fiberscope.report.inspection_report import inspect
from tests.checkpoints.architecture import published_shapes as shapes
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors, report_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "json-inspect.md"
KEYS = """schema version path config_sha256 architecture observable parameters identified
    identified_is undetermined share mechanisms overlaps approximate discrete conditions weights
    exceptional slow_rotary_planes conditioning leftovers evidence notes""".split()


def through_json(data: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    assert loaded == data
    return loaded


def check(data: dict[str, Any]) -> None:
    data = through_json(data)
    assert list(data) == KEYS
    assert data["schema"] == "fiberscope/inspect/1"
    assert data["identified"] + data["undetermined"] == data["parameters"]
    assert data["share"] == data["undetermined"] / data["parameters"]
    exact = sum(entry["dimension"] for entry in data["mechanisms"])
    assert exact - sum(entry["dimension"] for entry in data["overlaps"]) == data["undetermined"]
    for entry in data["mechanisms"]:
        assert {"name", "where", "kind", "dimension"} <= entry.keys()
        assert entry["kind"] == "exact"
        assert entry["dimension"] > 0
        assert sum(place["dimension"] for place in entry["per_layer"]) == entry["dimension"]
    for entry in data["approximate"]:
        assert entry["kind"] == "approximate"
        assert entry["epsilon"] > 0
    for entry in data["discrete"]:
        assert entry["log10_order"] > 0
    for entry in data["overlaps"]:
        assert len(entry["between"]) == 2
        assert entry["dimension"] > 0
    holds = all(condition["holds"] for condition in data["conditions"])
    assert data["identified_is"] == ("exact" if holds else "upper bound")
    lines = {entry["line"] for entry in data["evidence"]}
    names = {e["name"] for key in ("mechanisms", "approximate", "discrete") for e in data[key]}
    assert names | {"second route"} == lines
    for entry in data["evidence"]:
        assert entry["claim"] and entry["source"]
        assert entry["status"] in ("theorem", "numerical")


@pytest.mark.parametrize("name", shapes.PARAMETERS)
def test_invariants_full_size(name: str, tmp_path: Path) -> None:
    check(report_of(tmp_path, shapes.PARAMETERS[name][0]).to_dict())


@pytest.mark.parametrize("observable", ["logits", "probabilities", "hidden"])
@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_invariants_of_every_class(config: dict[str, Any], observable: str, tmp_path: Path) -> None:
    name = config["architectures"][0]
    headless = name.endswith(("Model", "EncoderModel"))
    if headless and observable != "hidden":
        return
    check(report_of(tmp_path, config, observable).to_dict())


def test_weights(tmp_path: Path) -> None:
    report = inspect(checkpoint(tmp_path / "model", TINY_LLAMA, random_tensors(TINY_LLAMA)))
    data = report.to_dict()
    check(data)
    assert data["weights"]["formats"] == ["float32"]
    assert [entry["layer"] for entry in data["conditioning"]] == [0, 1]
    assert all(len(entry["query_key"]) == 4 for entry in data["conditioning"])
    breaking = data["approximate"][0]["breaking"]
    assert 0 < breaking["size"] < 1


def test_infinite_numbers_become_strings(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    tensors["transformer.h.1.attn.c_proj.weight"][:4] = 0.0
    data = through_json(inspect(checkpoint(tmp_path / "m", TINY_GPT2, tensors)).to_dict())
    assert data["conditioning"][1]["value_output"][0] == "inf"
    assert math.isfinite(data["conditioning"][1]["value_output"][1])
    kinds = {entry["kind"] for entry in data["exceptional"]}
    assert {"silent heads", "rank-deficient value/output product"} <= kinds


def test_a_failing_condition_makes_an_upper_bound(tmp_path: Path) -> None:
    data = report_of(tmp_path, {**TINY_GPT2, "vocab_size": 5}).to_dict()
    assert data["identified_is"] == "upper bound"
    assert [c["statement"] for c in data["conditions"] if not c["holds"]] == [
        "vocabulary (5) larger than the width (8), so that the embedding spans the stream"
    ]


def test_wide_heads_are_explained_by_their_condition(tmp_path: Path) -> None:
    # Values of width 12 read 8 inputs and are read by two heads with 8 outputs each: the fiber of
    # the product is larger than the orbit by (12 - 8)(16 - 12) in each of 2 groups and 2 layers.
    config = {**TINY_LLAMA, "head_dim": 12}
    data = report_of(tmp_path, config).to_dict()
    route = next(entry for entry in data["evidence"] if entry["line"] == "second route")
    assert data["identified_is"] == "upper bound"
    assert route["statistics"]["agrees"] is False
    assert route["statistics"]["difference"] == 2 * 2 * (12 - 8) * (16 - 12)
    assert "condition" in route["claim"]


def test_example_checkpoint() -> None:
    data = inspect(example_path()).to_dict()
    check(data)
    assert data["exceptional"] == []
    assert data["architecture"]["name"] == "GPT2LMHeadModel"


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    folder = Path(str(tmp_path) + "/\udcff")
    data = inspect(checkpoint(folder, TINY_GPT2, random_tensors(TINY_GPT2))).to_dict()
    json.dumps(data).encode("ascii")
    assert data["path"].endswith("�")


def test_same_configuration_same_digest(tmp_path: Path) -> None:
    first = report_of(tmp_path, TINY_GPT2).to_dict()["config_sha256"]
    turned = dict(reversed(TINY_GPT2.items()))
    assert report_of(tmp_path, turned).to_dict()["config_sha256"] == first
    assert report_of(tmp_path, {**TINY_GPT2, "n_layer": 1}).to_dict()["config_sha256"] != first


def _keys(data: Any, path: str = "") -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _keys(item, path)
    elif isinstance(data, dict):
        for key, value in data.items():
            # Free-form: sizes carry the configuration's own keys, statistics the finding's.
            if path.rsplit(".", maxsplit=1)[-1] in ("sizes", "statistics"):
                continue
            yield f"{path}.{key}".lstrip(".")
            yield from _keys(value, f"{path}.{key}")


def test_every_key_is_documented(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    documented = set(re.findall(r"`([\w.]+)`", text))
    tensors = random_tensors(TINY_LLAMA)
    tensors["model.layers.0.mlp.down_proj.weight"][:, 0] = 0.0
    config = {**TINY_LLAMA, "rope_theta": 1e9, "max_position_embeddings": 64}
    for report in (
        inspect(checkpoint(tmp_path / "a", config, tensors)),
        report_of(tmp_path, shapes.BERT_BASE),
    ):
        missing = {key for key in _keys(report.to_dict()) if key not in documented}
        assert not missing


def test_numbers_are_plain(tmp_path: Path) -> None:
    data = inspect(checkpoint(tmp_path / "a", TINY_GPT2, random_tensors(TINY_GPT2))).to_dict()

    def walk(value: Any) -> None:
        assert not isinstance(value, np.generic | np.ndarray | tuple)
        for item in value.values() if isinstance(value, dict) else ():
            walk(item)
        for item in value if isinstance(value, list) else ():
            walk(item)

    walk(data)
