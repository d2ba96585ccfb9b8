r"""A pair of heads ``(W, v)`` and ``(-W, v)``: two-token queries do not show it, longer ones do.

In ``k`` copies of ``y + z`` before ``y``, with ``L = log k``, the pair and a head ``(0, v_0)``
beside it give

    y^T (2 v + v_0) + z^T v (sigma(L + s) + sigma(L - s)) + z^T v_0 k / (1 + k),    s = z^T W y.

The signs of the other heads come first: along a line on which one of them crosses zero and all else
is saturated, a step sits at ``-L`` or at ``L``. They are taken away. Where scores saturate the
rest is ``z^T v + z^T v_0 k / (1 + k)``, which with ``u`` gives ``v`` and ``v_0``; then one answer
gives ``cosh s``. Directions near one ``z`` and tokens near one ``y`` with a score well away from
zero have scores of one sign, and ``W`` and ``-W`` are the same pair. Least squares over random
sequences give the digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.mirrors import SignedHeads
from fiberscope.queries.many_heads.pairs import NotFiniteError, PairProbe
from fiberscope.queries.many_heads.sweep import Bilinear
from fiberscope.queries.one_head_fit import head_and_slopes

Floats = NDArray[np.float64]

COPIES = 4
TRIES = 8
"""Pairs of a direction and a token from which the search starts."""
PASSES = 3
"""Fits, each to fresh sequences chosen from the fit before."""
_LEAN = 0.25
_ON_LINE, _LINES, _FAR = 13, 12, 60.0
_STEPS = 30
_EXPLAINED = 64.0
_SHARE = COPIES / (1 + COPIES)


class NoPairError(Exception):
    """One such pair does not explain what the known heads leave."""


@dataclass
class _Rest:
    """What known heads leave of the oracle."""

    probe: PairProbe
    known: AttentionHeads
    total: Floats  # of what is left

    def values(self, z: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Sequences ``(n, COPIES + 1, d)`` for rows of ``z`` and ``y``, and what is left there."""
        session = self.probe.session
        y = session.representable(y)
        first = session.representable(y + z)
        tokens = np.concatenate([np.repeat(first[:, None], COPIES, axis=1), y[:, None]], axis=1)
        answers = session.ask(tokens, self.probe.purpose)
        if not np.isfinite(answers).all():
            raise NotFiniteError
        return tokens, answers - self.known.evaluate_many(tokens)

    def shares(self, z: Floats, y: Floats) -> Floats:
        """``left - y^T total`` for the directions and tokens given."""
        tokens, left = self.values(z, y)
        return np.asarray(left - tokens[:, -1] @ self.total)


def with_mirror_pair(
    probe: PairProbe, known: Bilinear, size: float, rng: np.random.Generator
) -> SignedHeads:
    """The known heads, a pair ``(W, v), (-W, v)``, and a head without scores if one is left.

    Parameters
    ----------
    probe
        Where to ask; holds ``u`` and the noise.
    known
        Heads up to sign, as two-token queries show them.
    size
        2-norm of directions to ask.
    rng
        Draws all probes.

    Raises
    ------
    NoPairError
        If one pair does not explain what is left.
    """
    signs = np.array([_sign(probe, known, h, size, rng) for h in range(len(known.w))])
    kept = AttentionHeads(known.W * signs.reshape(-1, 1, 1), known.w * signs.reshape(-1, 1))
    rest = _Rest(probe, kept, probe.total - kept.v.sum(axis=0))
    if float(np.linalg.norm(rest.total)) == 0:
        raise NoPairError
    length = _turning_length(rest, rng)
    v = _values(rest, 64 * length, rng)
    size = float(np.linalg.norm(v))
    unseen = probe.noise.unit * float(np.linalg.norm(probe.total)) + probe.noise.absolute
    unseen += float(known.w_errors.sum())
    if not size > 100 * unseen:
        raise NoPairError
    W = _start(rest, v, length, rng)
    mean = rest.total - 2 * v
    for _ in range(PASSES):
        W, v, mean, errors = _fitted(rest, W, v, mean, unseen, rng)
    heads = [(W, v, errors[0], errors[1]), (-W, v, errors[0], errors[1])]
    note = "a pair of heads W, -W with the same values, seen by longer sequences"
    if float(np.linalg.norm(mean)) > 30 * (errors[2] + unseen):
        heads.append((np.zeros_like(W), mean, 0.0, errors[2]))
        note += ", and a head with W = 0, which averages"
    return SignedHeads(
        np.concatenate([kept.W, [head[0] for head in heads]]),
        np.concatenate([kept.v, [head[1] for head in heads]]),
        np.concatenate([known.W_errors, [head[2] for head in heads]]),
        np.concatenate([known.w_errors, [head[3] for head in heads]]),
        note,
    )


