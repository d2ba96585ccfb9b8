r"""Is the oracle a sum of attention heads? Identities that every such function satisfies.

With ``f(X) = sum_h sum_i softmax_i(x_i^T W_h x_N) x_i^T v_h`` and tokens ``y + z_i`` before a last
token ``y``, softmax forgets ``y^T W_h y``; ``F(Z, y) = f([y + z_1; ..; y]) - f([y])`` depends on
``z_i^T W_h y`` and ``z_i^T v_h`` only. Hence

==================  ===============================================================
test                identity
==================  ===============================================================
repeat              the same sequence has the same answer, within the noise
linear              ``f([a x + b y]) = a f([x]) + b f([y])``
power of two        ``f([4 x]) = 4 f([x])``, to the last bit in any binary arithmetic
permutation         reordering all tokens but the last changes nothing
duplication         every token three times changes nothing
oddness             ``f(-X) = -f(X)``
reflection          ``F(z, y) + F(z, -y) = f([z])`` for a single ``z``
scale               ``F(s Z, y / s) = s F(Z, y)``
constant sequence   ``f([x; x; ...]) = f([x])``
==================  ===============================================================

Every identity reads ``sum_k c_k f(X_k) = 0``; a violation counts where noise cannot explain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.noise import REPETITIONS, NoiseLevel, measured_noise, shown_arithmetic
from fiberscope.queries.oracle import BALL_BITS, Arithmetic
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.token_scale import SMALLEST, TokenScale, find_token_scale, grain_of

LONG = 65
"""Tokens of the long sequences: beyond a sliding window of 64."""
DRAWS = 6
SCALES = (0.5, 1.0, 2.0)
MARGIN = {
    Arithmetic.FLOAT64: 2.0**11,
    Arithmetic.FLOAT32: 2.0**7,
    Arithmetic.BFLOAT16: 2.0**4,
    Arithmetic.BALLS: 0.0,
}
"""Times the unit roundoff and the size of what is added up: what rounding may explain."""
NOISE_SHARE = 0.1
"""Repeated answers that spread by more than this share of the answers are too noisy."""

ENLARGED, LARGER = 3, 16
"""Times that tokens grow, and by how much, before answers count as unrelated to the sequence."""
CONFIRMATIONS, STANDARD_ERRORS = 8, 12.0
"""Rounds in which a violation is confirmed where answers differ from call to call, and standard
errors beyond which it is: with seven degrees of freedom chance does that once in 150,000 times."""

GENERIC = frozenset({"permutation", "duplication", "reflection", "scale"})
"""Identities whose two sides round differently: how far they miss shows typical errors."""
NONLINEAR = frozenset({"linear", "oddness", "reflection", "scale"})
"""Identities that a ReLU network on top breaks."""
COARSE = 2.0**-6
"""Relative violations below this can come from bfloat16 inside an oracle."""

IDENTITIES = {
    "repeat": "the same sequence has the same answer",
    "linear": "f([a x + b y]) = a f([x]) + b f([y])",
    "power of two": "f([4 x]) = 4 f([x])",
    "permutation": "reordering the tokens before the last changes nothing",
    "duplication": "repeating every token three times changes nothing",
    "oddness": "f(-X) = -f(X)",
    "reflection": "f([y+z; y]) - f([y]) + f([z-y; -y]) - f([-y]) = f([z])",
    "scale": "f([y/s + s z_i; y/s]) - f([y/s]) = s (f([y + z_i; y]) - f([y]))",
    "constant sequence": "f([x; x; ..; x]) = f([x])",
}


@dataclass(frozen=True)
class ClassTest:
    """Result of one identity over all draws.

    Attributes
    ----------
    name, identity
        Key and value of :data:`IDENTITIES`.
    violation, threshold
        The draw with the largest ratio of the two (balls: a proved lower bound against zero).
    relative
        The violation there, relative to the largest answer that takes part.
    """

    name: str
    identity: str
    violation: float
    threshold: float
    relative: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether noise explains the violation."""
        return self.violation <= self.threshold


