"""Circuits that compiled loops fit and measure, against least squares done directly."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from fiberscope.checkpoints.equality import loops
from fiberscope.checkpoints.equality.factors import weighed_columns
from fiberscope.checkpoints.equality.noisy import Array, Noisy, rounded
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.settled_heads import Constants, settled_heads
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import statistic, statistic_of_pieces

GROUPS, WIDTH, LENGTH = 3, 24, 90
FLOAT32 = 3 * LENGTH * 2.0**-23
"""Rounding of a sum over a row of three heads in float32."""


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use compiled loops however small the matrices are."""
    assert loops.is_installed()
    monkeypatch.setattr(loops, "LEAST", 0)


def stacked(values: Array, form: type, gain: Noisy, level: bool, order: str = "C") -> Stack:
    """Rows whose folded form is near ``values``, behind a gain and perhaps a centring."""
    flat = values.reshape(-1, values.shape[-1]) / gain.value
    stored = np.asarray(flat, order=order).astype(form)  # type: ignore[call-overload]
    return Stack(Rows(stored, gain=gain, level=level), values.shape[:-1])


def pairs(
    form: type,
    inside: tuple[int, int],
    *,
    level: bool = False,
    joined: bool = False,
    order: str = "C",
    condition: float = 4.0,
    seed: int = 0,
) -> tuple[tuple[Stack, Stack], tuple[Stack, Stack], tuple[Constants, Constants], Array]:
    """Plain and dual factors of two models that are moves of each other, and the moves."""
    rng = np.random.default_rng(seed)
    gains = [rounded((1 + 0.05 * rng.standard_normal(LENGTH)).astype(form)) for _ in range(4)]
    turns = [np.linalg.qr(rng.standard_normal((GROUPS, WIDTH, WIDTH)))[0] for _ in range(2)]
    moves = turns[0] * np.geomspace(1, condition, WIDTH) @ turns[1]
    factors = []
    constants: list[Constants] = []
    for number, by in enumerate((moves, np.linalg.inv(moves).swapaxes(-1, -2))):
        first = 0.02 * rng.standard_normal((GROUPS, inside[number], WIDTH, LENGTH))
        if level:
            first -= first.mean(axis=-1, keepdims=True)
        one = stacked(first, form, gains[2 * number], level, order)
        exact = one.held().value
        other = stacked(by[:, None] @ exact, form, gains[2 * number + 1], level, order)
        lead = (GROUPS, inside[number])
        if inside[number] == 1:
            one, other = (Stack(x.rows, (GROUPS, WIDTH)) for x in (one, other))
            lead = (GROUPS,)
        factors.append((one, other))
        if joined:
            value = 0.05 * rng.standard_normal((*lead, WIDTH))
            target = (by if inside[number] == 1 else by[:, None]) @ value[..., None]
            spread = np.full(value.shape, one.held().variance.mean())
            constants.append((Noisy(value, spread), Noisy(target[..., 0], spread)))
        else:
            constants.append((None, None))
    return factors[0], factors[1], (constants[0], constants[1]), moves


def side_by_side(stack: Stack, constant: Noisy | None, group: int) -> Noisy:
    """The factor of one group, ``(r, m n)``."""
    held = stack.held()
    parts = []
    for array, last in (
        (held.value, None if constant is None else constant.value),
        (held.variance, None if constant is None else constant.variance),
    ):
        one = array[group] if last is None else np.append(array[group], last[group][..., None], -1)
        one = one[None] if one.ndim == 2 else one
        parts.append(np.concatenate(list(one), axis=-1))
    return Noisy(parts[0], parts[1])


@pytest.mark.parametrize("form", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("inside", [(1, 1), (1, 3), (2, 1)])
def test_agrees_with_least_squares_done_directly(form: type, inside: tuple[int, int]) -> None:
    for level, joined, rotated, order in product(*([(False, True)] * 3), ("C", "F")):
        plain, dual, constants, moves = pairs(form, inside, level=level, joined=joined, order=order)
        found = settled_heads(plain, dual, constants, rotated=rotated)
        assert found is not None and found.done.all()
        for group in range(GROUPS):
            p, q, d, e = (
                side_by_side(stack, constant, group)
                for pair, more in zip((plain, dual), constants, strict=True)
                for stack, constant in zip(pair, more, strict=True)
            )
            scaled, _ = weighed_columns(
                [p.value[None], q.value[None]], [p.variance[None], q.variance[None]]
            )
            matrix = np.linalg.lstsq(scaled[0][0].T, scaled[1][0].T, rcond=None)[0].T
            assert found.matrix[group] == pytest.approx(matrix, rel=1e-9, abs=1e-9)
            # Four standard errors: rounding of both factors, times the condition of four.
            error = 4 * 4 * float(ml_dtypes.finfo(form).eps)
            assert matrix == pytest.approx(moves[group], rel=0, abs=error)
            leverage = 2 * WIDTH / (p.shape[-1] + d.shape[-1])
            for by, one, other, piece in (
                (matrix, p, q, found.pieces[group][0]),
                (np.linalg.inv(matrix).T, d, e, found.pieces[group][1]),
            ):
                moved = Noisy(by @ one.value, by**2 @ one.variance)
                slow = statistic("x", other, moved, rotated=rotated, leverage=leverage)
                quick = statistic_of_pieces("x", [piece])
                assert quick.count == slow.count
                for name in ("rms", "largest", "relative", "uncertainty"):
                    # Variances of a row are kept and added up in float32, and the size of what was
                    # found is taken for that of what was expected.
                    assert getattr(quick, name) == pytest.approx(
                        getattr(slow, name), rel=FLOAT32 + slow.relative
                    )
            spreads = [
                (np.square(y.value).sum(1) * x.variance.sum(1)).sum()
                + (np.square(x.value).sum(1) * y.variance.sum(1)).sum()
                for x, y in ((p, d), (q, e))
            ]
            size = np.square(e.value.T @ q.value).sum()
            assert found.uncertainty[group] == pytest.approx(
                np.sqrt(max(spreads) / size), rel=FLOAT32
            )


def test_only_the_usual_case_is_settled() -> None:
    """A group with an ill-conditioned move, a zero row or another function is left open."""
    plain, dual, constants, _ = pairs(np.float32, (1, 1))
    whole = settled_heads(plain, dual, constants, rotated=False)
    assert whole is not None and whole.done.tolist() == [True, True, True]

    def altered(pair: tuple[Stack, Stack], number: int, change: float) -> tuple[Stack, Stack]:
        stored = pair[number].rows.stored.copy()
        stored[WIDTH + 2] *= np.float32(change)
        rows = Rows(stored, gain=pair[number].rows.gain, level=pair[number].rows.level)
        result = list(pair)
        result[number] = Stack(rows, pair[number].lead)
        return result[0], result[1]

    for change in (0.0, 1.001, -1.0):
        for number in range(2):
            for given in (
                (altered(plain, number, change), dual),
                (plain, altered(dual, number, change)),
            ):
                found = settled_heads(*given, constants, rotated=False)
                assert found is not None and found.done.tolist() == [True, False, True]
    plain, dual, constants, _ = pairs(np.float32, (1, 1), condition=1e6)
    found = settled_heads(plain, dual, constants, rotated=False)
    assert found is not None and not found.done.any()


def test_what_loops_cannot_read_goes_the_general_way() -> None:
    plain, dual, constants, _ = pairs(np.float64, (1, 1))
    assert settled_heads(plain, dual, constants, rotated=False) is None
    plain, dual, constants, _ = pairs(np.float32, (1, 1))
    assert settled_heads((plain[0].held(), plain[1]), dual, constants, rotated=False) is None
