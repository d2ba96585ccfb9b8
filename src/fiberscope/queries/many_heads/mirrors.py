r"""Heads from steps: which sign every head has, mirrored pairs, and the head without scores.

Two-token queries leave ``(W_h, w_h)`` open up to a common sign: a head ``(W, v)`` shows ``w = v``,
its mirror image ``(-W, v)`` shows ``w = -v``, both together show the difference, and a head with
``W = 0`` shows nothing. All their values add up to ``u``. Where the signs alone explain ``u`` they
are determined; otherwise ``k`` copies of ``y + z`` before ``y`` tell the sums ``a_h = v_h + v_-h``.
With ``L = log k``, ``s_h = z^T W_h y`` and the known parts taken away,

    sum_h (a_h^T z) ((sigma(L + s_h) + sigma(L - s_h)) / 2 - k / (1 + k)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.sweep import Bilinear, balanced_basis

Floats = NDArray[np.float64]

COPIES = 8
_CERTAIN = 1e-3
_SAFETY = 30.0


@dataclass(frozen=True)
class SignedHeads:
    """Heads with their estimated errors, shapes ``(H, d, d)``, ``(H, d)``, ``(H,)``, ``(H,)``."""

    W: Floats
    v: Floats
    W_errors: Floats
    v_errors: Floats
    note: str = ""


def signed_heads(
    probe: PairProbe, known: Bilinear, size: float, rng: np.random.Generator
) -> SignedHeads:
    """Choose signs from ``u`` alone if they are determined by it, else ask longer sequences.

    Parameters
    ----------
    probe
        Where to ask; holds ``u`` and the noise.
    known
        Heads up to sign.
    size
        2-norm of directions to ask.
    """
    total = probe.total
    doubt = float(np.linalg.norm(total)) * probe.noise.unit * 8 + probe.noise.absolute
    doubt = doubt * np.sqrt(len(total)) + float(known.w_errors.sum())
    lengths = np.linalg.norm(known.w, axis=1)
    if len(lengths):
        unit = known.w / lengths[:, None]
        solved, _, _, singular = np.linalg.lstsq(unit.T, total, rcond=None)
        signs = np.sign(solved)
        well = len(lengths) <= len(total) and singular[-1] > _CERTAIN
        left = float(np.linalg.norm(total - signs @ known.w))
        # The weakest head must stand out of the doubt, or its sign is not seen.
        seen = doubt / singular[-1] < 0.1 * lengths.min() if well else False
        if seen and left <= _SAFETY * doubt:
            return SignedHeads(
                known.W * signs[:, None, None],
                known.w * signs[:, None],
                known.W_errors,
                known.w_errors,
            )
    elif float(np.linalg.norm(total)) <= _SAFETY * doubt:
        d = len(total)
        return SignedHeads(np.zeros((0, d, d)), np.zeros((0, d)), np.zeros(0), np.zeros(0))
    return _from_copies(probe, known, size, rng)


def _from_copies(
    probe: PairProbe, known: Bilinear, size: float, rng: np.random.Generator
) -> SignedHeads:
    d, count = len(probe.total), len(known.w)
    rows, sums, errors = [], [], []
    shift = float(np.log(COPIES))
    constant = COPIES / (1 + COPIES)
    for row in balanced_basis(known.w, rng):
        if not count:
            break
        z = probe.direction(row * size, size)
        steps = known.steps(z)
        lengths = np.linalg.norm(steps.directions, axis=1)
        # Scores of about 2 L for one head after the other.
        points = rng.normal(size=(6 * (count + 1), d))
        scale = 2 * shift / lengths[np.arange(len(points)) % count]
        y = probe.points(z, points * scale[:, None])
        whole = 2 * probe.half(z)
        values = probe.values(z, y, 0.0, COPIES)
        scores = y @ steps.directions.T
        high, low = _sigma(shift + scores), _sigma(shift - scores)
        values = values - 0.5 * (high - low) @ steps.heights - whole * constant
        design = 0.5 * (high + low) - constant
        solved, _, _, singular = np.linalg.lstsq(design, values, rcond=None)
        residual = values - design @ solved
        freedom = len(values) - count
        floor = probe.noise.unit * abs(whole) + probe.noise.absolute
        spread = max(float(np.sqrt(residual @ residual / freedom)), floor)
        rows.append(z)
        sums.append(solved)
        errors.append(spread / singular[-1])
    a = np.linalg.solve(np.array(rows), np.array(sums)).T if count else np.zeros((0, d))
    doubt = float(np.linalg.norm(errors)) / size
    heads: list[tuple[Floats, Floats, float, float]] = []
    both = 0
    for h in range(count):
        plus, minus = 0.5 * (a[h] + known.w[h]), 0.5 * (a[h] - known.w[h])
        W, error = known.W[h], float(known.W_errors[h])
        small = _SAFETY * (doubt + float(known.w_errors[h]))
        if np.linalg.norm(minus) <= small:
            heads.append((W, known.w[h], error, float(known.w_errors[h])))
        elif np.linalg.norm(plus) <= small:
            heads.append((-W, -known.w[h], error, float(known.w_errors[h])))
        else:
            heads += [(W, plus, error, doubt), (-W, minus, error, doubt)]
            both += 1
    rest = probe.total - sum((head[1] for head in heads), start=np.zeros(d))
    missing = _SAFETY * (doubt + sum(head[3] for head in heads))
    missing += _SAFETY * float(np.linalg.norm(probe.total)) * probe.noise.unit
    notes = [f"{both} pairs of heads W, -W"] if both else []
    if np.linalg.norm(rest) > missing:
        heads.append((np.zeros((d, d)), rest, 0.0, missing / _SAFETY))
        notes.append("a head with W = 0, which averages")
    return SignedHeads(
        np.array([head[0] for head in heads]).reshape(-1, d, d),
        np.array([head[1] for head in heads]).reshape(-1, d),
        np.array([head[2] for head in heads]),
        np.array([head[3] for head in heads]),
        "told apart by longer sequences" + (": " + ", ".join(notes) if notes else ""),
    )


def _sigma(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