@dataclass(frozen=True)
class ClassTests:
    """All identities, with the noise and the token scale found on the way."""

    tests: tuple[ClassTest, ...]
    noise: NoiseLevel
    scale: TokenScale
    queries: int

    @property
    def failed(self) -> tuple[ClassTest, ...]:
        """Tests that noise does not explain, in the order of :data:`IDENTITIES`."""
        return tuple(test for test in self.tests if not test.passed)

    @property
    def like_relu(self) -> bool:
        """Whether all fits attention followed by a ReLU network without biases.

        Such a function is positively homogeneous, so every identity holds but those that
        compare different outputs of the attention.
        """
        return {test.name for test in self.failed} <= NONLINEAR

    def require(self) -> None:
        """Raise :class:`NotOfThisFormError` for the first failed test.

        Raises
        ------
        NotRecoveredError
            Instead, if everything looks like a coarser arithmetic inside the oracle: identities of
            sums fail by a percent at most, while signs and powers of two pass exactly, which
            rounding respects and other functions hardly do.
        """
        failed = {test.name: test.relative for test in self.failed}
        if (
            failed
            and max(failed.values()) < COARSE
            and not failed.keys() & {"repeat", "power of two", "oddness"}
            and failed.keys() & {"linear", "duplication", "constant sequence"}
        ):
            raise NotRecoveredError(
                f"identities fail by up to {max(failed.values()):.1g} relative, but not for signs "
                "and powers of two: either the oracle computes in a coarser arithmetic inside than "
                "its answers show (then pass --arithmetic), or it is not of this form"
            )
        for test in self.failed:
            hint = ""
            if self.like_relu and failed.keys() & {"linear", "oddness"}:
                hint = (
                    "; what else was tested also holds behind a ReLU network without biases: "
                    "try --relu"
                )
            raise NotOfThisFormError(test.name, test.identity, test.violation, test.threshold, hint)


@dataclass(frozen=True)
class _Term:
    coefficient: float
    tokens: NDArray[Any]
    repetition: int = 0


def class_tests(
    session: QuerySession,
    rng: np.random.Generator,
    *,
    declared_noise: float | None = None,
    token_bound: float | None = None,
) -> ClassTests:
    """Test all identities on random sequences; about 120 queries.

    The arithmetic that the answers show replaces the declared one where it is coarser, so that
    later tokens are sent on its grid.

    Raises
    ------
    NotOfThisFormError
        If no token size gives finite answers, or repeated answers have nothing in common. Failed
        identities are returned; see `ClassTests.require`.
    """
    before = session.queries
    scale = find_token_scale(session, rng, token_bound, declared_noise)
    enlarged = 0
    while True:
        try:
            found = _at_scale(session, rng, scale, declared_noise, before)
        except NotOfThisFormError:
            # Noise, perhaps, in which small answers drown: larger tokens have larger answers.
            enlarged += 1
            if enlarged > ENLARGED or 4 * LARGER * scale.size > scale.largest:
                raise
            scale = replace(scale, size=LARGER * scale.size)
            continue
        if found is not None:
            session.tests = found
            return found
        # NaN or infinity: smaller tokens, down to where the search began.
        if scale.size / 4 < SMALLEST:
            raise NotOfThisFormError("finite", "every answer is a finite number", np.inf, 0.0)
        size = scale.size / 4
        scale = replace(scale, size=size, largest=4 * size, backed_off=True)


