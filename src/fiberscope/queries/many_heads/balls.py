"""Recover many attention heads from an oracle that answers with balls: rigorous enclosures.

The published algorithm and a shorter one (see :mod:`.ball_design`), run once at a precision the
program chooses. The answers are read twice, at half and at the full precision: enclosures must
be resolved and meet, and the number of heads must be the same, else the precision is doubled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.numbers.balls import Balls, ball_precision
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.ball_design import BallDesign, Key
from fiberscope.queries.many_heads.ball_matching import (
    Coincidence,
    match_directions,
    match_heights,
    match_tokens,
)
from fiberscope.queries.many_heads.ball_probe import (
    Contradiction,
    NeedsMoreBits,
    Probe,
    read_probe,
)
from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.one_head_balls import ball_bits
from fiberscope.queries.result import BoundKind, Estimate, Precision
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

BIT_LIMIT = 65536
"""Working precision beyond which the program gives up."""
DRAW_LIMIT = 6
"""Draws of probes before coincidences are taken for a property of the function."""
HEAD_LIMIT = 64
"""Largest number of heads looked for when no bound is given."""
CHECKS = 4
"""Fresh long sequences that must meet the answer."""
PUBLISHED = "many heads in balls, 4 H d^2 - 2 H + 1 queries"
SHORTER = "many heads in balls, 2 H (d^2 + d - 1) + 1 queries"


def recover_heads_in_balls(
    session: QuerySession,
    *,
    heads: int | None = None,
    heads_at_most: int | None = None,
    shorter: bool = False,
    rng: np.random.Generator,
) -> Estimate:
    """Enclose the canonical heads of a multi-head attention oracle.

    Parameters
    ----------
    session
        A session with a ball oracle.
    heads, heads_at_most
        The number of heads, or a bound on it. Equal heads merge and cancelling heads vanish, so
        fewer than ``heads`` may come back. With neither, a few more queries find the number.
    shorter
        Use ``2 H (d^2 + d - 1) + 1`` queries instead of ``4 H d^2 - 2 H + 1``. Where heads with the
        same values ``z^T v_h`` make that ambiguous, the remaining published queries are asked.
    rng
        Draws the probes.

    Raises
    ------
    RecoveryRefusedError
        With the reason; the enclosures are never wrong for a function of this form with at most
        the stated number of heads, each of which shows at the working precision.
    """
    bound = heads if heads is not None else heads_at_most
    if bound is not None and bound < 0:
        raise InputError(f"the number of heads is {bound}: give a number that is not negative")
    return _Run(session, rng, shorter).recover(bound)


class _Run:
    def __init__(self, session: QuerySession, rng: np.random.Generator, shorter: bool) -> None:
        self.session, self.rng, self.shorter = session, rng, shorter
        self.width = session.width
        self.purpose = Purpose.RECOVERY
        self.promised = True

    def recover(self, bound: int | None) -> Estimate:
        trouble = ""
        bits, self.promised = 0, bound is not None
        for draw in range(1, DRAW_LIMIT + 1):
            design = BallDesign.draw(self.width, self.rng)
            if bound is None:
                bound = self.find_bound(design)
            bits = bits or 2 * starting_bits(bound)
            if bits > BIT_LIMIT:
                raise RecoveryRefusedError(
                    Reason.PRECISION,
                    f"{bound} heads would need {bits} bits, {BIT_LIMIT} are the limit.",
                )
            while True:
                try:
                    answer = self.attempt(design, bound, bits, draw)
                except Contradiction as found:
                    raise RecoveryRefusedError(
                        Reason.MORE_HEADS, f"With {bound} heads allowed, {found}."
                    ) from None
                except NeedsMoreBits:
                    bits *= 2
                    self.purpose = Purpose.RETRIES
                    if bits > BIT_LIMIT:
                        raise RecoveryRefusedError(
                            Reason.PRECISION, f"{BIT_LIMIT} bits do not resolve them."
                        ) from None
                    # Roots that stay multiple at twice the digits are a coincidence of this draw.
                    if bits > 8 * starting_bits(bound):
                        trouble = f"enclosures stay unresolved at {bits // 2} bits"
                        break
                except Coincidence:
                    trouble = "heads agree on a probe"
                    break
                else:
                    self.check(answer, bits)
                    return answer
            self.purpose = Purpose.RETRIES
        reason = Reason.PRECISION if "unresolved" in trouble else Reason.COINCIDENCE
        raise RecoveryRefusedError(reason, f"After {DRAW_LIMIT} draws, {trouble}.")

    def find_bound(self, design: BallDesign) -> int:
        """Read one probe with more and more copies until some of them are not needed."""
        bound = 2
        while bound <= HEAD_LIMIT:
            bits = 2 * starting_bits(bound)
            raw = self.ask(design, [("base", 0, 0)], bound, bits)
            with ball_precision(bits):
                try:
                    count = read_probe([f - raw.last for f in raw.probes["base", 0, 0]]).count
                except (NeedsMoreBits, Contradiction):
                    count = bound
            if count < bound:
                return count
            bound *= 2
        raise RecoveryRefusedError(
            Reason.TOO_MANY_HEADS, f"More than {HEAD_LIMIT} heads at one probe."
        )

    def ask(self, design: BallDesign, keys: list[Key], bound: int, bits: int) -> _Answers:
        sequences = [design.tokens[:1]]
        for key in keys:
            sequences += design.sequences(key, bound)
        values = list(self.session.ask(sequences, self.purpose, bits=bits))
        step = 2 * bound
        probes = {key: values[1 + n * step : 1 + (n + 1) * step] for n, key in enumerate(keys)}
        return _Answers(values[0], probes)

    def attempt(self, design: BallDesign, bound: int, bits: int, draw: int) -> Estimate:
        """One draw at one precision, read at half of it and at all of it."""
        if self.shorter:
            raw = self.ask(design, design.shorter_keys(), bound, bits)
            try:
                return self.agree(design, raw, bound, bits, draw, shorter=True)
            except Coincidence:
                # Heads with equal values: the remaining published queries match them.
                asked = set(design.shorter_keys())
                rest = [key for key in design.published_keys() if key not in asked]
                more = self.ask(design, rest, bound, bits)
                raw = _Answers(raw.last, raw.probes | more.probes)
        else:
            raw = self.ask(design, design.published_keys(), bound, bits)
        return self.agree(design, raw, bound, bits, draw, shorter=False)

    def agree(
        self,
        design: BallDesign,
        raw: _Answers,
        bound: int,
        bits: int,
        draw: int,
        *,
        shorter: bool,
    ) -> Estimate:
        fine = read_heads(design, raw, bits, shorter)
        coarse = read_heads(design, raw, bits // 2, shorter)
        if len(fine[1]) != len(coarse[1]):
            raise NeedsMoreBits
        if len(fine[1]) and not all(
            any(
                all(a.overlaps(b) for a, b in zip(left.flat, right.flat, strict=True))
                for right in coarse[0]
            )
            for left in fine[0]
        ):
            raise NeedsMoreBits
        with ball_precision(bits):
            found = AttentionHeads(*fine)
            heads = found.canonical()
            if heads.count != found.count:  # enclosures too wide to tell heads apart
                raise NeedsMoreBits
            precision = Precision(
                tuple(ball_bits(W, bits) for W in heads.W),
                tuple(ball_bits(v, bits) for v in heads.v),
                BoundKind.CERTIFIED,
                f"radii of the enclosures at {bits} bits, for an oracle of this form with at most "
                f"{bound} heads, none too weak to show at this precision",
            )
        name = SHORTER if shorter else PUBLISHED
        notes: tuple[str, ...] = (f"probes were drawn {draw} times",) if draw > 1 else ()
        if not self.promised:
            notes += (
                f"nobody promised a number of heads: {bound} show at one probe that has room for "
                "more, and fresh sequences agree; heads too weak for its precision would not show",
            )
        return Estimate(heads, precision, name, notes)

    def check(self, answer: Estimate, bits: int) -> None:
        """Fresh long sequences at several scales: the enclosures must meet the oracle's."""
        length = 2 * max(1, answer.heads.count) + 5
        scales = 2.0 ** -np.arange(CHECKS)
        tokens = self.rng.normal(size=(CHECKS, length, self.width)) * scales[:, None, None]
        asked = self.session.ask(tokens, Purpose.FINAL_CHECK, bits=bits)
        for mine, value in zip(answer.heads.evaluate_many(tokens, bits), asked, strict=True):
            if not mine.overlaps(value):
                raise RecoveryRefusedError(
                    Reason.CHECK_FAILED, "A fresh sequence is proved to have another value."
                )


