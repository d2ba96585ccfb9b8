"""The training report: sums by hand, curves in every format, files that are no runs."""

import itertools
import json
import math
import re
from html.parser import HTMLParser

import pytest

from fiberscope.errors import InputError
from fiberscope.report.training_charts import axis_ticks, curves_chart
from fiberscope.report.training_html import page
from fiberscope.report.training_run import Curve, training_run
from fiberscope.report.training_terminal import spark, to_text
from fiberscope.training.record import Direction, to_line
from tests.training.report_records import file_of, measurement, start

STEPS = (1, 4, 16)


@pytest.fixture
def run(tmp_path):
    records = [start(), *(measurement(step) for step in STEPS)]
    return training_run(file_of(tmp_path / "run.jsonl", records))


def test_totals_by_hand(run):
    # Shares 0.04, 0.02, 0.01 of updates of norm 2.
    assert run.joint.values == pytest.approx((0.04, 0.02, 0.01))
    assert run.update.wasted == pytest.approx(0.07 / 3)
    assert run.update.along == pytest.approx(2 * (0.2 + math.sqrt(0.02) + 0.1))
    assert run.update.across == pytest.approx(
        2 * (math.sqrt(0.96) + math.sqrt(0.98) + math.sqrt(0.99))
    )
    assert run.along.values[-1] == pytest.approx(run.update.along)
    assert run.across.values[-1] == pytest.approx(run.update.across)
    assert run.along.values[0] == pytest.approx(0.4)
    assert run.decayed.wasted == pytest.approx(0.25)
    assert run.adapted.along == pytest.approx(
        1.9 * (math.sqrt(0.02) + math.sqrt(0.01) + math.sqrt(0.005))
    )


def test_the_whole_share_weighs_steps_by_their_length(tmp_path):
    records = [
        start(),
        measurement(1, update=Direction(1.0, 1.0)),
        measurement(2, update=Direction(3.0, 0.0)),
        measurement(3, update=Direction(0.0, None)),
    ]
    run = training_run(file_of(tmp_path / "run.jsonl", records))
    assert run.update.wasted == pytest.approx(0.1)
    assert (run.update.along, run.update.across) == pytest.approx((1.0, 3.0))
    assert run.joint.steps == (1, 2)
    assert run.along.steps == (1, 2, 3)


def test_mechanisms_gather_their_places_by_size(run):
    names = [mechanism.name for mechanism in run.mechanisms]
    assert names[0] == "query/key basis change"
    first = run.mechanisms[0]
    assert first.together.values == pytest.approx((0.03, 0.015, 0.0075))
    assert [curve.name for curve in first.places] == ["layer 0 attention", "layer 1 attention"]
    assert first.places[1].values == pytest.approx((0.01, 0.005, 0.0025))
    assert run.imbalances[0].values == pytest.approx((0.5, 0.125, 0.03125))
    assert run.dead_biases[0].values == pytest.approx((1e-6, 4e-6, 1.6e-5))


def test_a_continued_run_loses_nothing(tmp_path):
    counted = [start(), measurement(50), measurement(100), start(), measurement(150)]
    assert training_run(file_of(tmp_path / "a.jsonl", counted)).joint.steps == (50, 100, 150)
    again = [start(), measurement(50), measurement(100), start(), measurement(1), measurement(50)]
    run = training_run(file_of(tmp_path / "b.jsonl", again))
    assert run.joint.steps == (50, 100, 101, 150)
    assert [note for note in run.notes if "continued" in note]


def test_a_run_resumed_from_a_checkpoint_does_not_count_steps_twice(tmp_path):
    records = [start(), measurement(50), measurement(100), measurement(150)]
    records += [start(), measurement(100, loss=1.25), measurement(150), measurement(200)]
    run = training_run(file_of(tmp_path / "a.jsonl", records))
    assert run.joint.steps == (50, 100, 150, 200)
    assert run.losses.values[1] == 1.25
    assert run.repeated == 2
    assert [note for note in run.notes if note.startswith("2 measurements are left out")]


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "x"},
        {"step": 0},
        {"update": {"norm": 1.0, "share": "x"}},
        {"update": {"norm": 1.0, "share": 1.5}},
        {"update": {"norm": float("nan"), "share": 0.5}},
        {"item_shares": (0.5,)},
        {"item_shares": ("x", 0.0, 0.0, 0.0)},
        {"loss": "low"},
    ],
)
def test_damaged_measurements_are_refused(tmp_path, changes):
    path = tmp_path / "run.jsonl"
    line = json.dumps(json.loads(to_line(measurement(1))) | changes)
    path.write_text(to_line(start()) + "\n" + line + "\n")
    with pytest.raises(InputError, match="damaged"):
        training_run(path)


def test_a_failed_self_check_is_said(tmp_path):
    records = [start(), measurement(1, gradient=Direction(1.0, 0.01)), measurement(2)]
    text = to_text(training_run(file_of(tmp_path / "a.jsonl", records)))
    assert "The self-check fails" in text and "1.0e-02" in text
    records = [start(), measurement(1, gradient=Direction(1.0, 1e-7))]
    assert "fails" not in to_text(training_run(file_of(tmp_path / "b.jsonl", records)))


