"""Recover attention followed by a bias-free ReLU network, single or multi-head, as a function.

1. The odd part ``f(X) - f(-X)`` is a sum of attention heads: every ``W_h`` but those that it does
   not show, and the linear part. One that it does not show is searched in one region
   (:mod:`.hidden_heads`).
2. With the ``W_h`` known the averages ``c(X)`` are known, and ``f`` is piecewise linear in them. On
   lines along which scores stay constant every neuron makes one hinge (:mod:`.lines`).
3. In every piece the linear function is fitted; the jump at a hinge is the neuron, up to sign.
4. Kinks of several lines are merged; those that random sequences have no use for are left out.
5. Fresh sequences decide. What fails is not returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.floats import SAFETY_BITS, recover_heads_in_floats
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.relu_network.hidden_heads import HiddenHead
from fiberscope.queries.relu_network.kinks import Kink, inner_signs, kinks_on_line, merged
from fiberscope.queries.relu_network.lines import Line
from fiberscope.queries.relu_network.odd_part import OddPart
from fiberscope.queries.relu_network.result import ReluRecovery, averages
from fiberscope.queries.session import Purpose
from fiberscope.queries.token_scale import find_token_scale

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

LINES, COARSE_LINES = 12, 40
"""Most lines that are searched for hinges, in float64 and in float32."""
SCALES, LENGTHS, CHECKS = (0.125, 0.5, 1.0, 2.0, 4.0), (1, 2, 5, 17), 8
"""Fresh sequences: sizes of tokens, numbers of them, and sequences of each kind."""
NEAR = (0.0, *(sign * 2.0**-j for j in range(1, 25) for sign in (1, -1)))
"""Where the final check looks around every hinge, relative to a token."""
LEAST_BITS, LEAST_COARSE_BITS = 20.0, 10.0
"""Agreement on fresh sequences below which nothing is returned, in float64 and in float32: of the
largest deviation with the root mean square of answers, and of what the attention leaves of them."""
COARSE = 2.0**-40
"""Unit roundoff above which an oracle is coarse."""
_MARGIN = 2.0**17
_ROUNDING = 2.0**8
_SPARE = 2.0**-2
"""Share of what the final check allows at which no further line is asked: it looks at ten times as
many sequences, at hinges above all, and its largest deviation is another one."""
_EXPLAINED = 2.0**5
"""Times the measured errors of answers that deviations may reach where little is left of them."""
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

    Conditions: more dimensions than heads; ``V_h^T U^T w`` vanishes for at most one head (its
    scores do not show in the odd part); ReLU without biases. Parallel neurons come back as one
    kink.

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
    limit, readout, bound = heads or heads_at_most, noise, noise
    if _is_even(session, noise, rng):
        d = session.width
        seen = AttentionHeads(np.zeros((0, d, d)), np.zeros((0, d)))
    else:
        estimate = recover_heads_in_floats(
            odd, heads=heads, heads_at_most=heads_at_most, rng=rng, noise=level
        )
        seen = estimate.heads
        if noise.unit > COARSE:
            # Averages are as good as the scores, whose errors stand out only here. Stated bits
            # bound them: what answers show beyond that is another head. Tolerances of the readout
            # have factors of their own and start from the error itself.
            stated = 2.0 ** -min(estimate.precision.W, default=53.0)
            bound = replace(noise, unit=max(noise.unit, stated))
            readout = replace(noise, unit=max(noise.unit, stated / 2.0**SAFETY_BITS))
    try:
        found = _with_hidden(session, seen, limit, readout, bound, rng)
    except RecoveryRefusedError as error:
        if error.kind is not Reason.HIDDEN_HEADS or not seen.count:
            raise
        # A crossing may have looked like a further head: fresh sequences decide without one.
        try:
            return _Readout(session, seen, readout, rng, (), noise).run()
        except RecoveryRefusedError:
            raise error from None
    return _Readout(session, found.heads, found.noise, rng, found.notes, noise).run()


@dataclass(frozen=True)
class _Found:
    heads: AttentionHeads
    noise: NoiseLevel
    notes: tuple[str, ...] = ()


def _with_hidden(
    session: QuerySession,
    heads: AttentionHeads,
    limit: int | None,
    noise: NoiseLevel,
    bound: NoiseLevel,
    rng: np.random.Generator,
) -> _Found:
    """The heads of the odd part, and one that it does not show if answers need it.

    ``noise`` is what the readout starts from, ``bound`` what known heads may leave at most.
    """
    _fewer_than_width(heads.count, session.width)
    notes: tuple[str, ...] = ()
    if session.width > 1 and not _vanishes(session, noise, rng):
        search = HiddenHead(session, heads.W, bound, _token_size(session, heads, rng), rng)
        if search.needed():
            if limit is not None and heads.count >= limit:
                raise RecoveryRefusedError(
                    Reason.MORE_HEADS,
                    f"{_heads(heads.count)} {'does' if heads.count == 1 else 'do'} not explain the "
                    f"answers, and no more than {limit} may be used.",
                )
            _fewer_than_width(heads.count + 1, session.width)
            W, error = search.find()
            heads = AttentionHeads(
                np.concatenate([heads.W, W[None]]),
                np.concatenate([heads.v, np.zeros((1, session.width))]),
            )
            # Averages are as good as the scores.
            noise = replace(noise, unit=max(noise.unit, error / 8))
            notes = (
                "a head does not show in the odd part (V^T U^T w = 0): it was found in one region "
                f"of the network, to about {-np.log2(error):.0f} bits",
            )
    return _Found(heads, noise, notes)


def _fewer_than_width(count: int, width: int) -> None:
    if count >= width:
        raise RecoveryRefusedError(
            Reason.TOO_MANY_HEADS,
            f"{_heads(count)} of width {width} leave no direction without scores.",
        )


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _vanishes(session: QuerySession, noise: NoiseLevel, rng: np.random.Generator) -> bool:
    """Whether every one of some answers is zero: no head is missed where nothing is answered."""
    tokens = session.representable(rng.normal(size=(8, 3, session.width)))
    answers = session.ask(tokens, Purpose.RECOVERY)
    return bool((np.abs(answers) <= noise.absolute).all())


def _is_even(session: QuerySession, noise: NoiseLevel, rng: np.random.Generator) -> bool:
    """Whether ``f(-X) = f(X)`` up to rounding: then the odd part shows no head at all."""
    scales = np.repeat([0.125, 0.5, 1.0], 8)[:, None, None]
    tokens = session.representable(scales * rng.normal(size=(24, 5, session.width)))
    ahead, back = session.ask(tokens, Purpose.RECOVERY), session.ask(-tokens, Purpose.RECOVERY)
    # Rounding goes with the tokens: the largest answer at each scale stands for their terms.
    size = np.repeat(np.abs(ahead).reshape(3, 8).max(axis=1), 8)
    allowed = _ROUNDING * noise.unit * size + 2 * noise.absolute
    return bool((np.abs(ahead - back) <= allowed).all())


def _token_size(session: QuerySession, heads: AttentionHeads, rng: np.random.Generator) -> float:
    """2-norm of tokens with scores of order one; searched where no head is known."""
    norms = np.linalg.norm(heads.W, axis=(1, 2))
    if (norms > 0).any():
        typical = float(np.median(norms[norms > 0]))
        return float(np.sqrt(1.5 * np.sqrt(session.width) / typical))
    scale = find_token_scale(session, rng, session.token_bound)
    return scale.size


class _Readout:
    def __init__(
        self,
        session: QuerySession,
        heads: AttentionHeads,
        noise: NoiseLevel,
        rng: np.random.Generator,
        notes: tuple[str, ...] = (),
        measured: NoiseLevel | None = None,
    ) -> None:
        self.session, self.heads, self.noise, self.rng = session, heads, noise, rng
        # Errors of the heads found are no excuse for deviations; those of answers are.
        self.notes, self.measured = notes, measured or noise
        norms = np.linalg.norm(heads.W, axis=(1, 2))
        typical = float(np.median(norms[norms > 0])) if (norms > 0).any() else 1.0
        # Scores of order one at tokens of this 2-norm.
        self.size = float(np.sqrt(1.5 * np.sqrt(session.width) / typical))
        coarse = noise.unit > COARSE
        self.least = LEAST_COARSE_BITS if coarse else LEAST_BITS
        self.lines = COARSE_LINES if coarse else LINES

    def run(self) -> ReluRecovery:
        gathered: list[Kink] = []
        best: list[Kink] = []
        neurons, worst = 8, np.inf
        if self.heads.count == 0:  # only the zero function is left
            return self.answer([], neurons)
        for number in range(self.lines):
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
            left = self.compared(kinks).worst
            if left < worst:
                worst, best = left, kinks
            if worst < min(_MARGIN * self.noise.unit, _SPARE * 2.0**-self.least):
                break
        if bits(worst) >= self.least:
            return self.answer(best, neurons)
        raise RecoveryRefusedError(
            Reason.NO_NEURONS,
            f"{len(best)} kinks of {self.lines} lines leave a relative deviation of {worst:.1g}.",
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

    def compared(self, kinks: list[Kink], purpose: Purpose = Purpose.RECOVERY) -> Agreement:
        """Largest deviations on fresh sequences of every size and length.

        Relative to the root mean square of the answers to sequences of the same kind, and of what
        the attention alone leaves of them: terms that cancel would hide a missing neuron. Single
        tokens are asked on the hinge of every kink as well, where one kink taken for two shows.
        """
        model, d = self.candidate(kinks), self.session.width
        answers_off = rest_off = unexplained = 0.0
        for scale in SCALES:
            for length in LENGTHS:
                tokens = self.rng.normal(size=(CHECKS, length, d)) * self.size * scale / np.sqrt(d)
                if length == 1:
                    steps = NEAR if scale == 1.0 and purpose is Purpose.FINAL_CHECK else (0.0,)
                    tokens = np.concatenate([tokens, self.at_hinges(kinks, scale, steps)])
                tokens = self.session.representable(tokens)
                answers = self.session.ask(tokens, purpose)
                c = averages(self.heads.W, tokens)
                linear = 0.5 * c @ self.heads.v.reshape(-1)
                sizes = np.abs(linear) + 0.5 * np.abs(c @ model.kinks.T).sum(axis=1)
                explained = _EXPLAINED * self.measured.bound(np.maximum(sizes, np.abs(answers)))
                off = np.abs(answers - model(tokens))
                if not np.isfinite(off).all():
                    return Agreement(np.inf, np.inf, np.inf)
                answers_off = max(answers_off, _relative(off, answers))
                rest_off = max(rest_off, _relative(off, answers - linear))
                beyond = np.where(off > explained, off, 0.0)
                unexplained = max(unexplained, _relative(beyond, answers - linear))
        return Agreement(answers_off, rest_off, unexplained)

    def at_hinges(self, kinks: list[Kink], scale: float, steps: Sequence[float]) -> Floats:
        """Single tokens where ``b_k^T c`` is a step times its size, shape ``(K steps, 1, d)``."""
        d = self.session.width
        tokens = self.rng.normal(size=(len(kinks), d)) * self.size * scale / np.sqrt(d)
        # All averages of a single token are that token.
        normals = [kink.vector.reshape(-1, d).sum(axis=0) for kink in kinks]
        rows = np.array(normals).reshape(len(kinks), d)
        squares = np.maximum(np.sum(rows**2, axis=1), 1e-300)
        tokens -= (np.sum(rows * tokens, axis=1) / squares)[:, None] * rows
        aside = rows / np.sqrt(squares)[:, None] * self.size * scale / np.sqrt(d)
        return np.concatenate([tokens + step * aside for step in steps])[:, None]

    def answer(self, kinks: list[Kink], neurons: int) -> ReluRecovery:
        """The final check on sequences of its own, then the result."""
        found = self.compared(kinks, Purpose.FINAL_CHECK)
        if bits(found.worst) < self.least:
            raise RecoveryRefusedError(
                Reason.CHECK_FAILED,
                f"Fresh sequences deviate by {found.answers:.2g} of the answers and by "
                f"{found.rest:.2g} of what the attention leaves of them (root mean squares).",
            )
        model = self.candidate(kinks)
        notes = list(self.notes)
        strengths = np.linalg.norm(self.heads.v, axis=1)
        strengths = strengths[strengths > 0]
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
            bits(found.answers),
            len(SCALES) * (len(LENGTHS) * CHECKS + len(kinks)) + (len(NEAR) - 1) * len(kinks),
            tuple(notes),
            network_bits=bits(found.rest),
        )


@dataclass(frozen=True)
class Agreement:
    """Largest deviations on fresh sequences, each relative to a root mean square.

    Attributes
    ----------
    answers, rest
        Relative to the answers, and to what the attention alone leaves of them.
    unexplained
        Like ``rest``, of those deviations that exceed the measured errors of answers.
    """

    answers: float
    rest: float
    unexplained: float

    @property
    def worst(self) -> float:
        """What decides."""
        return max(self.answers, self.unexplained)


def bits(deviation: float) -> float:
    """``-log2`` of a relative deviation, at most 60."""
    return float(-np.log2(max(deviation, 2.0**-60)))


def _relative(deviations: Floats, answers: Floats) -> float:
    """Largest deviation over the root mean square of answers; infinite where these vanish."""
    largest, size = float(deviations.max()), float(np.sqrt(np.mean(answers**2)))
    if largest == 0:
        return 0.0
    return largest / size if size > 0 else float("inf")
