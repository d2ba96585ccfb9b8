"""Recover attention followed by a bias-free ReLU network, single or multi-head, as a function.

1. The odd part ``f(X) - f(-X)`` is a sum of attention heads: every ``W_h``, and the linear part.
2. With the ``W_h`` known the averages ``c(X)`` are known, and ``f`` is piecewise linear in them. On
   lines along which scores stay constant every neuron makes one hinge (:mod:`.lines`).
3. In every piece the linear function is fitted; the jump at a hinge is the neuron, up to sign.
4. Kinks of several lines are merged; those that random sequences have no use for are left out.
5. Fresh sequences decide. What fails is not returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.floats import recover_heads_in_floats
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.relu_network.kinks import Kink, inner_signs, kinks_on_line, merged
from fiberscope.queries.relu_network.lines import Line
from fiberscope.queries.relu_network.odd_part import OddPart
from fiberscope.queries.relu_network.result import ReluRecovery, averages
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

LINES = 12
"""Most lines that are searched for hinges."""
CHECKS = 8
"""Fresh sequences of every length and scale."""
LEAST_BITS = 20.0
"""Agreement on fresh sequences below which nothing is returned."""
_MARGIN = 2.0**17
_WEAK = 1e-4


def recover_attention_with_relu(
    session: QuerySession,
    *,
    heads: int | None = None,
    heads_at_most: int | None = None,
    rng: np.random.Generator,
    noise: NoiseLevel | None = None,
) -> ReluRecovery:
    """Recover ``w^T ReLU(U sum_h V_h c_h(X))`` from queries, up to functional equivalence.

    Conditions: more dimensions than heads; ``V_h^T U^T w`` vanishes for no head (else its scores do
    not show in the odd part); ReLU without biases. Parallel neurons come back as one kink.

    Parameters
    ----------
    session
        A session with an oracle in float64.
    heads, heads_at_most
        Bounds on the number of heads.
    rng
        Draws all probes.
    noise
        Errors of answers.

    Raises
    ------
    RecoveryRefusedError
        With the reason; fresh queries that disagree always end here.
    """
    if session.width < 2:
        raise InputError("a hinge needs width 2 or more")
    noise = noise or NoiseLevel(session.arithmetic.unit)
    # Rounding scales with both parts, of which the odd one may be the smaller.
    level = NoiseLevel(8 * noise.unit, 2 * noise.absolute, noise.repeatable, noise.sources)
    odd = cast("QuerySession", OddPart(session))
    found = recover_heads_in_floats(
        odd, heads=heads, heads_at_most=heads_at_most, rng=rng, noise=level
    ).heads
    if found.count >= session.width:
        raise RecoveryRefusedError(
            Reason.TOO_MANY_HEADS,
            f"{found.count} heads of width {session.width} leave no direction without scores.",
        )
    return _Readout(session, found, noise, rng).run()


class _Readout:
    def __init__(
        self,
        session: QuerySession,
        heads: AttentionHeads,
        noise: NoiseLevel,
        rng: np.random.Generator,
    ) -> None:
        self.session, self.heads, self.noise, self.rng = session, heads, noise, rng
        norms = np.linalg.norm(heads.W, axis=(1, 2))
        typical = float(np.median(norms[norms > 0])) if (norms > 0).any() else 1.0
        # Scores of order one at tokens of this 2-norm.
        self.size = float(np.sqrt(1.5 * np.sqrt(session.width) / typical))
        self.gain = 0.0

    def run(self) -> ReluRecovery:
        gathered: list[Kink] = []
        neurons, worst = 8, np.inf
        if self.heads.count == 0:
            # Without an odd part no head is seen; only the zero function is left.
            return self.answer([], neurons)
        for number in range(LINES):
            purpose = Purpose.RETRIES if number >= 3 else Purpose.RECOVERY
            line = Line.draw(self.heads.W, self.heads.count + 3, self.size, self.rng)
            found = kinks_on_line(
                self.session, self.heads.W, line, self.noise, neurons, purpose, self.rng
            )
            if found is None:
                continue
            gathered += found
            kinks = self.weighed(merged(gathered), purpose)
            neurons = max(neurons, len(kinks))
            if number == 0 and not kinks:
                continue
            worst = min(worst, self.disagreement(kinks))
            if worst < _MARGIN * self.noise.unit:
                return self.answer(kinks, neurons)
        kinks = self.weighed(merged(gathered), Purpose.RETRIES)
        if -np.log2(max(worst, 1e-300)) >= LEAST_BITS:
            return self.answer(kinks, neurons)
        raise RecoveryRefusedError(
            Reason.NO_NEURONS,
            f"{len(kinks)} kinks of {LINES} lines leave a relative deviation of {worst:.1g}.",
        )

    def weighed(self, kinks: list[Kink], purpose: Purpose) -> list[Kink]:
        """Leave out kinks that random sequences have no use for: two hinges taken for one.

        ``f - v^T c / 2 = 1/2 sum_k a_k |b_k^T c|`` is linear in the ``a_k``, which are the signs of
        true kinks and zero for others.
        """
        if not kinks:
            return kinks
        d = self.session.width
        tokens = self.rng.normal(size=(3 * len(kinks) + 20, self.heads.count + 3, d))
        tokens = self.session.representable(tokens * self.size / np.sqrt(d))
        c = averages(self.heads.W, tokens)
        values = self.session.ask(tokens, purpose) - 0.5 * c @ self.heads.v.reshape(-1)
        design = 0.5 * np.abs(c @ np.array([kink.vector for kink in kinks]).T)
        solved, *_ = np.linalg.lstsq(design, values, rcond=None)
        left = float(np.abs(values - design @ solved).max()) / float(np.abs(values).max())
        if left > 1e-3:  # some kink is still missing: the weights say nothing
            return kinks
        return [kink for kink, a in zip(kinks, solved, strict=True) if abs(a * kink.sign) > 0.5]

    def candidate(self, kinks: list[Kink]) -> ReluRecovery:
        rows = np.array([kink.vector for kink in kinks]).reshape(len(kinks), self.heads.v.size)
        signs = np.array([kink.sign for kink in kinks])
        return ReluRecovery(self.heads, rows, signs, None, 0.0, 0)

    def disagreement(self, kinks: list[Kink], purpose: Purpose = Purpose.RECOVERY) -> float:
        """Largest deviation on fresh sequences, relative to the sum of the sizes of all terms."""
        model, d = self.candidate(kinks), self.session.width
        worst = 0.0
        for scale in (0.5, 1.0, 2.0):
            for length in (1, 2, 5, 17):
                tokens = self.rng.normal(size=(CHECKS, length, d)) * self.size * scale / np.sqrt(d)
                tokens = self.session.representable(tokens)
                answers = self.session.ask(tokens, purpose)
                c = averages(self.heads.W, tokens)
                sizes = np.abs(c @ self.heads.v.reshape(-1)) + np.abs(c @ model.kinks.T).sum(axis=1)
                sizes = np.maximum(sizes, np.abs(answers))
                with np.errstate(invalid="ignore", divide="ignore"):
                    off = np.abs(answers - model(tokens)) / np.where(sizes > 0, sizes, 1.0)
                worst = max(worst, float(off.max()) if np.isfinite(off).all() else np.inf)
        return worst

    def answer(self, kinks: list[Kink], neurons: int) -> ReluRecovery:
        """The final check on sequences of its own, then the result."""
        worst = self.disagreement(kinks, Purpose.FINAL_CHECK)
        bits = float(-np.log2(max(worst, 2.0**-60)))
        if bits < LEAST_BITS:
            raise RecoveryRefusedError(
                Reason.CHECK_FAILED, f"Fresh sequences deviate by {worst:.2g} of their size."
            )
        model = self.candidate(kinks)
        notes = []
        strengths = np.linalg.norm(self.heads.v, axis=1)
        if len(strengths) and strengths.min() < _WEAK * strengths.max():
            notes.append("a head hardly shows in the odd part; its scores are less precise")
        signs = inner_signs(model.kinks, model.outer_signs, self.heads.v.reshape(-1))
        if signs is None and len(kinks):
            notes.append("inner signs are not determined: two more neurons carry the linear part")
        return ReluRecovery(
            self.heads,
            model.kinks,
            model.outer_signs,
            signs,
            bits,
            12 * CHECKS,
            tuple(notes),
        )