@dataclass(frozen=True)
class _Answers:
    last: Any  # f([y_1])
    probes: dict[Key, list[Any]]


def starting_bits(heads: int) -> int:
    """Working bits that resolve random heads: about ``6 H^2``, with room."""
    return 6 * heads**2 + 64


def read_heads(
    design: BallDesign, raw: _Answers, bits: int, shorter: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Enclosures ``(W, v)`` from the answers, computed at ``bits`` of precision."""
    system = Balls(bits)
    width = len(design.tokens)
    with system.precision():
        directions = system.matrix(system.array(design.directions))
        tokens = system.matrix(system.array(design.tokens))
        probes: dict[Key, Probe] = {}

        def read(key: Key, constant: Any) -> None:
            probes[key] = read_probe([f - constant for f in raw.probes[key]])

        for i in range(width):
            read(("base", 0, i), raw.last)
        zero = system.number(0)
        sums = [sum(probes["base", 0, i].heights, start=zero) for i in range(width)]
        total = directions.solve(system.flint.arb_mat(width, 1, sums))
        total = system.from_matrix(total).reshape(width)
        if not (system.array(design.tokens[0]) @ total).overlaps(raw.last):
            raise Contradiction("the values do not add up to the answer to a single token")
        for key in raw.probes:
            if key not in probes:
                token = system.array(design.token(key))
                read(key, raw.last if key[0] != "token" and key[1] == 0 else token @ total)
        counts = {probe.count for probe in probes.values()}
        if len(counts) > 1:
            raise Coincidence
        heads = counts.pop()
        try:
            order = _orders(probes, width, shorter)
        except Contradiction as found:
            # It is a proof only where no head can have been missed.
            if all(2 * heads == len(values) for values in raw.probes.values()):
                raise
            raise NeedsMoreBits(str(found)) from None
        weights = np.empty((heads, width, width), dtype=object)
        values = np.empty((heads, width), dtype=object)
        for h in range(heads):
            logarithms = [
                probes["base", j, i].logarithms[order[j, i][h]]
                for i in range(width)
                for j in range(width)
            ]
            left = directions.solve(system.flint.arb_mat(width, width, logarithms))
            # Z W Y^T = log a with the tokens as rows of Y, so Y W^T = (Z^-1 log a)^T.
            right = tokens.solve(left.transpose()).transpose()
            weights[h] = system.from_matrix(right)
            heights = [probes["base", 0, i].heights[order[0, i][h]] for i in range(width)]
            solved = directions.solve(system.flint.arb_mat(width, 1, heights))
            values[h] = system.from_matrix(solved).reshape(width)
    return weights, values


def _orders(
    probes: dict[Key, Probe], width: int, shorter: bool
) -> dict[tuple[int, int], tuple[int, ...]]:
    """For every base probe, where the heads of probe ``(y_1, z_1)`` stand in it."""
    start = probes["base", 0, 0]
    order = {(0, 0): tuple(range(start.count))}

    def follow(first: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(step[h] for h in first)

    for i in range(1, width):
        step = match_directions(start, probes["base", 0, i], probes["direction", 0, i])
        order[0, i] = follow(order[0, 0], step)
    for j in range(1, width):
        if shorter:
            for i in range(width):
                step = match_heights(probes["base", 0, i], probes["base", j, i])
                order[j, i] = follow(order[0, i], step)
            continue
        first = probes["base", j, 0]
        step = match_tokens(start, first, probes["token", j, 0])
        order[j, 0] = follow(order[0, 0], step)
        for i in range(1, width):
            step = match_directions(first, probes["base", j, i], probes["direction", j, i])
            order[j, i] = follow(order[j, 0], step)
    return order