def _sign(
    probe: PairProbe, known: Bilinear, h: int, size: float, rng: np.random.Generator
) -> float:
    """Whether head ``h`` is ``(W, w)`` or ``(-W, -w)``: where its step lies on a line of tokens."""
    d = len(probe.total)
    shift = float(np.log(COPIES))
    t = np.linspace(-4, 4, _ON_LINE)
    design = np.stack([np.ones_like(t), _sigma(shift + t), _sigma(shift - t)], axis=1)
    for _ in range(_LINES):
        z = rng.normal(size=(16, d))
        z *= size / np.linalg.norm(z, axis=1, keepdims=True)
        z = probe.direction(z[int(np.argmax(np.abs(z @ known.w[h])))], size)
        m = z @ known.W[h]
        typical = float(np.median(np.linalg.norm(known.steps(z).directions, axis=1)))
        across = rng.normal(size=d)
        across -= m * (across @ m) / (m @ m)
        across *= _FAR / typical / max(float(np.linalg.norm(across)), 1e-300) * np.sqrt(d)
        y = probe.points(z, across + np.outer(t, m / (m @ m)))
        values = probe.values(z, y, 0.0, COPIES)
        solved, *_ = np.linalg.lstsq(design, values, rcond=None)
        height = float(z @ known.w[h])
        left = float(np.abs(values - design @ solved).max())
        plus, minus = abs(solved[1] - height), abs(solved[2] + height)
        if left < 1e-3 * abs(height):
            # One of the two steps has all of the height, the other none.
            if max(plus, abs(float(solved[2]))) < 0.01 * abs(height):
                return 1.0
            if max(minus, abs(float(solved[1]))) < 0.01 * abs(height):
                return -1.0
    raise NoPairError


