r"""One head from ``d + d^2`` queries of length at most two.

``f([x]) = x^T v`` gives ``v``. With ``g(z, y) = f([y + z; y]) - y^T v = (z^T v) sigma(z^T W y)``
every pair ``(z, y)`` gives one number ``z^T W y``: the logit of ``g / z^T v``. A basis of ``z``,
none orthogonal to ``v``, and a basis of ``y`` give ``W``.

Bhattamishra et al., "Provably Learning Attention with Queries" (arXiv 2601.16873), Theorem 4.1.
There ``y`` runs through the unit vectors and ``z`` is Gaussian; here the ``z`` all lean towards
``v``, and the scales are chosen so that floating point loses least: a large
``z`` with a small ``y`` leaves ``z^T W y`` and makes ``y^T v`` small beside ``z^T v``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.result import BoundKind, Estimate, NotRecoveredError, Precision
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.token_scale import TokenScale

ALLOWANCE = 1.5
"""Factor on the noise of an answer in stated bounds."""
_RATIO = 16.0
_ROUNDS = 6
COARSE, FEW_BITS, FEW_NOISY_BITS = 2.0**-12, 8.0, 12.0
"""Unit roundoff above which, and bits below which, several designs are averaged; and bits below
which they are fitted together, where answers differ from call to call."""
LEAST_BITS = 4
"""Averages of fewer stated bits are none: two heads can look like one there."""
_FLAT_SCORE = 0.1
_FLAT, _STEEP = 0.3, 5.0
"""Scores that are asked again at another scale: below the first, above the second."""


@dataclass
class Scores:
    """Measured numbers ``z_i^T W y_j``.

    Attributes
    ----------
    z, y
        Rows, as sent: shapes ``(m, d)`` and ``(n, d)``; row ``j`` of ``y`` is scaled by
        ``scale[j]``.
    value, error
        Shape ``(m, n)``: ``z_i^T W y_j`` for the unscaled ``y_j``, and a bound on its error.
        NaN where not measured.
    """

    z: NDArray[np.float64]
    y: NDArray[np.float64]
    value: NDArray[np.float64]
    error: NDArray[np.float64]


def value_vector(
    session: QuerySession, noise: NoiseLevel, size: float
) -> tuple[NDArray[np.float64], float]:
    """``v`` from ``d`` sequences of one token, and a bound on its error in the 2-norm.

    Tokens are the coordinate directions times ``size`` (a power of two).
    """
    d = session.width
    step = 2.0 ** np.floor(np.log2(size))
    answers = session.ask(step * np.eye(d)[:, None, :], Purpose.RECOVERY)
    if not np.isfinite(answers).all():
        raise NotRecoveredError("an answer to a single token is not finite")
    v = answers / step
    errors = ALLOWANCE * noise.bound(np.abs(answers)) / step
    return v, float(np.linalg.norm(errors))


def leaning_directions(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows with equal products ``|v| (1 + 1 / sqrt(d))`` with ``v``, shape ``(d, d)``.

    Orthonormal rows with products ``|v| / sqrt(d)`` each, plus ``v / |v|``. Singular values are 1,
    and ``1 + sqrt(d)`` once: the inverse loses nothing, and no product is small beside the norms.
    """
    d = len(v)
    direction = v / np.linalg.norm(v)
    # The reflection that carries (1, .., 1) / sqrt(d) to the direction.
    normal = np.full(d, 1 / np.sqrt(d)) - direction
    length = np.linalg.norm(normal)
    turned = np.eye(d)
    if length > 1e-8:
        normal /= length
        turned -= 2 * np.outer(normal, normal)
    return np.asarray(turned + direction)


