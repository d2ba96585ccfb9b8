"""Numbers and places in words."""

from __future__ import annotations

import pytest

from fiberscope.report.numerals import order, plural, real, share
from fiberscope.report.places import layer_of, layers_in_words, order_of, ranges
from fiberscope.report.svg import colour, escape, short, ticks


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, "0 %"),
        (10, 10, "100 %"),
        (1346584, 124439808, "1.08 %"),
        (1, 3, "33.3 %"),
        (1, 1000, "0.100 %"),
        (1, 10**9, "< 0.001 %"),
        (10**9 - 1, 10**9, "> 99.99 %"),
        (0, 0, "0 %"),
    ],
)
def test_share(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (float("inf"), "infinite"),
        (3.14159, "3.14"),
        (253.4, "253"),
        (12345.6, "12,346"),
        (0.000953, "0.000953"),
        (9.5e-7, "9.50e-07"),
        (1.4e5, "1.40e+05"),
    ],
)
def test_real(number: float, text: str) -> None:
    assert real(number) == text


def test_orders_are_exact_while_they_are_short() -> None:
    assert order(0.3010299956639812) == "2"
    assert order(4 * 1.380211241711606) == "331,776"  # 24^4
    assert order(104.2) == "10^104.2"


def test_plural() -> None:
    assert plural(1, "head") == "1 head"
    assert plural(1234, "head") == "1,234 heads"


def test_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 8, 5]) == "1-3, 5, 7-9"
    assert ranges([4]) == "4"


def test_layers_in_words() -> None:
    labels = ["layer 0 attention", "layer 2 first norm", "layer 1 attention", "final norm"]
    assert layers_in_words(labels) == "layers 0-2, final norm"
    stacks = ["decoder layer 1 MLP", "encoder layer 0 MLP", "encoder layer 1 MLP"]
    assert layers_in_words(stacks) == "encoder layers 0-1, decoder layer 1"


def test_places_have_an_order() -> None:
    places = ["decoder layer 0", "final norm and head", "encoder layer 10", "encoder layer 2"]
    places += ["residual stream", "embedding"]
    assert sorted(places, key=order_of) == [
        "embedding",
        "encoder layer 2",
        "encoder layer 10",
        "decoder layer 0",
        "residual stream",
        "final norm and head",
    ]
    assert layer_of("layer 12 cross norm") == ("", 12)
    assert layer_of("final norm") is None


@pytest.mark.parametrize("largest", [0.0, 1.0, 3.0, 17.0, 999.0, 33_550_336.0])
def test_ticks_cover_the_data_with_few_round_numbers(largest: float) -> None:
    marks = ticks(largest)
    assert marks[0] == 0
    assert marks[-1] >= largest
    assert 2 <= len(marks) <= 8
    assert all(mark == int(mark) for mark in marks)


def test_axis_numbers() -> None:
    assert [short(n) for n in (0, 250, 1500, 2e6, 4e10)] == ["0", "250", "1.5k", "2M", "40G"]


def test_colours_go_from_pale_to_dark() -> None:
    brightness = [int(colour(k / 20)[1:3], 16) for k in range(21)]
    assert brightness == sorted(brightness, reverse=True)
    assert colour(-1) == colour(0)
    assert colour(2) == colour(1)


def test_escape() -> None:
    assert escape("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
