"""Lines on which the oracle is piecewise linear, and the hinges on them.

With the last token ``y`` fixed, tokens may move along directions orthogonal to every ``W_h y``: no
score changes, so all averages are affine on the whole line and ``f`` has one hinge for every
neuron. That needs ``d > H``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDS = 24
_FARTHEST = 1.5
_SAMPLES = 8


@dataclass(frozen=True)
class Line:
    """Sequences ``start + t move``, both of shape ``(N, d)``; the last token stays."""

    start: Floats
    move: Floats

    def tokens(self, t: Floats) -> Floats:
        """Sequences ``(n, N, d)``."""
        return self.start + t[:, None, None] * self.move

    @staticmethod
    def draw(W: Floats, length: int, size: float, rng: np.random.Generator) -> Line:
        """Random tokens of 2-norm about ``size``, moving where no score sees it.

        Parameters
        ----------
        W
            Score matrices, shape ``(H, d, d)`` with ``d > H``.
        length
            Tokens.
        """
        d = W.shape[-1]
        start = rng.normal(size=(length, d)) * size / np.sqrt(d)
        seen = np.array([matrix @ start[-1] for matrix in W]).T
        basis = np.linalg.qr(np.concatenate([seen, rng.normal(size=(d, d - len(W)))], axis=1))[0]
        free = basis[:, len(W) :]
        move = rng.normal(size=(length, d)) @ free @ free.T * size / np.sqrt(d)
        move[-1] = 0.0
        return Line(start, move)


@dataclass(frozen=True)
class Hinges:
    """Hinges on a line and the pieces between them.

    Attributes
    ----------
    places
        Verified hinges: single ones, both neighbouring pieces known; indices into ``pieces``.
    at
        Their parameters ``t``.
    pieces
        ``(first, last)`` parameters of every linear piece, in order.
    complete
        Whether no gap was left unresolved.
    """

    places: list[int]
    at: Floats
    pieces: list[tuple[float, float]]
    complete: bool


def find_hinges(
    ask: Callable[[Floats], Floats], tolerance: Callable[[Floats], Floats], neurons: int
) -> Hinges:
    """Sample, join collinear samples to pieces, and intersect neighbouring pieces.

    Parameters
    ----------
    ask
        Values at parameters.
    tolerance
        Errors of values at parameters.
    neurons
        About how many hinges to expect; decides the first samples.
    """
    count = max(65, _SAMPLES * neurons)
    t = np.tan(np.linspace(-_FARTHEST, _FARTHEST, count))
    f = ask(t)
    hinges: dict[float, bool] = {}
    for _ in range(ROUNDS):
        pieces = _pieces(t, f, tolerance(t))
        asked: list[float] = []
        hinges = {}
        for (_, left), (right, _) in itertools.pairwise(pieces):
            asked += _gap(t, f, tolerance(t), left, right, pieces, hinges)
        fresh = np.setdiff1d(np.array(asked), t)
        if not len(fresh) or len(t) > 60 * count:
            break
        order = np.argsort(np.concatenate([t, fresh]), kind="stable")
        t, f = np.concatenate([t, fresh])[order], np.concatenate([f, ask(fresh)])[order]
    pieces = _pieces(t, f, tolerance(t))
    bounds = [(float(t[first]), float(t[last])) for first, last in pieces]
    places, at = [], []
    for index in range(len(pieces) - 1):
        inside = [h for h, sure in hinges.items() if sure and _between(bounds, index, h)]
        if len(inside) == 1:
            places.append(index)
            at.append(inside[0])
    return Hinges(places, np.array(at), bounds, len(places) == len(pieces) - 1)


def _between(bounds: list[tuple[float, float]], index: int, h: float) -> bool:
    low, high = bounds[index][1], bounds[index + 1][0]
    return low - 1e-9 * (1 + abs(low)) <= h <= high + 1e-9 * (1 + abs(high))


def _pieces(t: Floats, f: Floats, errors: Floats) -> list[tuple[int, int]]:
    """Index ranges of maximal runs of at least four collinear samples."""
    shares = (t[1:-1] - t[:-2]) / (t[2:] - t[:-2])
    bend = np.abs(f[1:-1] - (1 - shares) * f[:-2] - shares * f[2:])
    straight = bend <= errors[1:-1] + errors[:-2] + errors[2:]
    edges = np.diff(np.concatenate([[0], straight.astype(int), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [(int(a), int(b) + 1) for a, b in zip(starts, ends, strict=True) if b - a >= 2]


def _gap(
    t: Floats,
    f: Floats,
    errors: Floats,
    left: int,
    right: int,
    pieces: list[tuple[int, int]],
    hinges: dict[float, bool],
) -> list[float]:
    """What to ask between two pieces; records a hinge once a sample on it confirms it."""
    if left >= right:
        # Both pieces end at the same sample: it sits on the hinge.
        hinges[float(t[left])] = True
        return []
    before = next(piece for piece in pieces if piece[1] == left)
    after = next(piece for piece in pieces if piece[0] == right)
    slope = (f[left] - f[before[0]]) / (t[left] - t[before[0]])
    slope_after = (f[after[1]] - f[right]) / (t[after[1]] - t[right])
    middles = [float(m) for m in 0.5 * (t[left:right] + t[left + 1 : right + 1])]
    width = t[right] - t[left]
    if width <= 1e-11 * (1 + abs(t[left])) or slope == slope_after:
        return []
    meeting = float(
        (f[right] - f[left] + slope * t[left] - slope_after * t[right]) / (slope - slope_after)
    )
    if not t[left] <= meeting <= t[right]:
        return middles
    inside = t[left : right + 1]
    expected = np.where(
        inside <= meeting,
        f[left] + slope * (inside - t[left]),
        f[right] + slope_after * (inside - t[right]),
    )
    if (np.abs(f[left : right + 1] - expected) > 8 * errors[left : right + 1]).any():
        return middles
    if (np.abs(inside - meeting) <= 1e-9 * (1 + abs(meeting))).any():
        hinges[meeting] = True
        return []
    return [meeting, 0.5 * (t[left] + meeting), 0.5 * (meeting + t[right])]