def _sigma(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _turning_length(rest: _Rest, rng: np.random.Generator) -> float:
    """Common 2-norm of ``z`` and ``y`` at which answers have left their value at scores zero."""
    d = len(rest.total)
    z, y = rng.normal(size=(2, 8, d))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    # At scores zero everything together weighs k / (1 + k).
    flat = _SHARE * (z @ rest.total)
    scale = float(np.abs(flat).max())
    for exponent in range(-8, 12):
        side = 2.0**exponent
        moved = np.abs(rest.shares(side * z, side * y) / side - flat)
        if float(np.median(moved)) > 0.05 * scale:
            return side
    raise NoPairError


def _values(rest: _Rest, long: float, rng: np.random.Generator) -> Floats:
    """``v`` where scores saturate: the median over several tokens for each direction."""
    d = len(rest.total)
    z = np.linalg.qr(rng.normal(size=(d, d)))[0] * long
    found = []
    for _ in range(5):
        y = rng.normal(size=(d, d))
        y *= long / np.linalg.norm(y, axis=1, keepdims=True)
        found.append(rest.shares(z, y))
    shares = np.median(np.array(found), axis=0)
    return np.asarray(np.linalg.solve(z, (shares - _SHARE * (z @ rest.total)) / (1 - 2 * _SHARE)))


def _magnitudes(rest: _Rest, v: Floats, z: Floats, y: Floats) -> Floats:
    """``|z^T W y|`` for rows; NaN where the answer is outside what a pair can give."""
    mean = rest.total - 2 * v
    heights = z @ v
    share = (rest.shares(z, y) - _SHARE * (z @ mean)) / heights - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        cosh = ((COPIES**2 - 1) / share - COPIES**2 - 1) / (2 * COPIES)
        return np.asarray(np.arccosh(np.where(cosh < 1 - 1e-3, np.nan, np.maximum(cosh, 1.0))))


def _start(rest: _Rest, v: Floats, length: float, rng: np.random.Generator) -> Floats:
    """``W`` roughly, from directions and tokens near one pair with a score of two to five."""
    d = len(v)
    for _ in range(TRIES):
        candidates = rng.normal(size=(2, 64, d))
        candidates *= length / np.linalg.norm(candidates, axis=2, keepdims=True)
        z, y = candidates
        for _ in range(6):
            scores = _magnitudes(rest, v, z, y)
            good = np.flatnonzero((scores > 2) & (scores < 5))
            if good.size:
                break
            low = not float(np.nanmedian(scores)) > 3
            z, y = (1.5 * z, 1.5 * y) if low else (z / 1.5, y / 1.5)
        else:
            continue
        for at in good[np.argsort(-np.abs(z[good] @ v))][:TRIES]:
            lean = _LEAN
            for _ in range(4):
                rows = z[at] + _frame(z[at], lean, rng)
                columns = y[at] + _frame(y[at], lean, rng)
                pairs = np.repeat(rows, d, axis=0), np.tile(columns, (d, 1))
                found = _magnitudes(rest, v, *pairs).reshape(d, d)
                if np.isfinite(found).all() and found.min() > 0.5 and found.max() < 8:
                    left = np.linalg.solve(rows, found)
                    return np.asarray(np.linalg.solve(columns, left.T).T)
                lean /= 2
    raise NoPairError


def _frame(x: Floats, lean: float, rng: np.random.Generator) -> Floats:
    d = len(x)
    return np.asarray(
        np.linalg.qr(rng.normal(size=(d, d)))[0] * lean * float(np.linalg.norm(x)) / np.sqrt(d) * 2
    )


def _fitted(
    rest: _Rest, W: Floats, v: Floats, mean: Floats, unseen: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, tuple[float, float, float]]:
    """Least squares over fresh random sequences with scores of about two."""
    d = len(v)
    count = 2 * (d * d + 2 * d) + 40
    length = float(np.sqrt(2.0 * np.sqrt(d) / np.linalg.norm(W)))
    z, y = rng.normal(size=(2, count, d)) * length * d**-0.25
    tokens, values = rest.values(z, y)
    unknowns = np.concatenate([W.reshape(-1), v, mean])
    averages = tokens.mean(axis=1)

    def model(x: Floats) -> tuple[Floats, Floats]:
        matrix, vector = x[: d * d].reshape(d, d), x[d * d : d * d + d]
        first, by_first = head_and_slopes(matrix, vector, tokens)
        second, by_second = head_and_slopes(-matrix, vector, tokens)
        slopes = [by_first[:, : d * d] - by_second[:, : d * d]]
        slopes += [by_first[:, d * d :] + by_second[:, d * d :], averages]
        return first + second + averages @ x[-d:], np.concatenate(slopes, axis=1)

    fitted, slopes = model(unknowns)
    cost = float(np.sum((values - fitted) ** 2))
    damping = 1e-4
    for _ in range(_STEPS):
        scales = np.linalg.norm(slopes, axis=0)
        design = slopes / scales
        gram = design.T @ design + damping * np.eye(len(unknowns))
        step = np.linalg.solve(gram, design.T @ (values - fitted)) / scales
        trial, trial_slopes = model(unknowns + step)
        trial_cost = float(np.sum((values - trial) ** 2))
        if trial_cost < cost:
            gain = 1 - trial_cost / cost
            unknowns, fitted, slopes, cost = unknowns + step, trial, trial_slopes, trial_cost
            damping = max(damping / 10, 1e-15)
            if gain < 1e-3:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    reach = float(np.linalg.norm(tokens, axis=2).max())
    floor = rest.probe.noise.absolute
    floor += rest.probe.noise.unit * reach * float(np.linalg.norm(v)) * 8 + unseen * reach
    worst = float(np.abs(values - fitted).max())
    if worst > _EXPLAINED * floor:
        raise NoPairError
    scales = np.linalg.norm(slopes, axis=0)
    singular = np.linalg.svd(slopes / scales, full_matrices=False)
    inverse = (singular[2] / np.maximum(singular[1], 1e-300)[:, None]) / scales
    spread = max(float(np.sqrt(cost / (count - len(unknowns)))), 0.1 * floor)
    deviations = spread * np.sqrt((inverse**2).sum(axis=0))
    errors = (
        float(np.linalg.norm(deviations[: d * d])),
        float(np.linalg.norm(deviations[d * d : -d])),
        float(np.linalg.norm(deviations[-d:])),
    )
    return unknowns[: d * d].reshape(d, d), unknowns[d * d : -d], unknowns[-d:], errors
