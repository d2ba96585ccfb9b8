"""Recover many attention heads from an oracle in floating point, with queries of two tokens.

1. ``u`` from single tokens, and a direction ``z`` long enough that its scores saturate.
2. The steps on a half circle of last tokens (:mod:`.circle`): how many heads, roughly which.
3. Their directions in all coordinates, for this ``z`` (:mod:`.directions`).
4. A basis of directions near ``z``, then a balanced orthogonal one (:mod:`.sweep`).
   A few further directions must agree (:mod:`.spare_directions`).
5. Signs, mirrored pairs and a head without scores (:mod:`.mirrors`).
6. Fresh long sequences at several scales. What fails them is not returned: the search starts again.

About ``(1.25 + 2.5) H d^2`` queries and some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.circle import STEPS, Circle
from fiberscope.queries.many_heads.directions import complete_directions
from fiberscope.queries.many_heads.mirror_pair import NoPairError, with_mirror_pair
from fiberscope.queries.many_heads.mirrors import SignedHeads, signed_heads
from fiberscope.queries.many_heads.pairs import NotFiniteError, PairProbe
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.many_heads.scalar_heads import MOST, NoScalarHeadsError, scalar_heads
from fiberscope.queries.many_heads.spare_directions import (
    Spare,
    SpareError,
    drawn_direction,
    with_spare_directions,
)
from fiberscope.queries.many_heads.steps import Fit, Steps
from fiberscope.queries.many_heads.sweep import (
    EXPLAINED,
    Bilinear,
    SweepError,
    coarse_sweep,
    fine_sweep,
    measure,
    typical_size,
)
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.result import BoundKind, Estimate, Precision
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

ATTEMPTS = 8
"""Searches from a fresh direction."""
CIRCLES = 4
"""Circles for one direction."""
WILD = 3
"""Circles in a row with too many changes to be steps, after which the search ends."""
COARSE, FINE = 1.25, (1.2, 1.3)
"""Points per head, dimension and direction."""
SPARES = {True: (3, 2.0), False: (2, COARSE)}
"""Directions beyond a basis, and points per head and dimension there: full and coarse."""
LEFT = 2.0
"""Times the residuals that are explained elsewhere, at these: only heads that move count."""
CONTRADICTIONS = 2
"""Searches that further directions may contradict, after which there is no answer."""
MERGED = (
    "heads that differ by less than what the noise shows count as one, and stated bits are then of "
    "the merged head; heads too weak for the noise do not show"
)
STEEPNESS = ((1e-13, 64.0), (1e-6, 8.0), (np.inf, 2.0))
"""Relative noise, and times the length at which scores saturate, for the circle."""
LEAST_BITS = 4.0
"""An answer of fewer bits is none."""
SAFETY_BITS = 3.0
"""Bits that are stated fewer than the estimated errors leave."""
_ALLOWANCE = 16.0


def recover_heads_in_floats(
    session: QuerySession,
    *,
    heads: int | None = None,
    heads_at_most: int | None = None,
    rng: np.random.Generator,
    precision: Literal["full", "coarse"] = "full",
    noise: NoiseLevel | None = None,
) -> Estimate:
    """Learn the canonical heads from a floating-point oracle.

    Parameters
    ----------
    session
        A session with an oracle in floating point.
    heads, heads_at_most
        Bounds on the number of heads; more are refused. The number itself is found.
    rng
        Draws all probes.
    precision
        ``"coarse"`` stops after the first basis of directions, with about a third of the queries.
    noise
        Errors of answers; by default those of the oracle's arithmetic.

    Raises
    ------
    RecoveryRefusedError
        With the reason. An answer that fails fresh queries is never returned.
    """
    noise = noise or NoiseLevel(session.arithmetic.unit)
    limit = min(STEPS, heads or STEPS, heads_at_most or STEPS)
    search = HeadSearch(session, noise, rng, limit, precision == "full")
    return search.run() if session.width > 1 else search.scalar()


@dataclass(frozen=True)
class SearchFailure(Exception):  # noqa: N818 - caught by the search itself
    """A search came to nothing; another direction may do."""

    kind: Reason
    detail: str


class HeadSearch:
    """Searches from fresh directions until one passes.

    Parameters
    ----------
    session, noise, rng
        See `recover_heads_in_floats`.
    limit
        Most heads.
    full
        Whether an orthogonal basis of directions follows the first one.
    """

    name = "many heads in floats, two-token queries"
    least_bits = LEAST_BITS

    def __init__(
        self,
        session: QuerySession,
        noise: NoiseLevel,
        rng: np.random.Generator,
        limit: int,
        full: bool,
    ) -> None:
        self.session, self.rng, self.limit, self.full = session, rng, limit, full
        self.noise = noise
        self.notes: tuple[str, ...] = ()
        self.scanned = self.swept = False
        self.wild = 0
        self.contradictions = 0
        d = session.width
        total = session.ask(np.eye(d)[:, None, :], Purpose.RECOVERY)
        if not np.isfinite(total).all():
            raise RecoveryRefusedError(
                Reason.NOT_OF_THIS_FORM, "A single unit token has no finite answer."
            )
        self.probe = PairProbe(session, total, noise, Purpose.RECOVERY)

    def run(self) -> Estimate:
        """The heads, from the first search that passes fresh sequences."""
        length = self.saturating_length()
        if length is None:
            return self.without_steps()
        # Absolute errors, relative to an answer to unit tokens, count as well.
        gain = float(np.linalg.norm(self.probe.total))
        relative = self.noise.unit + (self.noise.absolute / gain if gain > 0 else 0.0)
        steepness = next(factor for most, factor in STEEPNESS if relative <= most)
        failure: SearchFailure | None = None
        for attempt in range(ATTEMPTS):
            try:
                # Every other search with narrower steps, which crowd less on a circle.
                return self.attempt(length * steepness * (1, 4)[attempt % 2], attempt)
            except NotFiniteError:
                # Scores overflow: back off before anything is refused.
                steepness /= 4
                failure = SearchFailure(Reason.NO_CIRCLE, "Answers were not finite.")
            except SweepError:
                failure = SearchFailure(Reason.CHECK_FAILED, "Some direction fits no sum of heads.")
            except SearchFailure as found:
                failure = found
        assert failure is not None
        raise RecoveryRefusedError(
            failure.kind, f"{failure.detail} ({ATTEMPTS} searches from fresh directions)"
        )

    def saturating_length(self) -> float | None:
        """Product ``|z| |y|`` at which ``G / |z|`` no longer changes; None if there is no step."""
        d = self.session.width
        y = self.rng.normal(size=(8, d))
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        z = self.rng.normal(size=d)
        z /= np.linalg.norm(z)
        # Both grow alike: G(s z, y / s) = s G(z, y).
        last: Floats | None = None
        settled, seen, reached = 0, False, 1.0
        for exponent in range(-6, 11):
            side = 2.0**exponent
            here = self.probe.direction(z * side, side)
            points = self.probe.points(here, y * side)
            try:
                values = self.probe.values(here, points, self.probe.half(here)) / side
            except NotFiniteError:
                break
            reached = side * side
            floor = self.probe.floor(here, np.zeros(0), 3.0) / side
            seen = seen or bool((np.abs(values) > 8 * floor).any())
            if seen and last is not None:
                changes = np.abs(values - last)
                calm = int((changes < max(0.01 * np.abs(values).max(), 2 * floor)).sum()) >= 6
                settled = settled + 1 if calm else 0
                if settled == 2:
                    return reached / 16
            last = values
        return reached / 16 if seen else None

    def without_steps(self) -> Estimate:
        """No head has scores: nothing at all, or a plain average."""
        d = self.session.width
        none = Bilinear(np.zeros((0, d, d)), np.zeros((0, d)), np.zeros(0), np.zeros(0), 0.0)
        try:
            return self.confirmed(none, 1.0, "no scores seen")
        except SearchFailure as failure:
            raise RecoveryRefusedError(failure.kind, failure.detail) from None

    def scalar(self) -> Estimate:
        """Width one."""
        try:
            return self.checked(scalar_heads(self.probe, self.limit), "")
        except NoScalarHeadsError:
            raise RecoveryRefusedError(
                Reason.NO_CIRCLE, f"Width one: no {min(self.limit + 1, MOST)} heads or fewer fit."
            ) from None
        except SearchFailure as failure:
            raise RecoveryRefusedError(failure.kind, failure.detail) from None

    def attempt(self, length: float, attempt: int) -> Estimate:
        """One search from a fresh direction."""
        z, steps = self.one_direction(length)
        self.probe.purpose = Purpose.RETRIES if self.swept else Purpose.RECOVERY
        self.swept = True
        known, size = self.measured(z, steps)
        try:
            unit = max(self.noise.unit, self.noise.typical)
            known = with_spare_directions(known, self.spares(known, size), unit)
        except SpareError as found:
            self.contradictions += 1
            if self.contradictions == CONTRADICTIONS:
                raise RecoveryRefusedError(Reason.CHECK_FAILED, str(found)) from None
            raise SearchFailure(Reason.CHECK_FAILED, str(found)) from None
        return self.confirmed(known, size, f"search {attempt + 1}" if attempt else "")

    def confirmed(self, known: Bilinear, size: float, note: str) -> Estimate:
        """The answer that fresh queries confirm; a mirrored pair with equal values comes last."""
        found = signed_heads(self.probe, known, size, self.rng)
        try:
            return self.checked(found, note)
        except SearchFailure as failure:
            if failure.kind is not Reason.CHECK_FAILED:
                raise
            purpose, self.probe.purpose = self.probe.purpose, Purpose.RETRIES
            try:
                paired = with_mirror_pair(self.probe, known, size, self.rng)
            except (NoPairError, NotFiniteError):
                raise failure from None
            finally:
                self.probe.purpose = purpose
            return self.checked(paired, "")

    def measured(self, z: Floats, steps: Steps) -> tuple[Bilinear, float]:
        """All heads up to sign from the steps for one direction, and a good size of directions."""
        size = typical_size(steps, z)
        known = coarse_sweep(self.probe, z, steps, COARSE, self.rng)
        if self.full:
            known = fine_sweep(self.probe, known, size, FINE, self.rng)
        return known, size

    def spares(self, known: Bilinear, size: float) -> list[Spare]:
        """Fits at directions beyond the basis, from what is known."""
        found = []
        count, each = SPARES[self.full]
        for _ in range(count if len(known.w) else 0):
            z = self.probe.direction(drawn_direction(known.w, self.rng) * size, size)
            fit, ratio = measure(self.probe, z, known.steps(z), (each,), self.rng)
            if ratio > LEFT * EXPLAINED:
                raise SpareError("A further direction fits no such heads.")
            found.append(Spare(z, fit, 0.1 * self.probe.floor(z, fit.steps.heights, -2.0)))
        return found

    def completed(self, circle: Circle, flat: Fit) -> Steps | None:
        """Steps in all coordinates from those in a plane; None if they explain too little."""
        fit = complete_directions(self.probe, circle, flat)
        score = float(np.abs(circle.points @ fit.steps.directions.T).max())
        floor = self.probe.floor(circle.z, fit.steps.heights, score)
        return fit.steps if fit.worst <= EXPLAINED * floor else None

    def one_direction(self, length: float) -> tuple[Floats, Steps]:
        """The steps for one direction, in all coordinates of the last token."""
        d = self.session.width
        radius = float(2.0 ** np.round(np.log2(np.sqrt(length)) - 1))
        z = self.rng.normal(size=d)
        z = self.probe.direction(z * (length / radius / np.linalg.norm(z)), 4 * radius)
        half = self.probe.half(z)
        most = 0
        for _ in range(CIRCLES):
            self.probe.purpose = Purpose.RETRIES if self.scanned else Purpose.RECOVERY
            self.scanned = True
            circle = Circle(self.probe, z, half, *Circle.axes(d, self.rng), radius)
            flat = circle.steps(STEPS)
            if flat is not None:
                steps = self.completed(circle, flat)
                if steps is not None:
                    if steps.count > self.limit:
                        raise RecoveryRefusedError(
                            Reason.MORE_HEADS,
                            f"{steps.count} steps are seen where {self.limit} are allowed.",
                        )
                    return z, steps
            most = max(most, circle.clustered)
            self.wild = self.wild + 1 if circle.wild else 0
            if self.wild == WILD:
                raise RecoveryRefusedError(
                    Reason.TOO_MANY_HEADS,
                    f"Values change everywhere on {WILD} circles in a row, or they are no function "
                    "of this form.",
                )
        kind = Reason.TOO_MANY_HEADS if most > STEPS else Reason.NO_CIRCLE
        raise SearchFailure(kind, f"Up to {most} groups of steps were seen on a circle.")

    def checked(self, found: SignedHeads, note: str) -> Estimate:
        """State the precision, and ask fresh long sequences: they must agree within it."""
        raw = AttentionHeads(found.W, found.v)
        heads = raw.canonical()
        order = [
            next(
                k
                for k in range(raw.count)
                if np.array_equal(heads.v[h], raw.v[k]) and np.array_equal(heads.W[h], raw.W[k])
            )
            for h in range(heads.count)
        ]
        W_bits = tuple(
            _bits(found.W_errors[k], float(np.linalg.norm(raw.W[k])), self.noise) for k in order
        )
        v_bits = tuple(
            _bits(found.v_errors[k], float(np.linalg.norm(raw.v[k])), self.noise) for k in order
        )
        if min((*W_bits, *v_bits), default=53.0) < self.least_bits:
            raise SearchFailure(
                Reason.PRECISION, f"Some head would have less than {self.least_bits:g} bits."
            )
        self.agree(heads, W_bits, v_bits)
        precision = Precision(
            W_bits,
            v_bits,
            BoundKind.CONDITIONAL,
            "eight times the standard errors of least squares, with the spread of its residuals, "
            "and what further directions show",
        )
        if heads.count > self.limit:
            raise RecoveryRefusedError(
                Reason.MORE_HEADS, f"{heads.count} heads where {self.limit} are allowed."
            )
        notes = tuple(text for text in (*self.notes, found.note, note, MERGED) if text)
        name = self.name + ("" if self.full else ", coarse")
        return Estimate(heads, precision, name, notes)

    def agree(
        self, heads: AttentionHeads, W_bits: tuple[float, ...], v_bits: tuple[float, ...]
    ) -> None:
        """Fresh sequences: deviations within the noise and the precision stated for each head."""
        d = self.session.width
        norms = np.linalg.norm(heads.W, axis=(1, 2))
        moving = norms[norms > 0]
        unit = float(np.sqrt(np.sqrt(d) / np.median(moving))) if len(moving) else 1.0
        for scale in (0.5, 1.0, 2.0):
            for length in (1, 2, 5, 19):
                tokens = self.rng.normal(size=(6, length, d)) / np.sqrt(d) * unit * scale
                tokens = self.session.representable(tokens)
                answers = self.session.ask(tokens, Purpose.FINAL_CHECK)
                allowed = _ALLOWANCE * self.noise.bound(heads.size(tokens))
                for h in range(heads.count):
                    one = AttentionHeads(heads.W[h : h + 1], heads.v[h : h + 1])
                    allowed = allowed + 2.0 ** -min(W_bits[h], v_bits[h]) * one.size(tokens)
                with np.errstate(invalid="ignore"):
                    wrong = np.abs(answers - heads.evaluate_many(tokens))
                if not (wrong <= allowed).all():
                    raise SearchFailure(
                        Reason.CHECK_FAILED,
                        f"A fresh sequence deviates by {float(np.max(wrong)):.2g}.",
                    )


def _bits(error: float, norm: float, noise: NoiseLevel) -> float:
    """Relative precision in bits, three bits below the estimate and never beyond the noise."""
    if norm == 0:
        norm = 1.0
    relative = max(float(error) / norm, noise.unit)
    return float(-np.log2(relative) - SAFETY_BITS) if np.isfinite(relative) else 0.0
