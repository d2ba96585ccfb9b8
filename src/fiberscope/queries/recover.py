"""Recover attention heads from an oracle: class tests, a method, the final check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.class_tests import NONLINEAR, ClassTests, class_tests
from fiberscope.queries.final_check import FinalCheck, final_check
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.options import refuse_idle_options
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import (
    BoundKind,
    Estimate,
    NotOfThisFormError,
    NotRecoveredError,
    Recovery,
)
from fiberscope.queries.session import QuerySession

if TYPE_CHECKING:
    from fiberscope.queries.relu_network import ReluRecovery


@dataclass(frozen=True)
class Request:
    """What is known or wished beforehand.

    Attributes
    ----------
    heads
        Number of heads, if known.
    heads_at_most
        A bound on it.
    rank
        A bound on the rank of every ``W_h``. Alone it promises a single head; with a number of
        heads, or a bound on it, many heads of that rank.
    noise
        A bound on the error of every answer.
    token_bound
        Largest 2-norm of a token that the oracle accepts.
    full
        The full precision of many heads in floating point, not only a coarse answer.
    shorter
        Many heads in balls: the algorithm with fewer queries.
    """

    heads: int | None = None
    heads_at_most: int | None = None
    rank: int | None = None
    noise: float | None = None
    token_bound: float | None = None
    full: bool = True
    shorter: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "heads_at_most", "rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be positive, got {value}")
        for name in ("noise", "token_bound"):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf):
                raise InputError(f"--{name.replace('_', '-')} must be positive, got {value}")
        if self.heads is not None and self.heads_at_most is not None:
            raise InputError("give --heads or --heads-at-most, not both")

    @property
    def one_head(self) -> bool:
        """Whether a single head is promised."""
        stated = self.heads or self.heads_at_most
        return stated == 1 or (stated is None and self.rank is not None)


def recover_attention(session: QuerySession, request: Request, seed: int = 0) -> Recovery:
    """Learn the heads ``{(W_h, v_h)}`` from queries, or say why not.

    Class tests come first; then the method that fits the request; then the final check, which every
    answer passes.

    Parameters
    ----------
    session
        The oracle.
    request
        What is known.
    seed
        Of all probes: the same seed asks the same queries.

    Raises
    ------
    NotOfThisFormError
        If an identity of all attention layers fails beyond the noise.
    NotRecoveredError
        If the answer could not be found, or fails the final check.
    InputError
        If the request makes no sense for this oracle, or the queries are spent.
    """
    refuse_idle_options(request, session.arithmetic, session.width)
    streams = np.random.default_rng(seed).spawn(3)
    session.token_bound = request.token_bound
    tests = class_tests(
        session, streams[0], declared_noise=request.noise, token_bound=request.token_bound
    )
    tests.require()
    estimate = _estimate(session, request, tests, streams[1])
    if request.heads is not None and estimate.heads.count < request.heads:
        fewer = (
            f"{request.heads} {'head was' if request.heads == 1 else 'heads were'} stated and "
            f"{estimate.heads.count} show: others are equal "
            "within what the noise shows, cancel or vanish, or there are fewer"
        )
        estimate = replace(estimate, notes=(*estimate.notes, fewer))
    check = checked(session, estimate, tests, request, streams[2])
    return Recovery(
        estimate,
        tests.noise,
        session.counts,
        check,
        statistics={"class_tests": tests.tests, "token_scale": tests.scale.size},
    )


def recover_attention_and_relu(
    session: QuerySession, request: Request, seed: int = 0
) -> tuple[ReluRecovery, ClassTests]:
    """Learn attention followed by a ReLU network without biases, as a function.

    Identities that hold for every such function are tested first; fresh sequences decide last.

    Raises
    ------
    NotOfThisFormError
        If one of those identities fails beyond the noise.
    NotRecoveredError
        If the function could not be found, or fresh sequences disagree.
    InputError
        If the request makes no sense here, or the queries are spent.
    """
    from fiberscope.queries.relu_network import recover_attention_with_relu

    refuse_idle_options(request, session.arithmetic, session.width, relu=True)
    streams = np.random.default_rng(seed).spawn(2)
    session.token_bound = request.token_bound
    tests = class_tests(session, streams[0], token_bound=request.token_bound)
    for test in tests.failed:
        if test.name not in NONLINEAR:
            raise NotOfThisFormError(test.name, test.identity, test.violation, test.threshold)
    found = recover_attention_with_relu(
        session,
        heads=request.heads,
        heads_at_most=request.heads_at_most,
        rng=streams[1],
        noise=tests.noise,
    )
    return found, tests


def _estimate(
    session: QuerySession, request: Request, tests: ClassTests, rng: np.random.Generator
) -> Estimate:
    if session.arithmetic is Arithmetic.BALLS:
        if request.one_head:
            from fiberscope.queries.one_head_balls import recover_one_head_in_balls

            return recover_one_head_in_balls(session, request.rank, rng)
        from fiberscope.queries.many_heads.balls import recover_heads_in_balls

        return recover_heads_in_balls(
            session,
            heads=request.heads,
            heads_at_most=request.heads_at_most,
            shorter=request.shorter,
            rng=rng,
        )
    if request.noise is not None:
        from fiberscope.queries.one_head_noise import recover_one_head_with_noise

        return recover_one_head_with_noise(session, request.noise, tests.scale, rng)
    if request.rank is not None and not request.one_head:
        from fiberscope.queries.many_heads.low_rank import recover_low_rank_heads

        return recover_low_rank_heads(
            session,
            request.rank,
            heads=request.heads,
            heads_at_most=request.heads_at_most,
            rng=rng,
            noise=tests.noise,
        )
    if request.rank is not None:
        from fiberscope.queries.one_head_low_rank import recover_low_rank_head

        return recover_low_rank_head(session, tests.noise, tests.scale, request.rank, rng)
    if request.one_head:
        from fiberscope.queries.one_head import recover_one_head

        return recover_one_head(session, tests.noise, tests.scale, rng)
    from fiberscope.queries.many_heads.floats import recover_heads_in_floats

    return recover_heads_in_floats(
        session,
        heads=request.heads,
        heads_at_most=request.heads_at_most,
        rng=rng,
        precision="full" if request.full else "coarse",
        noise=tests.noise,
    )


def checked(
    session: QuerySession,
    estimate: Estimate,
    tests: ClassTests,
    request: Request,
    rng: np.random.Generator,
) -> FinalCheck:
    """The final check of an estimate.

    Deviations must be explained by the noise and by the precision that the estimate itself claims;
    an answer of which this demands nothing is none.

    Raises
    ------
    NotRecoveredError
        If it fails.
    """
    heads = estimate.heads
    bits = estimate.precision.bits
    if bits is not None and bits < 1:
        raise NotRecoveredError(
            "the noise hides the weights: the bound on an error is more than half of a head's size"
        )
    certified = estimate.precision.kind is BoundKind.CERTIFIED
    relative = 0.0 if bits is None or certified else 2.0**-bits
    if estimate.explained is not None:
        relative = estimate.explained
    check = final_check(
        session,
        heads.evaluate_many,
        heads.size,
        _noise_without_heads(tests.noise, heads),
        rng,
        token_size=tests.scale.size,
        relative=relative,
        sensitivity=lambda sequences: wiggled(heads, relative, sequences),
        token_bound=request.token_bound,
    )
    if not check.passed:
        raise NotRecoveredError(
            f"the final check failed: a fresh query deviates by {check.deviation:.2g} where "
            f"{check.threshold:.2g} is explained; {_advice(session, request)}"
        )
    return check


def wiggled(
    heads: AttentionHeads, relative: float, sequences: Sequence[NDArray[Any]], draws: int = 16
) -> NDArray[np.float64]:
    """How far answers move, typically, when all weights change by a relative error: ``(n,)``.

    Root mean square over random changes with ``|dW_h|_F = relative |W_h|_F`` and likewise for
    ``v_h``; no bound, since the scores of large tokens amplify errors in ways no norm knows.
    """
    middle = heads.middle()
    before = middle.evaluate_many(sequences)
    rng = np.random.default_rng(0)
    total = np.zeros(len(sequences))
    for _ in range(draws):
        moved = []
        for weights in (middle.W, middle.v):
            change = rng.standard_normal(weights.shape)
            axes = tuple(range(1, weights.ndim))
            size = np.sqrt(np.sum(weights**2, axis=axes, keepdims=True))
            change *= relative * size / np.sqrt(np.sum(change**2, axis=axes, keepdims=True))
            moved.append(weights + change)
        total += (AttentionHeads(*moved).evaluate_many(sequences) - before) ** 2
    return np.asarray(np.sqrt(total / draws))


def _noise_without_heads(noise: NoiseLevel, heads: AttentionHeads) -> NoiseLevel:
    """Without heads the prediction is zero, and so must be the answers."""
    return replace(noise, unit=0.0) if heads.count == 0 else noise


def _advice(session: QuerySession, request: Request) -> str:
    if request.rank is not None:
        return "the rank or the number of heads is larger, or another --seed may do"
    if request.one_head:
        return "there is more than one head (try --heads-at-most), or more noise than was measured"
    return "more heads, or another --seed, may do"