def test_starts_that_point_beyond_their_entries_are_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(to_line(start(balances=(0, 9))) + "\n" + to_line(measurement(1)) + "\n")
    with pytest.raises(InputError, match="damaged"):
        training_run(path)


def test_a_part_that_is_not_known_is_left_out(tmp_path):
    records = [
        start(optimizer="SGD", dead_biases=(), balances=()),
        *(
            measurement(
                step,
                decay=None,
                adaptive=None,
                gradient=None,
                loss=None,
                balances=(),
                dead_bias_drifts=(),
            )
            for step in STEPS
        ),
    ]
    run = training_run(file_of(tmp_path / "run.jsonl", records))
    assert (run.decay, run.adaptive, run.losses, run.decayed) == (None, None, None, None)
    for text in (to_text(run), page(run)):
        assert "weight decay</td>" not in text
        assert "was not measured" in text
        assert "Imbalance" not in text
    assert run.to_dict()["loss"] is None


def test_json_is_plain_and_complete(run):
    data = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert data["schema"] == "fiberscope/training-report/1"
    assert data["joint"]["values"] == pytest.approx([0.04, 0.02, 0.01])
    assert data["totals"]["update"]["wasted"] == pytest.approx(0.07 / 3)
    assert {m["name"] for m in data["mechanisms"]} == {
        "query/key basis change",
        "key bias",
        "residual rotation",
    }


class Page(HTMLParser):
    """Tags in balance, and everything that would be fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.counts = [], [], {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(run):
    html = page(run)
    found = Page()
    found.feed(html)
    assert not found.open
    assert not found.fetched
    assert "url(" not in html and "http" not in html
    assert found.counts["svg"] >= 6
    assert "a note &lt;about&gt; &amp; the run" in html
    for words in ("query/key basis change", "along fibers", "across fibers", "Imbalance", "2.33 %"):
        assert words in html


def points_of(svg):
    found = re.search(r'<polyline points="([^"]+)"', svg)
    return [tuple(map(float, pair.split(","))) for pair in found[1].split()]


def test_curves_are_drawn_where_their_values_are():
    svg = curves_chart([Curve("c", (0, 50, 100), (0.0, 0.1, 0.2))], "share", height=200.0)
    (x0, y0), (x1, y1), (x2, y2) = points_of(svg)
    assert (x0 + x2) / 2 == pytest.approx(x1, abs=0.11)
    assert (y0 + y2) / 2 == pytest.approx(y1, abs=0.11)
    assert y0 - y2 == pytest.approx(200.0, abs=0.11)  # 0.2 is the topmost tick


def test_values_over_decades_get_a_logarithmic_axis():
    values = tuple(10.0**-k for k in range(11))
    svg = curves_chart([Curve("c", tuple(range(11)), values)], "share")
    heights = [y for _, y in points_of(svg)]
    steps = [b - a for a, b in itertools.pairwise(heights)]
    assert max(steps) - min(steps) < 0.21


def test_long_curves_are_thinned_and_keep_their_end():
    steps = tuple(range(1, 5001))
    svg = curves_chart([Curve("c", steps, tuple(float(s) for s in steps))], "share")
    points = points_of(svg)
    assert len(points) < 500
    assert points[-1][0] == pytest.approx(952, abs=0.1)


@pytest.mark.parametrize("largest", [1e-6, 0.037, 0.2, 1.0, 7.3, 4e5])
def test_ticks_cover_and_are_round(largest):
    ticks = axis_ticks(largest)
    assert ticks[-1] >= largest * (1 - 1e-9) and ticks[-2] < largest
    assert 3 <= len(ticks) <= 7
    assert all(len(f"{tick:.12g}".replace(".", "").strip("0").split("e")[0]) <= 3 for tick in ticks)


def test_negative_values_have_room():
    assert axis_ticks(1.0, -1.0) == pytest.approx([-1.0, -0.5, 0.0, 0.5, 1.0])
    svg = curves_chart([Curve("loss", (1, 2), (1.0, -1.0))], "loss", height=200.0)
    (_, first), (_, second) = points_of(svg)
    assert second - first == pytest.approx(200.0, abs=0.11)


def test_bars_in_the_terminal():
    assert spark([0.0, 1.0]) == "▁█"
    assert spark([]) == "" and spark([0.0, 0.0]) == ""
    assert len(spark([1.0] * 1000)) == 24


def test_the_terminal_report_fits_and_says_it(run):
    for width in (60, 100):
        text = to_text(run, width)
        assert max(map(len, text.splitlines())) <= width
        assert "2.33 %" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no measurement"),
        ("{}\n", "not a record"),
        ("not json\n", "not JSON"),
    ],
)
def test_files_that_are_no_runs(tmp_path, text, message):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        training_run(path)


def test_measurements_without_a_start(tmp_path):
    with pytest.raises(InputError, match="without a start"):
        training_run(file_of(tmp_path / "run.jsonl", [measurement(1)]))