def _at_scale(
    session: QuerySession,
    rng: np.random.Generator,
    scale: TokenScale,
    declared_noise: float | None,
    before: int,
) -> ClassTests | None:
    """All tests at one scale; None if an answer is not finite."""
    balls, gain = session.arithmetic is Arithmetic.BALLS, 0.0
    repeated, reach = _repeat(session, rng, scale)
    if balls:
        noise = NoiseLevel(0.0, sources=("ball enclosures",))
        spread = 0.0 if all(a.overlaps(b) for row in repeated for a, b in _pairs(row)) else 1.0
        results = [ClassTest("repeat", IDENTITIES["repeat"], spread, 0.0)]
    else:
        if not np.isfinite(repeated).all():
            return None
        _check_repeat(repeated)
        shown = np.concatenate([scale.answers, repeated.reshape(-1)])
        session.arithmetic = shown_arithmetic(shown, session.arithmetic)
        results = []
    groups = [(name, _bounded(draw, scale)) for name, draw in _identities(session, rng, scale)]
    terms = [term for _, draw in groups for term in draw]
    answers = session.ask([term.tokens for term in terms], Purpose.CLASS_TESTS)
    if not balls:
        if not np.isfinite(answers).all():
            return None
        grain = scale.grain
        if not scale.answers.any():
            # Nearly everything cancels: what does not shows the grain.
            lengths = [np.linalg.norm(term.tokens, axis=1).max() for term in terms]
            grain = grain_of(answers, np.array(lengths), session.arithmetic.unit)
        gain = max(_gain(terms, answers), grain)
        noise = measured_noise(session.arithmetic, repeated, reach, answers, gain, declared_noise)
        spread = float(np.max(repeated.max(axis=1) - repeated.min(axis=1)))
        results = [ClassTest("repeat", IDENTITIES["repeat"], spread, spread)]
    found: dict[str, ClassTest] = {}
    missed: list[float] = []
    at = 0
    for name, draw in groups:
        part = answers[at : at + len(draw)]
        at += len(draw)
        test = _judge(name, draw, part, noise, gain, session.arithmetic)
        if name in GENERIC and not balls:
            missed.append(test.violation / _reach_of_errors(draw))
        if not balls and not noise.repeatable and not test.passed:
            test = _asked_again(session, draw, test)
        if name not in found or _ratio(test) > _ratio(found[name]):
            found[name] = test
    if missed and noise.repeatable:
        # Without the worst tenth: one answer at a large score would speak for all.
        kept = np.sort(missed)[: -(len(missed) // 10) or None]
        typical = float(np.sqrt(np.mean(np.square(kept))))
        noise = replace(noise, typical=max(typical, 0.05 * noise.unit * gain))
    tests = (*results, *(found[name] for name in IDENTITIES if name in found))
    return ClassTests(tests, noise, scale, session.queries - before)


def _pairs(row: Any) -> Iterator[tuple[Any, Any]]:
    return ((row[0], other) for other in row[1:])


def _repeat(
    session: QuerySession, rng: np.random.Generator, scale: TokenScale
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Answers ``(4, REPETITIONS)`` to four sequences, two each of two sizes; largest norms."""
    factors = (0.25, 0.25, 2.0, 2.0)
    sequences = [_draw(session, rng, 5, factor * scale.size) for factor in factors]
    sequences = [_bounded([_Term(1, each)], scale)[0].tokens for each in sequences]
    columns = [
        session.ask(sequences, Purpose.CLASS_TESTS, repetition=k) for k in range(REPETITIONS)
    ]
    reach = [np.linalg.norm(each.astype(np.float64), axis=1).max() for each in sequences]
    return np.stack(columns, axis=1), np.array(reach)


def _check_repeat(repeated: NDArray[np.float64]) -> None:
    """Refuse answers that do not depend on the sequence, or hardly."""
    spread = float(np.sqrt(np.mean(repeated.var(axis=1, ddof=1))))
    between = float(repeated.mean(axis=1).std(ddof=1))
    # Of answers that ignore the sequence, four to each, means differ by half the spread; chance
    # makes that three times as much once in a hundred thousand runs.
    if spread > 0 and between < 1.5 * spread:
        raise NotOfThisFormError("repeat", IDENTITIES["repeat"], spread, between / 1.5)
    if spread > NOISE_SHARE * np.abs(repeated).max():
        raise NotRecoveredError(
            f"answers to the same sequence differ by {spread:.2g}, a tenth of the answers or more: "
            "too noisy to tell anything"
        )


def _draw(
    session: QuerySession, rng: np.random.Generator, length: int, size: float
) -> NDArray[Any]:
    """Tokens of 2-norm about ``size`` on a coarse dyadic grid, exact in every arithmetic.

    Six binary digits relative to the size: sums of two tokens and powers of two times them are
    then exact as well, and an identity is tested at exactly the sequences it speaks of.
    """
    tokens = rng.standard_normal((length, session.width)) / np.sqrt(session.width)
    grid = 2.0 ** (np.floor(np.log2(size / np.sqrt(session.width))) - 5)
    tokens = np.round(size * tokens / grid) * grid
    tokens[~tokens.any(axis=1), 0] = grid
    return session.representable(tokens)


def _identities(
    session: QuerySession, rng: np.random.Generator, scale: TokenScale
) -> Iterator[tuple[str, list[_Term]]]:
    for draw in range(DRAWS):
        size = SCALES[draw % len(SCALES)] * scale.size
        length = LONG if draw % 2 else 5
        x, y, z = (_draw(session, rng, 1, size) for _ in range(3))
        X = _draw(session, rng, length, size)
        Z = _draw(session, rng, 33 if draw % 2 else 2, size)
        if draw < 4:
            # Not an affine combination: a constant must not pass.
            sent = session.representable(2 * x + y)
            yield "linear", [_Term(1, sent), _Term(-2, x), _Term(-1, y)]
            yield "power of two", [_Term(1, 4 * x), _Term(-4, x)]
        order = np.concatenate([rng.permutation(length - 1), [length - 1]])
        if length == 5:
            order = np.array([3, 0, 1, 2, 4])
        yield "permutation", [_Term(1, X[order]), _Term(-1, X)]
        yield "duplication", [_Term(1, np.repeat(X, 3, axis=0)), _Term(-1, X)]
        yield "oddness", [_Term(1, -X), _Term(1, X)]
        yield (
            "reflection",
            [
                _Term(1, np.concatenate([y + z, y])),
                _Term(-1, y),
                _Term(1, np.concatenate([z - y, -y])),
                _Term(-1, -y),
                _Term(-1, z),
            ],
        )
        s = 2 if draw % 2 else 4
        yield (
            "scale",
            [
                _Term(1, np.concatenate([y / s + s * Z, y / s])),
                _Term(-1, y / s),
                _Term(-s, np.concatenate([y + Z, y])),
                _Term(s, y),
            ],
        )
        yield "constant sequence", [_Term(1, np.repeat(x, LONG, axis=0)), _Term(-1, x)]


def _bounded(draw: list[_Term], scale: TokenScale) -> list[_Term]:
    """Halve all tokens of an identity until they are no longer than allowed: it still holds."""
    longest = max(float(np.linalg.norm(t.tokens.astype(float), axis=1).max()) for t in draw)
    if longest <= scale.largest:
        return draw
    factor = 2.0 ** -np.ceil(np.log2(longest / scale.largest))
    return [replace(term, tokens=term.tokens * factor) for term in draw]


def _gain(terms: list[_Term], answers: NDArray[np.float64]) -> float:
    """Largest answer per token length: stands for the sizes of the value vectors."""
    reach = np.array([np.linalg.norm(term.tokens, axis=1).max() for term in terms])
    values = np.abs(answers) / reach
    return float(values[np.isfinite(values)].max(initial=0.0))


def _judge(
    name: str,
    draw: list[_Term],
    answers: NDArray[Any],
    noise: NoiseLevel,
    gain: float,
    arithmetic: Arithmetic,
) -> ClassTest:
    if arithmetic is Arithmetic.BALLS:
        from fiberscope.numbers.balls import ball_precision

        with ball_precision(2 * BALL_BITS):
            total = sum(int(t.coefficient) * a for t, a in zip(draw, answers, strict=True))
        return ClassTest(name, IDENTITIES[name], float(abs(total).lower()), 0.0)
    weights = np.array([term.coefficient for term in draw])
    reach = np.array([np.linalg.norm(term.tokens, axis=1).max() for term in draw])
    violation = abs(float(weights @ answers))
    sizes = np.abs(weights) * (gain * reach)
    threshold = MARGIN[arithmetic] * noise.unit * sizes.sum()
    threshold += 2 * noise.absolute * np.abs(weights).sum()
    largest = float(np.abs(weights * answers).max())
    relative = violation / largest if largest else 0.0
    return ClassTest(name, IDENTITIES[name], violation, float(threshold), relative)


def _asked_again(session: QuerySession, draw: list[_Term], test: ClassTest) -> ClassTest:
    """A failed identity once more, against the spread of its own answers.

    The spread of the repeat test is that of four sequences; errors in proportion to the answer may
    be far larger elsewhere. The mean violation of :data:`CONFIRMATIONS` rounds must stand out from
    its own standard error.
    """
    weights = np.array([term.coefficient for term in draw])
    sequences = [term.tokens for term in draw]
    rounds = [
        float(weights @ session.ask(sequences, Purpose.CLASS_TESTS, repetition=k))
        for k in range(1, CONFIRMATIONS + 1)
    ]
    mean, spread = abs(float(np.mean(rounds))), float(np.std(rounds, ddof=1))
    standard = STANDARD_ERRORS * spread / np.sqrt(CONFIRMATIONS)
    if not np.isfinite(mean + standard):
        return test
    return replace(test, violation=mean, threshold=max(test.threshold, standard))


def _reach_of_errors(draw: list[_Term]) -> float:
    """Root of the sum of squares by which independent relative errors would add up."""
    reach = [np.linalg.norm(term.tokens.astype(float), axis=1).max() for term in draw]
    weights = [term.coefficient for term in draw]
    return float(np.linalg.norm(np.multiply(reach, weights)))


def _ratio(test: ClassTest) -> float:
    if test.violation == 0:
        return 0.0
    return test.violation / test.threshold if test.threshold else float("inf")
