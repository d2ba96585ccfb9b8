r"""One head whose ``W`` has rank at most ``r``: about ``2 (r + 1) d`` rank-one measurements.

Every pair ``(z, y)`` measures ``<z y^T, W>``. Measure the first ``k = r + 1`` rows and columns of
``T = Z W Y^T`` for random bases (the rows of ``Z`` and ``Y``); the rest follows from the cross

    T = T[:, :k] T[:k, :k]^+ T[:k, :],

exact where ``T[:k, :k]`` has the rank of ``W`` (with probability one). That is
``d + k (2 d - k)`` queries; a matrix of rank ``r`` has ``r (2 d - r)`` degrees of freedom; the
spare row and column show a larger rank and keep the inverse small.

Bhattamishra et al. (arXiv 2601.16873), Theorem 5.1, take ``m >= C r 2d`` independent Gaussian pairs
and minimise the nuclear norm; the cross needs no convex program and fewer measurements.
`benchmarks/recover_low_rank.py` compares it with independent pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.one_head import (
    leaning_directions,
    measure_scores,
    no_heads,
    one_head_estimate,
    probe_sizes,
    random_rotation,
    value_vector,
)
from fiberscope.queries.result import Estimate, NotRecoveredError
from fiberscope.queries.session import QuerySession
from fiberscope.queries.token_scale import TokenScale

SPARE = 1
"""Rows and columns beyond the rank."""
_CUT = 8.0
"""Singular values below this times the bound on the errors are taken for noise."""


def recover_low_rank_head(
    session: QuerySession,
    noise: NoiseLevel,
    scale: TokenScale,
    rank: int,
    rng: np.random.Generator,
    spare: int = SPARE,
) -> Estimate:
    """The head of a one-head oracle whose ``W`` has rank at most ``rank``.

    Parameters
    ----------
    session, noise, scale
        The oracle, and what the class tests found.
    rank
        The bound.
    rng
        Draws the bases.
    spare
        Rows and columns measured beyond the rank.

    Raises
    ------
    NotRecoveredError
        If the cross has a larger rank than the bound, beyond the noise; or as `recover_one_head`.
    """
    d = session.width
    k = min(rank + spare, d)
    large, small = probe_sizes(scale)
    v, v_error = value_vector(session, noise, min(large, scale.largest))
    if not np.linalg.norm(v) > v_error:
        return no_heads(d, v_error)
    z = large * (_keeping_sums(d, rng) @ leaning_directions(v))
    y = small * random_rotation(d, rng)
    wanted = np.zeros((d, d), dtype=bool)
    wanted[:k], wanted[:, :k] = True, True
    scores = measure_scores(session, noise, v, v_error, z, y, wanted, scale.largest)
    if not np.isfinite(scores.error[wanted]).all():
        raise NotRecoveredError("some scores stayed hidden at every scale of the probes")
    value, error = np.where(wanted, scores.value, 0.0), np.where(wanted, scores.error, 0.0)
    left, singular, right = np.linalg.svd(value[:k, :k])
    slack = float(np.linalg.norm(error[:k, :k]))
    found = int(np.count_nonzero(singular > _CUT * slack))
    if found > rank:
        raise NotRecoveredError(
            f"W has rank at least {found}: singular value {found} of {k} x {k} measured scores is "
            f"{singular[found - 1]:.2g}, errors explain {slack:.2g}; there are more heads (try "
            "--heads-at-most), or a larger rank"
        )
    # T[:, :k] T11^+ and T11^+ T[:k, :], cut to the rank that stands above the noise.
    inverse = (right[:found].T / singular[:found]) @ left[:, :found].T
    columns, rows = value[:, :k] @ inverse, inverse @ value[:k]
    T = np.where(wanted, value, columns @ value[:k])
    slip = (
        np.linalg.norm(error[k:, :k]) * _size(rows)
        + _size(columns) * np.linalg.norm(error[:k, k:])
        + _size(columns) * slack * _size(rows)
    )
    if found < min(rank, k):
        # What the corner does not show above the noise may still reach the unmeasured block; for
        # random bases it is there as large as in the measured one, per row and column.
        hidden = np.linalg.norm(value[:, :k] - columns @ value[:k, :k])
        hidden += np.linalg.norm(value[:k] - value[:k, :k] @ rows) + slack
        slip += hidden * d / k
    else:
        # Below what counts as rank there may be a tail: what the corner shows of it, as it is
        # carried to the unmeasured block, and as large there per row and column.
        tail = float(np.linalg.norm(singular[found:]))
        slip += tail * ((1 + _size(columns)) * (1 + _size(rows)) + d / k)
    W = np.linalg.solve(z, np.linalg.solve(y, T.T).T)
    W_error = float(np.hypot(np.linalg.norm(error), slip)) / (large * small)
    notes = () if found == rank else (f"W has rank {found} as far as the noise shows",)
    return one_head_estimate(
        W,
        v,
        W_error,
        v_error,
        f"one head of rank at most {rank}, d + k (2 d - k) queries with k = {k}",
        scale.size,
        "the measured noise propagated through every logit, the cross and both bases",
        notes,
    )


def _keeping_sums(d: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Random orthogonal matrix that fixes ``(1, .., 1)``: products with ``v`` stay equal."""
    basis = np.linalg.qr(np.column_stack([np.ones(d), rng.standard_normal((d, d - 1))]))[0]
    inner = np.eye(d)
    if d > 1:
        inner[1:, 1:] = random_rotation(d - 1, rng)
    return np.asarray(basis @ inner @ basis.T)


def _size(matrix: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