def measure_scores(
    session: QuerySession,
    noise: NoiseLevel,
    v: NDArray[np.float64],
    v_error: float,
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    wanted: NDArray[np.bool_],
    largest: float = np.inf,
) -> Scores:
    """Measure ``z_i^T W y_j`` for the wanted pairs, asking badly scaled columns again.

    Parameters
    ----------
    session, noise
        The oracle and its errors.
    v, v_error
        The value vector and the bound on its error.
    z, y
        Rows to pair, shapes ``(m, d)`` and ``(n, d)``.
    wanted
        Which pairs, shape ``(m, n)``.
    largest
        Largest 2-norm of a token.

    Raises
    ------
    NotRecoveredError
        If an answer lies outside what one head with this ``v`` can give, beyond the noise.
    """
    m, n = wanted.shape
    result = Scores(z, y, np.full((m, n), np.nan), np.full((m, n), np.inf))
    scale, best = np.ones(n), np.full(n, np.inf)
    columns = np.flatnonzero(wanted.any(axis=0)).tolist()
    # One column shows the scale for all, which saves asking all of them again.
    for turn, chosen in enumerate((columns[:1], columns[1:])):
        if turn and chosen:
            known = np.abs(result.value[:, columns[0]] * scale[columns[0]])
            typical = float(np.nanmax(known, initial=0.0))
            scale[chosen] = scale[columns[0]]
            if _FLAT < typical < _STEEP:
                scale[chosen] *= 2 / typical
        active = list(chosen)
        for attempt in range(_ROUNDS):
            if not active:
                break
            rows, places = np.nonzero(wanted[:, active])
            asked = np.array(active)[places]
            value, error = _logits(
                session,
                noise,
                v,
                v_error,
                z[rows],
                y[asked] * scale[asked, None],
                largest,
                Purpose.RETRIES if attempt else Purpose.RECOVERY,
            )
            again = []
            for j in active:
                here = asked == j
                worst = float(np.sqrt(np.sum((error[here] / scale[j]) ** 2)))
                if worst < best[j] or not np.isfinite(best[j]):
                    best[j] = worst
                    result.value[rows[here], j] = value[here] / scale[j]
                    result.error[rows[here], j] = error[here] / scale[j]
                if _rescale(scale, j, value[here], error[here]):
                    again.append(j)
            active = again
    return result


def _rescale(
    scale: NDArray[np.float64],
    column: int,
    value: NDArray[np.float64],
    error: NDArray[np.float64],
) -> bool:
    """Choose another scale for a column whose scores are all tiny or partly saturated."""
    largest = float(np.abs(value[np.isfinite(value)]).max(initial=0.0))
    if not np.isfinite(error).all() or largest > _STEEP:
        # A saturated answer does not say how far it is: go down quickly.
        scale[column] /= 32.0 if not np.isfinite(error).all() else largest / 2
        return True
    if largest < _FLAT and largest > 2 * float(error.max()):
        scale[column] *= min(2 / largest, 2.0**12)
        return True
    if largest < _FLAT and scale[column] < 2.0**8 and scale[column] >= 1:
        scale[column] *= 32.0
        return True
    return False


