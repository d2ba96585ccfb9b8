r"""Many heads of rank at most ``r`` from a floating-point oracle: about ``2 r d H`` queries.

A direction ``z`` shows ``m_h = W_h^T z`` of every head as a step (:mod:`.steps`), ``d`` unknowns a
head. For heads of rank ``r`` a few more than ``r`` directions span the row space of every ``W_h``;
any further direction has ``r`` unknowns a head:

    (r + spare) d H + (d - r - spare) r H,    about 2 r d H.

1. ``u``, and the steps for one direction, as in :mod:`.floats`.
2. Moves of ``z`` by some percent of its length, in ``r + spare`` directions: all coordinates. Their
   singular values show whether the rank is larger than stated, beyond the errors.
3. Moves in all other directions, in ``r`` coordinates a head. The points leave the frames by known
   amounts, so that a head which leaves its frame is seen here as well.
   Two directions far from the first one must agree (:mod:`.spare_directions`).
4. Signs and the final check as for heads of any rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.many_heads.circle import STEPS, Circle
from fiberscope.queries.many_heads.directions import complete_directions, moves_off
from fiberscope.queries.many_heads.floats import HeadSearch
from fiberscope.queries.many_heads.low_rank_design import separated_points
from fiberscope.queries.many_heads.low_rank_fit import FramedFit, FramedProblem
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.many_heads.spare_directions import Spare, SpareError, drawn_direction
from fiberscope.queries.many_heads.steps import Fit, Steps
from fiberscope.queries.many_heads.sweep import EXPLAINED, Bilinear, SweepError, assemble
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.result import Estimate
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

SPARE = 4
"""Directions in all coordinates beyond the rank."""
EACH = 1.02
"""Points per head and unknown coordinate."""
SPARES, SPARE_EACH = 2, 1.5
"""Directions beyond the basis, and points per head and coordinate there: enough to spare that what
a weak head adds is not fitted away."""
LEAST_BITS = ((2.0**-40, 20.0), (np.inf, 8.0))
"""Relative noise, and the bits below which an answer is none."""
CHANGE = 0.25
"""Typical change of the scores at all points by a move."""
MOVES = (1.0, 0.3, 0.1, 0.025)
"""Times the length of a move that makes this change: the next where one is not explained."""
_DENSE = 500
"""Unknowns up to which the first steps are fitted together at once: parallel ones need it."""
_CLEAR = 6.0
"""A singular value counts if it is larger than this times what errors explain."""


def recover_low_rank_heads(
    session: QuerySession,
    rank: int,
    *,
    heads: int | None = None,
    heads_at_most: int | None = None,
    rng: np.random.Generator,
    noise: NoiseLevel | None = None,
) -> Estimate:
    """Learn the canonical heads, all of rank at most ``rank``, from a floating-point oracle.

    Parameters
    ----------
    session
        A session with an oracle in floating point.
    rank
        A bound on the rank of every ``W_h``, below the width.
    heads, heads_at_most
        Bounds on the number of heads; more are refused. The number itself is found.
    rng
        Draws all probes.
    noise
        Errors of answers; by default those of the oracle's arithmetic.

    Raises
    ------
    RecoveryRefusedError
        With the reason: a larger rank, more heads, too few digits.
    """
    if not 1 <= rank < session.width:
        raise InputError(f"the rank must be at least 1 and below the width, got {rank}")
    noise = noise or NoiseLevel(session.arithmetic.unit)
    limit = min(STEPS, heads or STEPS, heads_at_most or STEPS)
    return LowRankSearch(session, noise, rng, limit, rank).run()


@dataclass(frozen=True)
class _Sweep:
    """Where moves start: the steps there, at points on a grid that suits every move."""

    z: Floats
    base: Steps
    size: float
    spacing: float
    share: float

    def moved(self, direction: Floats, share: float) -> Floats:
        """``z`` moved by a share of the usual length, on the grid."""
        wanted = self.z + direction * (self.size * self.share * share)
        return np.asarray(np.round(wanted / self.spacing) * self.spacing)


class LowRankSearch(HeadSearch):
    """Searches that sweep the directions in two parts, see the module."""

    def __init__(
        self,
        session: QuerySession,
        noise: NoiseLevel,
        rng: np.random.Generator,
        limit: int,
        rank: int,
    ) -> None:
        super().__init__(session, noise, rng, limit, full=True)
        self.rank = rank
        self.name = f"many heads of rank at most {rank} in floats, two-token queries"
        self.notes: tuple[str, ...] = ()
        self.least_bits = next(bits for most, bits in LEAST_BITS if noise.unit <= most)

    def completed(self, circle: Circle, flat: Fit) -> Steps | None:
        """Steps in all coordinates; what they explain shows where the first sweep starts."""
        if flat.steps.count * len(circle.z) <= _DENSE:
            return complete_directions(self.probe, circle, flat).steps
        return moves_off(self.probe, circle, flat)[0]

    def measured(self, z: Floats, steps: Steps) -> tuple[Bilinear, float]:
        """All directions: the first ones in all coordinates, the others in frames."""
        d = len(z)
        basis = np.linalg.qr(np.column_stack([z, self.rng.normal(size=(d, d - 1))]))[0].T
        sweep, points = self.start(z, steps)
        whole = FramedProblem(points, None, sweep.base)
        moves = [self.still(sweep, whole)]
        sweep = replace(sweep, base=moves[0].fit.steps)
        first = min(self.rank + SPARE, d)
        for direction in basis[1:first]:
            moves.append(self.moved(sweep, whole, direction, self.explained))
        frames = [self.frame(h, sweep, moves) for h in range(steps.count)]
        self.notes = _rank_notes(frames, self.rank)
        fits: list[Fit] = [each.fit for each in moves]
        if first < d:
            points = separated_points(sweep.base, [each.rows for each in frames], EACH, self.rng)
            points = np.round(points / sweep.spacing) * sweep.spacing
            inner = FramedProblem(points, [each.rows for each in frames], sweep.base)
            outside = [_outside(points, each, h, sweep.base) for h, each in enumerate(frames)]

            def explained(fit: FramedFit, floor: float, share: float) -> bool:
                longest = 4 * np.sqrt(self.rank) * share * sweep.share * sweep.size
                allowed = EXPLAINED * floor
                for h, frame in enumerate(frames):
                    gain = min(frame.amplification(fit, sweep.base, h), longest)
                    allowed += _CLEAR * gain * frame.error * outside[h]
                return fit.worst <= allowed

            for direction in basis[first:]:
                move = self.moved(sweep, inner, direction, explained)
                moves.append(move)
                fits.append(_with_frame_errors(move.fit, frames, sweep.base))
        rows = np.array([each.z for each in moves])
        return assemble(rows, fits, max(each.ratio for each in moves)), sweep.size

    def spares(self, known: Bilinear, size: float) -> list[Spare]:
        """Fits at directions far from the first one, in all coordinates."""
        found = []
        for _ in range(SPARES if len(known.w) else 0):
            z = drawn_direction(known.w, self.rng) * size
            sweep, points = self.start(z, known.steps(z), SPARE_EACH)
            base = known.steps(sweep.z)
            fit, floor = self.asked(sweep.z, FramedProblem(points, None, base), base)
            if not self.explained(fit, floor, 0.0):
                raise SpareError(
                    f"At a further direction {fit.worst / floor / EXPLAINED:.2g} times what errors "
                    "explain is left: a weak head is missing, or the rank is larger."
                )
            found.append(Spare(sweep.z, fit, self.probe.floor(sweep.z, base.heights, -2.0)))
        return found

    def start(self, z: Floats, steps: Steps, each: float = EACH) -> tuple[_Sweep, Floats]:
        """The length of ``z`` at which points are about half as long, and points in all of space.

        ``G(s z, y / s) = s G(z, y)``: steps for one length give those for another.
        """
        points = separated_points(steps, None, each, self.rng)
        longest = float(np.sqrt(np.mean(np.sum(points**2, axis=1))))
        reach = longest * float(np.linalg.norm(z))
        gain = float(np.linalg.norm(steps.directions, axis=1).max())
        share = min(0.3, CHANGE * float(np.sqrt(len(z))) / (gain * longest))
        size = float(2.0 ** np.round(np.log2(np.sqrt(2 * reach))))
        factor = size / float(np.linalg.norm(z))
        points = points / factor
        spacing = self.probe.grid(float(np.abs(z).max()) * factor + size + np.abs(points).max())
        points = np.round(points / spacing) * spacing
        here = np.round(z * factor / spacing) * spacing
        base = Steps(steps.directions * factor, steps.heights * factor)
        return _Sweep(here, base, size, spacing, share), points

    def still(self, sweep: _Sweep, problem: FramedProblem) -> _Move:
        """The steps where moves start."""
        fit, floor = self.asked(sweep.z, problem, sweep.base)
        if not self.explained(fit, floor, 0.0):
            raise SweepError
        return _Move(sweep.z, fit, fit.worst / floor)

    def moved(
        self,
        sweep: _Sweep,
        problem: FramedProblem,
        direction: Floats,
        explained: Callable[[FramedFit, float, float], bool],
    ) -> _Move:
        """Steps after a move, a shorter one if the fit does not explain the values."""
        purpose = self.probe.purpose
        try:
            for share in MOVES:
                here = sweep.moved(direction, share)
                fit, floor = self.asked(here, problem, sweep.base)
                if explained(fit, floor, share):
                    return _Move(here, fit, fit.worst / floor)
                self.probe.purpose = Purpose.RETRIES
        finally:
            self.probe.purpose = purpose
        raise SweepError

    def asked(self, z: Floats, problem: FramedProblem, start: Steps) -> tuple[FramedFit, float]:
        """Fit at one direction, and the bound on errors of values there."""
        values = self.probe.values(z, problem.points, self.probe.half(z))
        floor = self.probe.floor(z, start.heights, problem.largest_score)
        return problem.fit(values, start, 0.01 * floor), floor

    @staticmethod
    def explained(fit: FramedFit, floor: float, share: float) -> bool:
        """Whether errors of values explain the residuals."""
        del share
        return fit.worst <= EXPLAINED * floor

    def frame(self, h: int, sweep: _Sweep, moves: list[_Move]) -> _Frame:
        """Row space of one head from the first directions.

        Raises
        ------
        RecoveryRefusedError
            If their singular values show a larger rank than stated.
        """
        d = len(sweep.z)
        start = sweep.base.directions[h]
        # Few degrees of freedom are left: their spread may be small by chance, rounding is not.
        rounding = self.probe.floor(sweep.z, sweep.base.heights, -2.0)
        changes, errors = [start / np.linalg.norm(sweep.z)], []
        for move in moves[1:]:
            length = float(np.linalg.norm(move.z - sweep.z))
            changes.append((move.fit.steps.directions[h] - start) / length)
            spread = max(move.fit.spread, rounding)
            errors.append(np.sqrt(2) * spread * move.fit.direction_errors[h] / length)
        stack = np.array(changes)
        error = float(np.sqrt(np.mean(np.square(errors)) / d))
        left, singular, right = np.linalg.svd(stack, full_matrices=False)
        # Independent errors, and that of the first direction, which all changes share.
        noise = _CLEAR * error * (np.sqrt(len(stack)) + np.sqrt(d))
        noise += error * np.sqrt(0.5 * len(stack) * d)
        found = int(np.count_nonzero(singular > noise))
        if found > self.rank:
            raise RecoveryRefusedError(
                Reason.RANK,
                f"Some head has rank at least {found}: singular value {found} of its moves is "
                f"{singular[found - 1]:.2g}, errors explain {noise:.2g}; there are more heads, or "
                "a larger rank.",
            )
        keep = min(self.rank, len(singular))
        inverse = left[:, :found] / singular[:found]
        return _Frame(right[:keep], right[:found], inverse, error, found)


@dataclass(frozen=True)
class _Move:
    z: Floats
    fit: FramedFit
    ratio: float


@dataclass(frozen=True)
class _Frame:
    """Row space of one head.

    Orthonormal rows ``(k, d)`` for unknowns, those ``(q, d)`` of the rank seen, the factors
    ``(i, q)`` that express unit changes along them by the measured moves, the error of a measured
    move per coordinate, and the rank seen.
    """

    rows: Floats
    seen: Floats
    inverse: Floats
    error: float
    rank: int

    def amplification(self, fit: Fit, base: Steps, h: int) -> float:
        """By how much a change of ``m_h`` combines the measured moves, and their errors."""
        change = fit.steps.directions[h] - base.directions[h]
        return float(np.linalg.norm(self.inverse @ (self.seen @ change)))


def _outside(points: Floats, frame: _Frame, h: int, base: Steps) -> float:
    """Most that a unit error per coordinate of ``m_h`` outside the frame moves values."""
    half = np.tanh(0.5 * (points @ base.directions[h]))
    slopes = 0.25 * (1 - half**2) * abs(float(base.heights[h]))
    beyond = points - (points @ frame.rows.T) @ frame.rows
    return float((slopes * np.linalg.norm(beyond, axis=1)).max())


def _with_frame_errors(fit: FramedFit, frames: list[_Frame], base: Steps) -> FramedFit:
    """Direction errors that include those of the frames; in units of the spread."""
    d = fit.steps.directions.shape[1]
    spread = max(fit.spread, 1e-300)
    gains = np.array([f.amplification(fit, base, h) * f.error for h, f in enumerate(frames)])
    return replace(
        fit, direction_errors=np.hypot(fit.direction_errors, gains * np.sqrt(d) / spread)
    )


def _rank_notes(frames: list[_Frame], rank: int) -> tuple[str, ...]:
    smaller = sorted(each.rank for each in frames if each.rank < rank)
    if not smaller:
        return ()
    return (f"heads of smaller rank, as far as errors show: {', '.join(map(str, smaller))}",)
