from __future__ import annotations

import math

from fiberscope.checkpoints.inspection import (
    Exceptional,
    HeadConditioning,
    Leftover,
    WeightFindings,
)
from fiberscope.report.findings import conditioning_lines, grouped, leftover_lines

DEFICIENT = "rank-deficient query/key product"


def weights(**parts: tuple[object, ...]) -> WeightFindings:
    names = ("exceptional", "conditioning", "leftovers", "gains", "breaking")
    empty: dict[str, object] = dict.fromkeys(names, ())
    return WeightFindings("m", ("float32",), conditions=(), **{**empty, **parts})  # type: ignore[arg-type]


def deficient(layer: int, head: int, extra: int | None = 17) -> Exceptional:
    values = {"singular_values": [[4.0, 1.0, 0.0]]}
    return Exceptional(DEFICIENT, f"layer {layer} attention, head {head}", extra, "rank 2", values)


def test_few_findings_stay_on_their_own() -> None:
    lines = grouped([deficient(0, 1), deficient(3, 2)])
    assert [line.where for line in lines] == [
        "layer 0 attention, head 1",
        "layer 3 attention, head 2",
    ]
    assert [line.detail for line in lines] == ["rank 2", "rank 2"]


def test_many_similar_findings_become_one_line_with_their_number() -> None:
    (line,) = grouped([deficient(layer, head) for layer in range(4) for head in range(3)])
    assert line.where == "12 heads in layers 0-3"
    assert line.adds() == "204"
    assert line.detail == "smallest over largest singular value 0; each of them in --json"


def test_unknown_dimensions_are_not_counted_as_zero() -> None:
    (line,) = grouped([deficient(0, 0), deficient(1, 0, None), deficient(2, 0)])
    assert line.adds() == "34 or more"
    (line,) = grouped([deficient(layer, 0, None) for layer in range(3)])
    assert line.adds() == "not known"


def test_units_are_counted_not_findings() -> None:
    kind = "dead neurons (zero down column)"
    found = [
        Exceptional(kind, f"layer {n} MLP, neurons 1, 2", 10, "2 of 9 neurons", {"count": 2})
        for n in (0, 1, 5)
    ]
    (line,) = grouped(found)
    assert line.where == "6 neurons in layers 0-1, 5"
    silent = [
        Exceptional("silent heads", f"layer {n} attention, heads 0, 3", 9, "x", {"heads": [0, 3]})
        for n in range(3)
    ]
    (line,) = grouped(silent)
    assert line.where == "6 heads in layers 0-2"


def test_leftovers_over_layers() -> None:
    layers = tuple(
        Leftover(f"layer {n} attention", n, {"key_bias_rms": k, "query_bias_rms": 2.0})
        for n, k in enumerate((0.5, 1.0, 4.0))
    )
    gains = (
        Leftover("first norm", 0, {"smallest": 0.5, "largest": 2.0, "relative_spread": 0.25}),
        Leftover("last norm", -1, {"smallest": 0.1, "largest": 1.0, "relative_spread": 0.75}),
    )
    lines = {what: size for what, size, _ in leftover_lines(weights(leftovers=layers, gains=gains))}
    assert lines == {
        "key bias, rms": "1.00 (0.500 to 4.00)",
        "key bias over query bias": "0.500 (0.250 to 2.00)",
        "norm gains, spread": "0.500 (0.250 to 0.750)",
        "norm gains, range of sizes": "0.100 to 2.00",
    }


def test_infinite_condition_numbers_are_counted_apart() -> None:
    rows = (
        HeadConditioning("layer 0 attention", 0, None, (1.0, math.inf)),
        HeadConditioning("layer 1 attention", 1, None, (3.0, 2.0)),
    )
    assert conditioning_lines(weights(conditioning=rows)) == [
        (
            "value/output",
            "2.00 (1.00 to 3.00)",
            "1 head of 4 infinite; largest in layer 1 attention, head 0",
        )
    ]
    dead = (HeadConditioning("layer 0 attention", 0, (math.inf,), (math.inf,)),)
    assert [line[1] for line in conditioning_lines(weights(conditioning=dead))] == [
        "infinite",
        "infinite",
    ]
