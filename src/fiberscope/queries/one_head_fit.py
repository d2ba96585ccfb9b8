r"""One head behind answers that differ from call to call: all of it fitted, and tested for more.

Every query is asked twice. ``W`` and ``v`` are fitted together to the means by weighted least
squares; the differences show the errors without any model. With residuals ``r_i`` of the means and
differences ``e_i``, both ``r_i^2`` and ``e_i^2 / 4`` have the variance of a mean as their
expectation if the oracle is one head (residuals a little less, by the leverages ``h_i``), whatever
that variance is. So

    T_i = w_i (r_i^2 - (1 - h_i) e_i^2 / 4),    Z = sum T_i / sqrt(sum T_i^2)

is about standard normal, while a bias ``b_i`` that one head does not absorb adds
``sum w_i b_i^2``: behind errors of size ``s``, ``n`` queries show a bias of about ``s n^(-1/4)``.
The same sum, for random further heads, states the smallest that would have been seen. More queries
are asked until that is small, or a limit is met.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.one_head import LEAST_BITS, one_head_estimate, probe_sizes
from fiberscope.queries.one_head_average import bases, tuned_length
from fiberscope.queries.result import Estimate, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.token_scale import TokenScale

Floats = NDArray[np.float64]

FIRST, LEAST, MOST = 256, 4, 512
"""Queries and designs of ``d^2`` queries at first, at least; and designs at most."""
SMALL, LARGEST = 16_384, 60_000
"""Queries, each asked twice: so many are allowed at every width, and no more designs are added
beyond the second."""
WANTED_HEAD, WANTED_BITS = 0.1, LEAST_BITS + 1.0
"""More is asked until a further head of this size relative to the first would be seen, and so many
bits are stated."""
HIDDEN_HEAD = 0.5
"""Where a further head as large as this could hide, nothing is returned."""
TOO_FAR, POWER = 4.0, 2.0
"""Standard errors of the test sum that refuse one head, and further ones by which a head that is
stated as visible exceeds them."""
FURTHER, SHARE = 60, 0.95
"""Random further heads, and the share of them that the stated size holds for."""
_STEEPNESS = (0.5, 1.0, 2.0)
_ROUNDS = 60
_STEPS = 40


@dataclass(frozen=True)
class _Fit:
    W: Floats
    v: Floats
    W_error: float
    v_error: float
    excess: float  # Z
    further: float  # smallest further head, relative to the first


def fit_one_head(
    session: QuerySession,
    noise: NoiseLevel,
    scale: TokenScale,
    v: Floats,
    rng: np.random.Generator,
) -> Estimate:
    """The head of a one-head oracle whose answers are noisy, with a statement on further heads.

    Parameters
    ----------
    session, noise, scale
        The oracle, and what the class tests found.
    v
        A first value vector, shape ``(d,)``.
    rng
        Draws the designs and the further heads.

    Raises
    ------
    NotRecoveredError
        If one head does not explain the answers, or too little shows behind the noise.
    """
    d = len(v)
    large, small = probe_sizes(scale)
    tuned = tuned_length(session, v, large, small, rng)
    if tuned is None:
        raise NotRecoveredError("an answer is not finite")
    tokens = np.zeros((0, 2, d))
    pairs = np.zeros((0, 2))
    found: _Fit | None = None
    designs, done = max(LEAST, -(-FIRST // d**2)), 0
    while True:
        fresh = _design(session, v, large, tuned, designs - done, rng)
        purpose = Purpose.RETRIES if done else Purpose.RECOVERY
        answers = [session.ask(fresh, purpose, repetition=k) for k in (0, 1)]
        tokens = np.concatenate([tokens, fresh])
        pairs = np.concatenate([pairs, np.stack(answers, axis=1)])
        if not np.isfinite(pairs).all():
            raise NotRecoveredError("an answer is not finite")
        start = (np.zeros((d, d)), v) if found is None else (found.W, found.v)
        found = _fitted(tokens, pairs, start, rng)
        done = designs
        size = float(np.linalg.norm(found.W))
        enough = found.W_error * 2.0**WANTED_BITS <= size and found.further <= WANTED_HEAD
        most = min(max(MOST * d * d, SMALL), LARGEST)
        if enough or found.excess > TOO_FAR or 2 * len(tokens) > most:
            break
        designs = 2 * done
    if found.excess > TOO_FAR:
        raise NotRecoveredError(
            f"one head does not explain the answers: {len(tokens)} queries deviate from the best "
            f"one by {found.excess:.1f} standard errors more than repeated answers differ; allow "
            "more heads (--heads-at-most)"
        )
    estimate = one_head_estimate(
        found.W,
        found.v,
        found.W_error,
        found.v_error,
        f"one head, least squares over {len(tokens)} queries asked twice",
        scale.size,
        "three standard errors of the fit, errors from repeated answers",
        (
            f"a further head below {found.further:.2g} times this one in values would not have "
            f"been seen behind the noise ({SHARE:.0%} of random heads; 0.5 to 2 times its scores)",
        ),
    )
    if estimate.precision.W[0] < LEAST_BITS:
        raise NotRecoveredError(
            f"the noise hides the weights: {len(tokens)} queries asked twice leave fewer than "
            f"{LEAST_BITS} bits"
        )
    if found.further > HIDDEN_HEAD:
        raise NotRecoveredError(
            f"the noise hides too much: a further head of {found.further:.2g} times the first "
            f"would not be seen in {len(tokens)} queries asked twice"
        )
    return replace(estimate, further_head=found.further)


def _design(
    session: QuerySession,
    v: Floats,
    large: float,
    small: float,
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Two-token sequences ``[y + z; y]`` for all pairs of some bases, shape ``(n, 2, d)``."""
    d, parts = len(v), []
    for _ in range(count):
        z, y = bases(v, large, small, rng)
        last = session.representable(np.repeat(y, d, axis=0))
        parts.append(np.stack([session.representable(np.tile(z, (d, 1)) + last), last], axis=1))
    return np.concatenate(parts)


