"""Residuals straight from stored numbers are those of the general way, element by element."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fiberscope.checkpoints.equality import loops
from fiberscope.checkpoints.equality.noisy import Noisy, rounded
from fiberscope.checkpoints.equality.rows import SKETCH, Rows
from fiberscope.checkpoints.equality.silence import with_constant
from fiberscope.checkpoints.equality.statistic import Statistic, statistic
from fiberscope.checkpoints.equality.tiles import statistic_of_rows


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use compiled loops however small the matrices are."""
    assert loops.is_installed()
    monkeypatch.setattr(loops, "LEAST", 0)


NUMBERS = ("rms", "largest", "relative", "uncertainty")


def pair(
    form: type, *, level: bool, gained: bool, shifted: bool, order: str, size: float = 0.01
) -> tuple[Rows, Rows]:
    """A matrix, and a copy with renamed columns whose gain and row means are others."""
    rng = np.random.default_rng(5)
    count, width = 120, 90
    whole = rng.standard_normal((count, width)) * np.exp(rng.standard_normal((count, 1))) * size
    gain = rounded((1 + 0.3 * rng.standard_normal(width)).astype(form))
    order_ = rng.permutation(width)
    # Behind a centring only one sign for all columns is a symmetry.
    sign = -np.ones(width) if level else rng.choice([-1.0, 1.0], width)
    stored = np.asarray(whole, order=order).astype(form)  # type: ignore[call-overload]
    values = stored.astype(np.float64)
    other = rounded((1 + 0.3 * rng.standard_normal(width)).astype(form))
    target = (values * gain.value if gained else values)[:, order_] * sign
    if level:
        target = target + rng.standard_normal((count, 1)) * size
    copy = np.asarray(target / (other.value if gained else 1.0), order=order)  # type: ignore[call-overload]
    shift = Noisy(np.zeros(width), np.full(width, (size * 1e-4) ** 2))
    shifts = ((np.ones(count, dtype=np.bool_), shift),) if shifted else ()
    first = Rows(stored, gain=gain if gained else None, level=level, shifts=shifts)
    second = Rows(copy.astype(form), gain=other if gained else None, level=level)
    return first.renamed(order_, sign), second


def both_ways(
    first: Rows, second: Rows, constants: tuple[Noisy | None, Noisy | None], rotated: bool
) -> tuple[Statistic, Statistic]:
    quick = statistic_of_rows("x", second, first, constants, rotated=rotated)
    whole = [
        with_constant(rows.whole(), c) for rows, c in zip((second, first), constants, strict=True)
    ]
    return quick, statistic("x", whole[0], whole[1], rotated=rotated)


