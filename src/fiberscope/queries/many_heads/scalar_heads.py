r"""Heads of width one, where no circle of tokens exists: steps that differ in steepness only.

With ``p = z y`` and ``L = log k`` the answer to ``k`` copies of ``y + z`` before ``y`` is

    u y + z sum_h v_h sigma(L + w_h p).

For ``k = 1`` all steps cross at ``p = 0``; for larger ``k`` at ``-L / w_h``, apart from each other.
On a grid of ``k`` and ``p`` the values ``v_h`` are linear: steepnesses are added one by one, from a
grid or beside one that is there, and refined together until the errors explain what is left.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.mirrors import SignedHeads
from fiberscope.queries.many_heads.pairs import PairProbe

Floats = NDArray[np.float64]

COPIES = (1, 8, 64, 512)
OCTAVES, EACH = 12, 3
"""Powers of two of ``p`` on either side of one, and points in each."""
MOST = 6
"""Most heads."""
_POWERS = 2.0 ** np.arange(-10, 10.01, 0.5)
_STEEPNESSES = np.concatenate([[0.0], _POWERS, -_POWERS])
_EXPLAINED = 32.0
_APART = (0.4, 0.2, 0.1, 0.03, 0.01, 0.003)
_TRIED = 10
_USUAL = 4.0
"""Standard errors that the largest of some hundred residuals reaches, or more."""
_SAFETY = 8.0
"""Times the errors of two steepnesses that must lie between them."""


class NoScalarHeadsError(Exception):
    """No few heads explain the answers."""


def scalar_heads(probe: PairProbe, limit: int) -> SignedHeads:
    """Heads of an oracle of width one.

    Parameters
    ----------
    probe
        Where to ask; holds ``u`` and the noise.
    limit
        Most heads; one more is tried, to tell that there are more.

    Raises
    ------
    NoScalarHeadsError
        If no such number of heads explains the answers.
    """
    shifts, products, values, floor = _answers(probe)
    tried = _columns(_STEEPNESSES, shifts, products)
    size = float(np.abs(values).max(initial=0.0))
    if size <= _EXPLAINED * floor:
        return _signed(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))
    best, last = np.zeros(0), np.inf
    for count in range(1, min(limit + 1, MOST) + 1):
        least = np.inf
        for start in _starts(tried, best, shifts, products, values, count):
            w, v, worst, errors = _refined(start, shifts, products, values)
            # Heads that nearly cancel are rounded by their own size.
            if worst <= _EXPLAINED * (floor + probe.noise.unit * float(np.abs(v).sum())):
                spread = max(errors[2], 0.1 * floor)
                w_errors, v_errors = spread * errors[0], spread * errors[1]
                gaps = np.abs(w[:, None] - w) + np.diag(np.full(count, np.inf))
                if (gaps < _SAFETY * (w_errors[:, None] + w_errors)).any():
                    raise NoScalarHeadsError
                # A steepness within its error of none is a plain average.
                flat = np.abs(w) <= 30 * w_errors
                w_errors = np.where(flat, w_errors + np.abs(w), w_errors)
                return _signed(np.where(flat, 0.0, w), v, w_errors, v_errors)
            if errors[2] < least:
                least, refined = errors[2], w
        if count > 2 and least > 0.7 * last:  # another function: more heads do not help
            break
        best, last = refined, least
    raise NoScalarHeadsError


def _signed(w: Floats, v: Floats, w_errors: Floats, v_errors: Floats) -> SignedHeads:
    note = "width one: steepnesses told apart by up to 512 copies"
    return SignedHeads(w.reshape(-1, 1, 1), v.reshape(-1, 1), w_errors, v_errors, note)


def _answers(probe: PairProbe) -> tuple[Floats, Floats, Floats, float]:
    """``L``, ``p``, ``sum_h v_h sigma(L + w_h p)``, and the size of their errors."""
    session, total = probe.session, float(probe.total[0])
    sizes = 2.0 ** (np.arange(-OCTAVES * EACH, OCTAVES * EACH + 1) / EACH)
    shifts, products, values, bounds = [], [], [], []
    for copies in COPIES:
        # z is longer than y: little is lost where u y is taken away.
        z = np.tile(np.sqrt(sizes), 2)
        y = np.concatenate([np.sqrt(sizes), -np.sqrt(sizes)])
        y = session.representable(y)
        first = session.representable(y + 4 * z)
        tokens = np.repeat(first[:, None], copies + 1, axis=1)
        tokens[:, -1] = y
        answers = session.ask(tokens[:, :, None], probe.purpose)
        z = first - y
        kept = np.isfinite(answers) & (z != 0)
        shifts.append(np.full(int(kept.sum()), np.log(copies)))
        products.append((z * y)[kept])
        values.append(((answers - y * total) / z)[kept])
        bounds.append(((np.abs(answers) + np.abs(y * total)) / np.abs(z))[kept])
    noise = probe.noise
    smallest = float(np.sqrt(sizes[0]))
    floor = noise.unit * (float(np.concatenate(bounds).max(initial=0.0)) + abs(total))
    floor += noise.absolute / smallest
    return np.concatenate(shifts), np.concatenate(products), np.concatenate(values), floor


def _columns(w: Floats, shifts: Floats, products: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * (shifts[:, None] + np.outer(products, w)))))


def _starts(
    tried: Floats,
    best: Floats,
    shifts: Floats,
    products: Floats,
    values: Floats,
    count: int,
) -> list[Floats]:
    """Steepnesses to start from, the best first."""
    trials: list[Floats] = [np.append(best, w) for w in _STEEPNESSES]
    if count == 2:
        trials = [_STEEPNESSES[list(places)] for places in _best_pairs(tried, values)]
    for h in range(len(best)):
        # Two that are close look like one between them.
        for apart in _APART:
            split = np.append(best, best[h] * (1 + apart))
            split[h] = best[h] * (1 - apart)
            trials.append(split)
    ranked = [(_left(_columns(w, shifts, products), values), i) for i, w in enumerate(trials)]
    return [trials[i] for _, i in sorted(ranked)[:_TRIED]]


def _best_pairs(tried: Floats, values: Floats) -> list[tuple[int, int]]:
    gram, right = tried.T @ tried, tried.T @ values
    pairs = []
    for i, j in itertools.combinations(range(tried.shape[1]), 2):
        a, b, c = gram[i, i], gram[i, j], gram[j, j]
        determinant = a * c - b * b
        if determinant > 1e-12 * a * c:
            first, second = c * right[i] - b * right[j], a * right[j] - b * right[i]
            pairs.append((-(right[i] * first + right[j] * second) / determinant, (i, j)))
    return [places for _, places in sorted(pairs)[:_TRIED]]


def _left(design: Floats, values: Floats) -> float:
    solved, *_ = np.linalg.lstsq(design, values, rcond=None)
    return float(np.sum((values - design @ solved) ** 2))


def _refined(
    start: Floats, shifts: Floats, products: Floats, values: Floats
) -> tuple[Floats, Floats, float, tuple[Floats, Floats, float]]:
    """Steepnesses, values, the worst residual, standard errors for unit errors, and the spread."""
    from scipy.optimize import least_squares

    count = len(start)
    first, *_ = np.linalg.lstsq(_columns(start, shifts, products), values, rcond=None)

    def residuals(x: Floats) -> Floats:
        return np.asarray(_columns(x[:count], shifts, products) @ x[count:] - values)

    def slopes(x: Floats) -> Floats:
        share = _columns(x[:count], shifts, products)
        by_w = share * (1 - share) * products[:, None] * x[count:]
        return np.concatenate([by_w, share], axis=1)

    solved = least_squares(
        residuals,
        np.concatenate([start, first]),
        slopes,
        method="lm",
        x_scale="jac",
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=80,
    )
    left, design = solved.fun, slopes(solved.x)
    errors = _errors_with_splits(design, solved.x[:count], shifts, products)
    spread = float(np.sqrt(left @ left / max(1, len(left) - 2 * count)))
    worst = float(np.abs(left).max())
    # Rounding differs from point to point: a single large residual counts as well.
    spread = max(spread, worst / _USUAL)
    return (
        solved.x[:count],
        solved.x[count:],
        worst,
        (errors[:count], errors[count:], spread),
    )


def _errors_with_splits(design: Floats, w: Floats, shifts: Floats, products: Floats) -> Floats:
    """Standard errors of all unknowns for unit errors, if one step may be two that nearly agree.

    Two near steepnesses show one step and a multiple of its second derivative by the steepness.
    What cannot be told from such a part, beside the other steps, is not known: the largest errors
    over the step that carries it.
    """
    share = _columns(w, shifts, products)
    bends = share * (1 - share) * (1 - 2 * share) * products[:, None] ** 2
    worst = np.zeros(design.shape[1])
    for bend in bends.T:
        wider = np.concatenate([design, bend[:, None]], axis=1)
        scales = np.linalg.norm(wider, axis=0)
        scales = np.where(scales > 0, scales, 1.0)
        _, singular, right = np.linalg.svd(wider / scales, full_matrices=False)
        combined = right / np.maximum(singular, 1e-100)[:, None]
        errors = np.linalg.norm(combined, axis=0) / scales
        worst = np.maximum(worst, errors[: design.shape[1]])
    return worst