def _logits(
    session: QuerySession,
    noise: NoiseLevel,
    v: NDArray[np.float64],
    v_error: float,
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    largest: float,
    purpose: Purpose,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``z^T W y`` for pairs of rows, and bounds on the errors (infinite where saturated)."""
    reach = np.linalg.norm(z, axis=1) + np.linalg.norm(y, axis=1)
    shrink = np.minimum(1.0, 0.99 * largest / reach)[:, None]
    last = session.representable(y * shrink)
    first = session.representable(z * shrink + last)
    answers = session.ask(np.stack([first, last], axis=1), purpose)
    # What was sent, not what was meant; the difference is exact but for one rounding.
    sent = first - last
    height = sent @ v
    norms = np.linalg.norm(sent, axis=1), np.linalg.norm(last, axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = (answers - last @ v) / height
        size = np.linalg.norm(v) * np.maximum(norms[0], norms[1])
        wrong = ALLOWANCE * noise.bound(3 * size) + v_error * (norms[0] + norms[1])
        wrong = wrong / np.abs(height)
        low, high = share - wrong, share + wrong
        if bool(np.any((high < 0) | (low > 1))):
            raise NotRecoveredError(
                "one head cannot give these answers within the measured noise: an attention weight "
                "would lie outside 0..1; allow more heads (--heads-at-most)"
            )
        score = np.log(share / (1 - share))
        upper, lower = np.log(high / (1 - high)), np.log(low / (1 - low))
        error = np.maximum(upper - score, score - lower)
    saturated = ~np.isfinite(answers) | ~(low > 0) | ~(high < 1) | ~np.isfinite(error)
    # Rounding of the score inside the oracle, and of the tokens on the way.
    error = error + ALLOWANCE * noise.unit * (1 + np.abs(score))
    error[saturated] = np.inf
    # Scores are those of the tokens sent; undo the shrinking.
    factor = (shrink[:, 0]) ** 2
    return score / factor, error / factor


def recover_one_head(
    session: QuerySession, noise: NoiseLevel, scale: TokenScale, rng: np.random.Generator
) -> Estimate:
    """The head of a one-head oracle in floating point: ``d + d^2`` queries, and retries apart.

    Parameters
    ----------
    session
        The oracle.
    noise, scale
        From the class tests.
    rng
        Turns the basis of ``y``.

    Raises
    ------
    NotRecoveredError
        If the answers are not those of one head, or the noise hides it.
    """
    d = session.width
    large, small = probe_sizes(scale)
    v, v_error = value_vector(session, noise, min(large, scale.largest))
    if not np.linalg.norm(v) > v_error:
        return no_heads(d, v_error)
    if noise.unit > COARSE:
        return _averaged(session, noise, v, v_error, scale, rng)
    z = large * leaning_directions(v)
    y = small * random_rotation(d, rng)
    try:
        scores = measure_scores(
            session, noise, v, v_error, z, y, np.ones((d, d), dtype=bool), scale.largest
        )
    except NotRecoveredError:
        if noise.repeatable:
            raise
        # Single answers behind noise are no proof: many together decide.
        return _averaged(session, noise, v, v_error, scale, rng)
    # The inverses of both bases have norms 1 / large and 1 / small.
    W = np.linalg.solve(z, np.linalg.solve(y, scores.value.T).T)
    W_error = float(np.linalg.norm(scores.error)) / (large * small)
    method = "one head, d + d^2 queries"
    found = one_head_estimate(W, v, W_error, v_error, method, scale.size)
    few = FEW_BITS if noise.repeatable else FEW_NOISY_BITS
    if found.precision.W[0] < few and np.linalg.norm(W) > 0:
        again = _averaged(session, noise, v, v_error, scale, rng)
        if not noise.repeatable or not np.isfinite(W_error):
            return again
        if again.precision.W[0] > found.precision.W[0]:
            return again
    return found


def _averaged(
    session: QuerySession,
    noise: NoiseLevel,
    v: NDArray[np.float64],
    v_error: float,
    scale: TokenScale,
    rng: np.random.Generator,
) -> Estimate:
    """Several designs where one leaves few digits; all together behind noise."""
    if not noise.repeatable:
        from fiberscope.queries.one_head_fit import fit_one_head

        return fit_one_head(session, noise, scale, v, rng)
    from fiberscope.queries.one_head_average import DESIGNS, averaged_scores

    found = averaged_scores(session, v, scale, rng, noise)
    if found is None:
        raise NotRecoveredError("some scores stayed hidden at every scale of the probes")
    W, W_error, predicted = found
    estimate = one_head_estimate(
        W,
        v,
        W_error,
        v_error,
        f"one head, mean of {DESIGNS} designs of d^2 queries",
        scale.size,
        "three standard errors, from the spread between independent designs",
    )
    if estimate.precision.W[0] < LEAST_BITS:
        raise NotRecoveredError(
            f"the noise hides the weights: {DESIGNS} designs leave fewer than {LEAST_BITS} bits"
        )
    # A wrong model spreads as well, and must not excuse itself by that: grant what noise predicts.
    size = float(np.linalg.norm(W))
    explained = min(W_error, 3 * predicted) / size if size > 0 else 0.0
    return replace(estimate, explained=explained)


def probe_sizes(scale: TokenScale) -> tuple[float, float]:
    """Lengths of ``z`` and ``y``: their product is that of tokens with scores of order one."""
    large = 2.0 ** np.floor(np.log2(_RATIO * scale.size))
    while large > 0.5 * scale.largest:
        large /= 2
    return large, scale.size**2 / large


def random_rotation(d: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Orthogonal matrix, uniform."""
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray(q * np.sign(np.diag(r)))


def no_heads(d: int, v_error: float, method: str = "no head") -> Estimate:
    """The zero function: without values nothing shows scores."""
    how = f"the value vector vanishes within {v_error:.2g}"
    heads = AttentionHeads(np.zeros((0, d, d)), np.zeros((0, d)))
    precision = Precision((), (), BoundKind.CONDITIONAL, how)
    return Estimate(heads, precision, method, (f"{how}: scores cannot show",))


def one_head_estimate(
    W: NDArray[np.float64],
    v: NDArray[np.float64],
    W_error: float,
    v_error: float,
    method: str,
    token_size: float,
    how: str = "the measured noise propagated through every logit and both bases",
    notes: tuple[str, ...] = (),
) -> Estimate:
    """Package one head with bits from bounds on its errors (Frobenius and 2-norm).

    ``token_size`` is that of `TokenScale`: a ``W`` within its error of zero counts as zero only if
    that error is too small to move scores there, otherwise it is hidden (0 bits).
    """
    size = float(np.linalg.norm(W)) - W_error
    if size <= 0 and W_error * token_size**2 <= _FLAT_SCORE:
        size = 1.0
        notes = (*notes, f"W is zero within {W_error:.2g}: the head is a plain mean")
    precision = Precision(
        (bits(W_error, size),),
        (bits(v_error, float(np.linalg.norm(v)) - v_error),),
        BoundKind.CONDITIONAL,
        how,
    )
    return Estimate(AttentionHeads(W[None], v[None]), precision, method, notes)


def bits(error: float, size: float) -> float:
    """``-log2(error / size)`` between 0 and 1074."""
    if size <= 0:
        return 0.0
    return float(np.clip(np.log2(size) - np.log2(error), 0.0, 1074.0)) if error > 0 else 1074.0