@pytest.mark.parametrize("form", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_agrees_with_the_general_way(form: type) -> None:
    rng = np.random.default_rng(1)
    for level, gained, shifted, constant, rotated, order in product(
        *([(False, True)] * 5), ("C", "F")
    ):
        if gained and shifted:
            continue
        first, second = pair(form, level=level, gained=gained, shifted=shifted, order=order)
        constants: tuple[Noisy | None, Noisy | None] = (None, None)
        if constant:
            value, spread = rng.standard_normal(120), np.full(120, 1e-8)
            constants = (
                Noisy(value, spread),
                Noisy(value + 1e-4 * rng.standard_normal(120), spread),
            )
        quick, slow = both_ways(first, second, constants, rotated)
        assert quick.count == slow.count
        for name in NUMBERS:
            assert getattr(quick, name) == pytest.approx(getattr(slow, name), rel=3e-4, abs=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("together", [False, True])
def test_rows_in_another_order(order: str, together: bool) -> None:
    """Single rows, and rows that mostly follow the row before, are read where they lie."""
    first, second = pair(np.float32, level=True, gained=True, shifted=False, order=order)
    number = np.random.default_rng(4).permutation(120)
    if together:
        number = np.roll(np.arange(120), 40)[:110]
    assert (
        first.chosen(number).chosen(np.arange(5, 60)).stored == first.stored[number[5:60]]
    ).all()
    quick, slow = both_ways(first.chosen(number), second.chosen(number), (None, None), True)
    straight = statistic("x", second.whole().part(number), first.whole().part(number), rotated=True)
    for name in NUMBERS:
        assert getattr(quick, name) == pytest.approx(getattr(slow, name), rel=3e-4)
        assert getattr(slow, name) == pytest.approx(getattr(straight, name), rel=1e-12)
    shuffled, _ = (
        both_ways(first.chosen(number), second, (None, None), True)
        if not together
        else (statistic("x", second.whole().part(np.s_[:110]), first.chosen(number).whole()), None)
    )
    assert shuffled.is_different


@pytest.mark.parametrize("size", [1e-35, 1e-20, 1e20, 1e30])
def test_sizes_beyond_the_range_of_squares(size: float) -> None:
    first, second = pair(np.float32, level=True, gained=False, shifted=False, order="C", size=size)
    quick, slow = both_ways(first, second, (None, None), True)
    for name in NUMBERS:
        assert getattr(quick, name) == pytest.approx(getattr(slow, name), rel=3e-4)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("level", [False, True])
@pytest.mark.parametrize("steps", [1, 7, 120])
def test_rows_of_all_sizes_in_one_piece(steps: int, level: bool, rotated: bool) -> None:
    """Whatever the rows before were like: larger, smaller or zero."""
    first, second = pair(np.float32, level=level, gained=True, shifted=False, order="F")
    exponents = np.random.default_rng(8).integers(-90, 90, steps)[np.arange(120) * steps // 120]
    scale = np.float32(2.0) ** exponents.astype(np.float32)[:, None]
    scale[50:53] = scale[90] = 0.0
    one, other = (replace(rows, held=rows.stored * scale) for rows in (first, second))
    quick, slow = both_ways(one, other, (None, None), rotated)
    assert quick.rms > 0.1
    for name in NUMBERS:
        assert getattr(quick, name) == pytest.approx(getattr(slow, name), rel=1e-5)


@pytest.mark.parametrize("rotated", [False, True])
def test_equal_rows_leave_nothing(rotated: bool) -> None:
    first, _ = pair(np.float32, level=True, gained=True, shifted=False, order="C")
    copy = replace(first, held=first.stored.copy())
    quick, slow = both_ways(first, copy, (None, None), rotated)
    assert quick.rms == quick.largest == quick.relative == 0.0
    assert quick.uncertainty == pytest.approx(slow.uncertainty, rel=1e-5)
    copy.stored[7, 5] *= np.float32(1 + 1e-4)
    quick, slow = both_ways(first, copy, (None, None), rotated)
    assert quick.is_different
    for name in NUMBERS:
        assert getattr(quick, name) == pytest.approx(getattr(slow, name), rel=1e-5)


def test_one_number_in_a_faint_row_is_seen() -> None:
    """Rows of very different sizes in one piece: the small ones keep their own rounding."""
    first, second = pair(np.float32, level=False, gained=False, shifted=False, order="C")
    scale = np.where(np.arange(120) % 2, 1.0, 1e-25).astype(np.float32)[:, None]
    values = [rows.stored * scale for rows in (first, second)]
    values[1][0, 3] *= np.float32(1 + 2e-6)
    one, other = (
        Rows(value, columns=rows.columns, signs=rows.signs)
        for value, rows in zip(values, (first, second), strict=True)
    )
    assert statistic_of_rows("x", other, one, rotated=False).is_different


@pytest.mark.parametrize("form", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_agree_with_the_general_way(
    form: type, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contractions and means, of numbers down to the subnormal."""
    rng = np.random.default_rng(2)
    numbers = rng.standard_normal((77, 50)) * 2.0 ** -rng.integers(0, 26, (77, 50))
    stored = np.asarray(numbers, order=order).astype(form)  # type: ignore[call-overload]
    vector = rounded(rng.standard_normal(50).astype(np.float32))
    factors = rng.standard_normal(77).astype(np.float32)
    ways = []
    for least in (0, 1 << 62):
        monkeypatch.setattr(loops, "LEAST", least)
        for rows in (Rows(stored), Rows(stored[3:60, 5:41]), Rows(stored[:, ::-1])):
            width = rows.shape[1]
            weights = rounded(factors[: rows.shape[0]])
            ways += [rows.dot(vector.part(np.s_[:width])), rows.average(), rows.combined(weights)]
    for one, two in zip(ways[:9], ways[9:], strict=True):
        assert one.value == pytest.approx(two.value, rel=1e-12, abs=1e-14)
        assert one.variance == pytest.approx(two.variance, rel=1e-9)


def test_a_glance_never_overlooks_a_row_that_is_zero_up_to_rounding() -> None:
    rng = np.random.default_rng(3)
    whole = rng.standard_normal((50, 64)).astype(np.float32)
    assert Rows(whole).glance is not None
    for row in (0.0, 1e-9):
        faint = whole.copy()
        faint[7] = row
        assert Rows(faint).glance is None
    # A bound that is known may be that of a larger matrix, or say nothing.
    size = float(np.square(whole).sum())
    assert Rows(whole, squares=1000 * size).glance is not None
    assert Rows(whole, squares=np.inf).glance is None
    # Equal numbers in a row are nothing once it is centred.
    level = whole.copy()
    level[7] = 0.3
    assert Rows(level).glance is not None
    assert Rows(level, level=True).glance is None
    survey = Rows(level, level=True).survey
    assert survey[0].shape == (50, SKETCH)
    assert not survey[2][7] and np.delete(survey[2], 7).all()
    held = Rows(level, level=True).whole()
    assert survey[1] == pytest.approx(np.square(held.value).sum(axis=1), rel=1e-9, abs=1e-12)


def test_loops_compile_where_nothing_can_be_kept_on_disk() -> None:
    """A function without a file has no place for its compiled form either."""
    from fiberscope.checkpoints.equality.kernels import compiled

    names: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", names)
    twice = compiled("f8(f8)")(names["twice"])
    assert twice(1.5) == 3.0
    assert twice.signatures


def test_compiled_loops_are_kept_under_what_they_were_compiled_from(tmp_path: Path) -> None:
    """Loops of one file hold compiled copies of those of another, whose changes must count."""
    from fiberscope.checkpoints.equality import head_kernels, kernels

    version = kernels.digest(Path(kernels.__file__).parent.glob("*kernels.py"))
    kept = head_kernels.circuits._cache._cache_path  # type: ignore[attr-defined]
    assert list(Path(kept).glob(f"head_kernels.circuits_{version}-*.nbi"))
    files = [tmp_path / name for name in ("a_kernels.py", "b_kernels.py")]
    for file in files:
        file.write_text("x = 1\n")
    before = kernels.digest(files)
    files[1].write_text("x = 2\n")
    assert kernels.digest(files) != before == kernels.digest([files[0], files[0]])
