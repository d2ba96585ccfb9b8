r"""One head when every answer may be wrong by ``tau``: clipped logits and a stated guarantee.

With tokens of 2-norm at most ``R`` take ``q_i`` of norm at most 2, all with the same ``q_i^T v`` of
at least ``|v|``, and ask ``[b q_i + a e_j; a e_j]`` with ``2 b + a <= R``. The attention weight
``p = sigma(a b q_i^T W e_j)`` is then known to ``delta = (tau + ...) / (b |v|)``. Inside
``sigma(-1/2) .. sigma(1/2)`` the logit's slope is below 5, so
``|logit(clip(p')) - logit(p)| <= 5 |p' - p|`` and ``|W' - W|_F <= 5 |delta|_F / (a b)``.

Bhattamishra et al. (arXiv 2601.16873), Theorem 6.1, choose ``a = 1/2`` and ``b = 1 / B`` from a
known bound ``B`` on ``|W|_F``, and need every ``|v_i|`` above a margin. Here the answers show how
far scores reach (``p`` is monotone in them), ``a`` is halved where that is too far, and directions
that lean towards ``v`` replace the margin by ``|v|``. The guarantee holds for every pattern of
errors within ``tau``, not on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.one_head import leaning_directions, no_heads, one_head_estimate
from fiberscope.queries.result import Estimate, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.token_scale import TokenScale

LOGIT_BOUND = 0.5
LIPSCHITZ = 5.0
"""Above ``1 / (p (1 - p))`` for ``p`` between ``sigma(-1/2)`` and ``sigma(1/2)``, which is 4.26."""
_LOW, _HIGH = 1 / (1 + np.exp(LOGIT_BOUND)), 1 / (1 + np.exp(-LOGIT_BOUND))
_ROUNDS = 24


def recover_one_head_with_noise(
    session: QuerySession, tau: float, scale: TokenScale, rng: np.random.Generator
) -> Estimate:
    """The head of a one-head oracle whose answers are wrong by at most ``tau`` each.

    Parameters
    ----------
    session
        The oracle.
    tau
        The bound on every error.
    scale
        Its `largest` is the token bound ``R``; without one, a few times the token size at which
        scores are of order one.
    rng
        Unused: the probes are fixed by the first ``d`` answers.

    Raises
    ------
    NotRecoveredError
        If ``tau`` hides the value vector or the scores.
    """
    d = session.width
    reach = 0.99 * scale.largest if np.isfinite(scale.largest) else 8.0 * scale.size
    # Length-one tokens as long as allowed: v is wrong by tau / R an entry.
    step = 2.0 ** np.floor(np.log2(reach))
    answers = session.ask(step * np.eye(d)[:, None, :], Purpose.RECOVERY)
    _finite(answers)
    v = answers / step
    v_error = tau * np.sqrt(d) / step
    if np.linalg.norm(v) <= v_error:
        return no_heads(d, v_error, "no head beyond the noise")
    directions = leaning_directions(v)
    # a b^2 is greatest where a = b.
    b = a = reach / 3
    W_columns, delta = np.zeros((d, d)), np.zeros((d, d))
    scales = np.full(d, a)
    # One column shows the scale for all.
    for turn, chosen in enumerate(([0], list(range(1, d)))):
        columns = list(chosen)
        if turn:
            scales[columns] = scales[0]
        for attempt in range(_ROUNDS):
            if not columns:
                break
            purpose = Purpose.RETRIES if attempt else Purpose.RECOVERY
            share, wrong, sent, last = _shares(
                session, directions, v, v_error, b, scales[columns], columns, tau, purpose
            )
            if (wrong >= 0.5).all():
                raise NotRecoveredError(
                    f"errors of {tau:.2g} hide every attention weight with tokens of at most "
                    f"{reach:.3g}: send longer tokens (--token-bound) or know the answers better"
                )
            again = []
            for place, j in enumerate(columns):
                here = slice(place * d, (place + 1) * d)
                # Smaller tokens for a score that lies beyond the bound, or may.
                outside = (share[here] < _LOW) | (share[here] > _HIGH)
                if outside.any() and attempt + 1 < _ROUNDS:
                    scales[j] /= 2
                    again.append(j)
                    continue
                clipped = np.clip(share[here], _LOW, _HIGH)
                logits = np.log(clipped / (1 - clipped))
                norm = np.linalg.norm(last[here][0])
                # sent_i^T W last = logit: undo the basis that was really sent.
                W_columns[:, j] = np.linalg.solve(sent[here], logits) / norm
                spread = np.linalg.norm(np.linalg.inv(sent[here]), 2) / norm
                delta[:, j] = LIPSCHITZ * wrong[here] * spread
            columns = again
    W_error = float(np.linalg.norm(delta))
    return one_head_estimate(
        W_columns,
        v,
        W_error,
        v_error,
        "one head under additive errors, clipped logits",
        scale.size,
        f"for every error pattern of at most {tau:.3g} an answer: |W' - W|_F <= {W_error:.3g} and "
        f"|v' - v|_2 <= {v_error:.3g}",
        (f"guarantee: |W' - W|_F <= {W_error:.3g}, |v' - v|_2 <= {v_error:.3g}",),
    )


def _shares(
    session: QuerySession,
    directions: NDArray[np.float64],
    v: NDArray[np.float64],
    v_error: float,
    b: float,
    scales: NDArray[np.float64],
    columns: list[int],
    tau: float,
    purpose: Purpose,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Attention weights for all directions and some columns, with bounds on their errors.

    Shapes ``(d * columns,)`` twice, then the tokens sent: differences and last tokens.
    """
    d = len(v)
    last = np.zeros((len(columns), d))
    last[np.arange(len(columns)), columns] = scales
    last = session.representable(np.repeat(last, d, axis=0))
    first = session.representable(np.tile(b * directions, (len(columns), 1)) + last)
    answers = session.ask(np.stack([first, last], axis=1), purpose)
    _finite(answers)
    sent = first - last
    height = sent @ v
    share = (answers - last @ v) / height
    # The last token's own value is wrong by |last| tau / step, the height by |sent| v_error.
    own = np.linalg.norm(last, axis=1) * v_error
    rest = np.linalg.norm(sent, axis=1) * v_error
    safe = np.abs(height) - rest
    bound = np.where(safe > 0, (tau + own + rest) / np.where(safe > 0, safe, 1.0), np.inf)
    return share, np.minimum(bound, 1e6), sent, last


def _finite(answers: NDArray[np.float64]) -> None:
    if not np.isfinite(answers).all():
        raise NotRecoveredError(
            "an answer is not finite within the token bound: give a smaller --token-bound"
        )