def head_and_slopes(W: Floats, v: Floats, tokens: Floats) -> tuple[Floats, Floats]:
    """Answers of one head at sequences ``(n, N, d)``, and derivatives by ``W`` and ``v``.

    Shapes ``(n,)`` and ``(n, d^2 + d)``: with weights ``p`` and answer ``f``, by ``v``
    ``sum_i p_i x_i``, by ``W`` ``(sum_i p_i (x_i^T v - f) x_i) x_N^T``.
    """
    scores = np.einsum("nid,nd->ni", tokens, tokens[:, -1] @ W.T)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mean = np.einsum("ni,nid->nd", p, tokens)
    values = tokens @ v
    f = np.einsum("ni,ni->n", p, values)
    key = np.einsum("ni,nid->nd", p * (values - f[:, None]), tokens)
    by_W = (key[:, :, None] * tokens[:, -1][:, None, :]).reshape(len(tokens), -1)
    return f, np.concatenate([by_W, mean], axis=1)


def _fitted(
    tokens: Floats, pairs: Floats, start: tuple[Floats, Floats], rng: np.random.Generator
) -> _Fit:
    d, n = tokens.shape[2], len(tokens)
    means, squares = pairs.mean(axis=1), 0.25 * (pairs[:, 0] - pairs[:, 1]) ** 2
    W, v = start
    weights = np.full(n, 1 / max(float(squares.mean()), 1e-300))
    # Weights follow the fit: errors are often in proportion to what is answered.
    for _ in range(3):
        W, v = _descended(tokens, means, weights, W, v)
        weights = 1 / _variances(squares, head_and_slopes(W, v, tokens)[0])
    answers, slopes = head_and_slopes(W, v, tokens)
    root = np.sqrt(weights)
    left, singular, right = np.linalg.svd(slopes * root[:, None], full_matrices=False)
    if singular[-1] <= 1e-9 * singular[0]:
        raise NotRecoveredError("the answers do not determine the weights of one head")
    residuals = (means - answers) * root
    leverage = np.einsum("ij,ij->i", left, left)
    terms = residuals**2 - (1 - leverage) * squares * weights
    spread = float(np.linalg.norm(terms))
    freedom = n - d * d - d
    chi = max(1.0, float(residuals @ residuals) / freedom)
    errors = np.sqrt(chi * np.sum((right / singular[:, None]) ** 2, axis=0))
    hidden = np.array([_shown(tokens, root, left, W, v, rng) for _ in range(FURTHER)])
    least = float(np.quantile(hidden, 1 - SHARE))
    further = np.sqrt((TOO_FAR + POWER) * spread / least) if least > 0 else np.inf
    return _Fit(
        W,
        v,
        3 * float(np.linalg.norm(errors[: d * d])),
        3 * float(np.linalg.norm(errors[d * d :])),
        float(terms.sum()) / spread,
        float(further),
    )


def _shown(
    tokens: Floats, root: Floats, left: Floats, W: Floats, v: Floats, rng: np.random.Generator
) -> float:
    """``sum w b^2`` for a random further head as strong as this one, after one head's best fit."""
    d = len(v)
    matrix, vector = rng.standard_normal((d, d)), rng.standard_normal(d)
    matrix *= rng.choice(_STEEPNESS) * np.linalg.norm(W) / np.linalg.norm(matrix)
    vector *= np.linalg.norm(v) / np.linalg.norm(vector)
    answers = AttentionHeads(matrix[None], vector[None]).evaluate_many(tokens) * root
    left_over = answers - left @ (left.T @ answers)
    return float(left_over @ left_over)


def _variances(squares: Floats, answers: Floats) -> Floats:
    """Variances of means as ``a + b f^2``, fitted to squared differences of repeated answers."""
    from scipy.optimize import nnls

    shape = answers**2 / max(float(np.mean(answers**2)), 1e-300)
    # Squared differences scatter in proportion to their size: weigh them by a first guess.
    guess = np.full(len(squares), max(float(squares.mean()), 1e-300))
    floor = 1e-3 * guess
    for _ in range(3):
        design = np.stack([np.ones(len(shape)), shape], axis=1) / guess[:, None]
        solved, _ = nnls(design, squares / guess)
        guess = np.maximum(solved[0] + solved[1] * shape, floor)
    return np.asarray(guess)


def _descended(
    tokens: Floats, means: Floats, weights: Floats, W: Floats, v: Floats
) -> tuple[Floats, Floats]:
    """Levenberg-Marquardt for the weighted squares."""
    d = len(v)
    root, damping = np.sqrt(weights), 1e-3
    answers, slopes = head_and_slopes(W, v, tokens)
    cost = float(np.sum(((means - answers) * root) ** 2))
    for _ in range(_STEPS):
        design = slopes * root[:, None]
        gram = design.T @ design
        gradient = design.T @ ((means - answers) * root)
        scaled = gram + damping * np.diag(np.diag(gram) + 1e-12 * np.trace(gram))
        step = np.linalg.solve(scaled, gradient)
        trial = W + step[: d * d].reshape(d, d), v + step[d * d :]
        new_answers, new_slopes = head_and_slopes(*trial, tokens)
        new_cost = float(np.sum(((means - new_answers) * root) ** 2))
        if new_cost < cost:
            gain = 1 - new_cost / cost
            (W, v), answers, slopes, cost = trial, new_answers, new_slopes, new_cost
            damping = max(damping / 5, 1e-12)
            if gain < 1e-7:
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    return W, v
