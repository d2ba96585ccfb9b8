r"""One head in ball arithmetic: the same ``d + d^2`` queries, and enclosures for every entry.

With rank at most ``r`` known, ``2 r d - r^2`` numbers ``z_i^T W y_j`` suffice: ``r`` rows and ``r``
columns of ``T = Z^T W Y`` determine the rest by ``T_22 = T_21 T_11^-1 T_12`` wherever ``T_11`` is
invertible, which the balls prove.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.balls import Balls
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.result import BoundKind, Estimate, NotRecoveredError, Precision
from fiberscope.queries.session import Purpose, QuerySession

_START, _MOST = 128, 4096
_WANTED = 64
"""Bits of the worst head with which the program is content."""


def recover_one_head_in_balls(
    session: QuerySession, rank: int | None, rng: np.random.Generator
) -> Estimate:
    """The head of a one-head ball oracle, enclosed: ``d + d^2`` queries.

    Parameters
    ----------
    session
        A ball oracle.
    rank
        A bound on the rank of ``W``: then ``d + 2 r d - r^2`` queries.
    rng
        Draws integer bases where a rank is given.

    Raises
    ------
    NotRecoveredError
        If the answers are not those of one head (of this rank), or do not resolve it at 4096 bits.
    """
    d = session.width
    full = rank is None or rank >= d
    draws = _draw_bases(d, rng) if not full else None
    bits, reason = _START, ""
    while bits <= _MOST:
        system = Balls(bits)
        with system.precision():
            found = _attempt(session, system, d if full or rank is None else rank, draws)
        if isinstance(found, Estimate):
            if found.precision.bits is None or found.precision.bits >= _WANTED:
                return found
            reason = f"only {found.precision.bits:.0f} bits"
        else:
            reason = found
        bits *= 2
    raise NotRecoveredError(f"{reason} at {_MOST} bits of working precision")


def _draw_bases(d: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integer matrices that are certainly invertible: unit triangular products."""
    bases = []
    for _ in range(2):
        lower = np.tril(rng.integers(-1, 2, (d, d)), -1) + np.eye(d, dtype=np.int64)
        upper = np.triu(rng.integers(-1, 2, (d, d)), 1) + np.eye(d, dtype=np.int64)
        bases.append(lower @ upper)
    return bases[0], bases[1]


def _attempt(
    session: QuerySession,
    system: Balls,
    rank: int,
    draws: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
) -> Estimate | str:
    """An estimate, or why the enclosures do not suffice yet."""
    d, bits = session.width, system.bits
    unit = np.array([[Fraction(int(i == j)) for j in range(d)] for i in range(d)], dtype=object)
    v = session.ask([row[None] for row in unit], Purpose.RECOVERY, bits=bits)
    if all(entry.contains(0) for entry in v):
        if all(entry == 0 or entry.rad() < 2.0 ** (-bits // 2) for entry in v):
            heads = AttentionHeads(system.zeros((0, d, d)), system.zeros((0, d)))
            how = f"every entry of v is zero within 2^-{bits // 2}"
            return Estimate(heads, Precision((), (), BoundKind.CONDITIONAL, how), "no head", (how,))
        return "the value vector is not told from zero"
    z, y = _bases(v, draws, d)
    heights = [
        sum((int(a) * b for a, b in zip(row, v, strict=True)), system.number(0)) for row in z
    ]
    if any(height.contains(0) for height in heights):
        return "some probe is not told from one that is orthogonal to v"
    T = _scores(session, system, v, z, y, heights, rank)
    if isinstance(T, str):
        return T
    Z, Y = system.matrix(system.array(z)), system.matrix(system.array(y).T)
    W = system.from_matrix(Z.inv() * system.matrix(T) * Y.inv())
    precision = Precision(
        (ball_bits(W, bits),),
        (ball_bits(v, bits),),
        BoundKind.CERTIFIED,
        "radii of the enclosures, for an oracle that is one head"
        + ("" if rank == d else f" of rank at most {rank}"),
    )
    method = "one head in balls, " + ("d + d^2 queries" if rank == d else "d + 2 r d - r^2 queries")
    return Estimate(AttentionHeads(W[None], v[None]), precision, method)


def _bases(
    v: NDArray[Any], draws: tuple[NDArray[np.int64], NDArray[np.int64]] | None, d: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integer rows ``z`` that are not orthogonal to ``v``, as far as the balls tell, and ``y``."""
    z, y = (np.eye(d, dtype=np.int64),) * 2 if draws is None else draws
    z = z.copy()
    largest = int(np.argmax([float(abs(entry).mid()) for entry in v.tolist()]))
    for row in z:
        if _product(row, v).contains(0):
            # Whether the rows stay a basis is checked below.
            row[largest] += 1
    if round(abs(np.linalg.det(z.astype(float)))) != 1:
        z = np.eye(d, dtype=np.int64)
        z[:, largest] = 1
    return z, y


def _scores(
    session: QuerySession,
    system: Balls,
    v: NDArray[Any],
    z: NDArray[np.int64],
    y: NDArray[np.int64],
    heights: list[Any],
    rank: int,
) -> NDArray[Any] | str:
    """``T_ij = z_i^T W y_j`` as balls, shape ``(d, d)``."""
    d = len(z)
    pairs = [(i, j) for i in range(d) for j in range(d) if min(i, j) < rank]
    sequences = [np.stack([z[i] + y[j], y[j]]) for i, j in pairs]
    answers = session.ask(sequences, Purpose.RECOVERY, bits=system.bits)
    T = system.zeros((d, d))
    for (i, j), answer in zip(pairs, answers, strict=True):
        share = (answer - _product(y[j], v)) / heights[i]
        if share < 0 or share > 1:
            raise NotRecoveredError(
                "one head cannot give these answers: an attention weight would lie outside 0..1; "
                "allow more heads (--heads-at-most)"
            )
        if not (share > 0 and share < 1):
            return "some attention weight is not told from 0 or 1"
        T[i, j] = (share / (1 - share)).log()
    if rank < d:
        corner = system.matrix(T[:rank, :rank])
        try:
            solved = corner.solve(system.matrix(T[:rank, rank:]))
        except ZeroDivisionError:
            return f"the scores of {rank} probes are not told from dependent ones (a smaller rank?)"
        T[rank:, rank:] = system.from_matrix(system.matrix(T[rank:, :rank]) * solved)
    return T


def _product(row: NDArray[np.int64], v: NDArray[Any]) -> Any:
    return sum((int(a) * b for a, b in zip(row[1:], v[1:], strict=True)), int(row[0]) * v[0])


def ball_bits(values: NDArray[Any], working: int) -> float:
    """``-log2`` of (Frobenius norm of the radii / norm), a proved lower bound on relative bits.

    Exact values count as the working precision.
    """
    from math import log2

    flat = values.reshape(-1)
    radius = sum(((x.rad() * x.rad()).upper() for x in flat), flat[0] * 0).upper().sqrt().upper()
    size = sum((x * x for x in flat), flat[0] * 0).lower()
    size = size.sqrt().lower() if size > 0 else size
    if radius == 0:
        return float(working)
    one = size if size > radius else radius * 0 + 1
    mantissa, exponent = (one / radius).lower().man_exp()
    return float(log2(int(mantissa)) + int(exponent)) if int(mantissa) > 0 else 0.0
