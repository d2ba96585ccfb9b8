import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fiberscope.verdict import Evidence, Outcome, Status, Verdict, to_plain


def test_statuses_are_sentences_with_words():
    for status in Status:
        assert status.value.endswith(".")
        assert status.word == status.name.lower()
        assert " " not in status.word
    assert len({status.word for status in Status}) == len(Status)


def test_exit_codes():
    assert {o.name: o.exit_code for o in Outcome} == {"SAME": 0, "DIFFERENT": 1, "UNDECIDED": 2}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Status.CERTIFIED, "certified"),
        (Outcome.SAME, "SAME"),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.zeros((0, 2)), []),
        (Fraction(1, 3), "1/3"),
        (Path("a/b"), "a/b"),
        ((1, [2.5, None]), [1, [2.5, None]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1: np.float64(2)}, {"1": 2.0}),
        (float("inf"), "inf"),
        (np.array([-np.inf, np.nan, 1.0]), ["-inf", "nan", 1.0]),
        ("text", "text"),
        (10**40, 10**40),
    ],
)
def test_plain_data(value, plain):
    found = to_plain(value)
    assert found == plain
    assert type(found) is type(plain)
    json.dumps(found, allow_nan=False)


def test_a_verdict_carries_its_evidence_into_json():
    evidence = Evidence("it holds", Status.THEOREM, "a source", ("generic",), {"n": np.int64(2)})
    verdict = Verdict(np.int64(4), Status.BOUNDED, (evidence,), ("finite",), {"gap": np.inf})
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False)) == {
        "value": 4,
        "status": "bounded",
        "evidence": [
            {
                "claim": "it holds",
                "status": "theorem",
                "source": "a source",
                "assumptions": ["generic"],
                "statistics": {"n": 2},
            }
        ],
        "assumptions": ["finite"],
        "statistics": {"gap": "inf"},
    }


def test_results_are_frozen():
    with pytest.raises(AttributeError):
        Verdict(1, Status.NUMERICAL).value = 2
