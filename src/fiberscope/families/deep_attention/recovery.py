"""Exact recovery of (L, M_1, ..., M_D) from an oracle, by rational inversion of finite jets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.checked_oracle import (
    CheckedOracle,
    Oracle,
    decimal_bound,
)
from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    effective_architecture,
)
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.families.deep_attention.probes import (
    GUARD,
    probe_exponents,
    signal_orders,
    working_bits,
)
from fiberscope.families.deep_attention.score_refinement import float_log
from fiberscope.numbers.balls import Balls


@dataclass(frozen=True)
class RecoveredNetwork:
    """What was recovered, and how well.

    Attributes
    ----------
    readout, scores
        ``L`` and ``M_1, ..., M_D``: object arrays of balls. Their radii are the error bound.
    error_bound
        Largest radius, a decimal string. Every network of this shape whose parameters lie within
        ``search_radius`` of the recovered ones and that gives the oracle's answers lies within it
        (interval Newton).
    search_radius
        See there.
    free_signs
        Layers whose score is known up to its sign: the normalizer is even.
    digits
        Decimal digits of working precision that the oracle had to supply.
    evaluations
        Number of oracle calls.
    held_out_error
        Largest deviation from the oracle on fresh inputs of size one.
    bits
        Working precision.
    """

    readout: NDArray[Any]
    scores: tuple[NDArray[Any], ...]
    error_bound: str
    search_radius: str
    free_signs: tuple[int, ...]
    digits: int
    evaluations: int
    held_out_error: str
    bits: int


class _Recovery(CheckedOracle):
    def __init__(
        self,
        oracle: Oracle,
        width: int,
        normalizers: Sequence[Normalizer],
        tokens: int,
        digits: int,
        rng: np.random.Generator,
    ) -> None:
        degrees = [phi.contact_degree for phi in normalizers]
        # On symmetric lines a slope's leading part has no other term of its degree; without slope
        # there are some, and the contrast must be smaller than the mean.
        self.spread = 1 if max(degrees) == 1 else 2
        self.orders = signal_orders(degrees, self.spread)
        self.exponents = probe_exponents(self.orders)
        bits = working_bits(self.exponents, self.orders, digits)
        super().__init__(oracle, width, normalizers, tokens, digits, bits, rng)

    # -- inputs -------------------------------------------------------------------------------

    def line(self, mean: NDArray[Any], direction: NDArray[Any], exponent: int) -> NDArray[Any]:
        """Tokens ``t mean + t^spread c_a direction`` with ``t = 2^-exponent``, ``c = 1, -1, 0``."""
        rows = np.stack([mean * self.power(exponent)] * self.tokens)
        moved = direction * self.power(exponent * self.spread)
        rows[0], rows[1] = rows[0] + moved, rows[1] - moved
        return rows

    # -- the steps ----------------------------------------------------------------------------

    def readout(self) -> NDArray[Any]:
        """``L`` from consensus inputs: ``F(m, ..., m) = L m``."""
        columns = []
        for j in range(self.width):
            unit = self.system.array(np.eye(self.width, dtype=np.int64)[j])
            columns.append(self.ask(np.stack([unit] * self.tokens))[0])
        return np.stack(columns, axis=1)

    def prefix(self, scores: Sequence[NDArray[Any]], inputs: NDArray[Any]) -> NDArray[Any]:
        """Tokens after the recovered layers, shape ``(tokens, d)``."""
        if not scores:
            return inputs
        identity = self.system.array(np.eye(self.width, dtype=np.int64))
        architecture, parameters = effective_architecture(
            EffectiveParameters(identity, tuple(scores)),
            self.normalizers[: len(scores)],
            self.tokens,
            convert=self.system.array,
        )
        with self.fitting():
            result: NDArray[Any] = forward(architecture, parameters, inputs[None], self.system)[0]
        return result

    def shift(
        self,
        readout: NDArray[Any],
        scores: Sequence[NDArray[Any]],
        mean: NDArray[Any],
        direction: NDArray[Any],
    ) -> Any:
        """``H(m, z)`` of the next layer at ``t m, z``, from one evaluation.

        The mean of the outputs minus ``L`` times the exact prefix mean is, up to higher order,
        ``(L z) H`` times the mean square of the prefix contrast along ``z`` (Konda, A.2).
        """
        layer = len(scores) + 1
        exponent = self.exponents[layer - 1]
        inputs = self.line(mean, direction, exponent)
        observed = self.ask(inputs).sum(axis=0) / self.tokens
        inner = self.prefix(scores, inputs)
        centre = inner.sum(axis=0) / self.tokens
        norm = (direction * direction).sum()
        along = (inner - centre) @ direction / norm
        square = (along * along).sum() / self.tokens
        image = readout @ direction
        row = int(np.argmax([abs(float(x.mid())) for x in image]))
        difference = observed[row] - (readout @ centre)[row]
        scale = image[row] * square
        degree = self.normalizers[layer - 1].contact_degree
        faintest = self.power(exponent * (self.orders[layer - 1] - 2 * degree + 1) + 4 * GUARD)
        if scale.contains(0) or square < faintest:
            raise InputError(
                f"no contrast reaches layer {layer} along a random line: an earlier score is zero "
                "or skew, and line probes do not see what follows"
            )
        result = difference / scale
        known = self.power(exponent * (2 * degree - 1))
        if result.rad() > known * self.power(GUARD // 2):
            have = max(0, self.digits - ceil(float((result.rad() / known).log()) / 2.302585))
            raise InputError(
                f"the oracle's values are good to about {have} digits, but {self.digits} digits "
                f"are needed for {self.asked} digits of layer {layer}"
            )
        return result.mid()

    def directions(self, readout: NDArray[Any]) -> list[NDArray[Any]]:
        """``d`` independent integer directions that the readout does not send to zero."""
        while True:
            drawn = self.rng.integers(-5, 6, (self.width, self.width))
            if abs(np.linalg.det(drawn)) < 0.5:
                continue
            found = [self.system.array(row) for row in drawn]
            if all(_is_seen(readout, row) for row in found):
                return found

    def score(self, readout: NDArray[Any], scores: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Read the next score off, to first order."""
        phi = self.normalizers[len(scores)]
        coefficient = self._leading_coefficient(phi)
        small = self.power(self.exponents[len(scores)])
        directions = self.directions(readout)
        inverse = self.system.matrix(np.stack(directions)).inv()
        if phi.has_slope:
            means = [self.system.array(r) for r in np.eye(self.width, dtype=np.int64)]
            scales = [coefficient * small] * self.width
        else:
            means, quadratic = self._quadratic_means(readout, scores, coefficient * small**3)
            scales = [coefficient * small**3 * value for value in quadratic]
        rows = [
            [self.shift(readout, scores, mean, z) / scale for z in directions]
            for mean, scale in zip(means, scales, strict=True)
        ]
        left = self.system.matrix(np.stack(means)).inv()
        table = self.system.matrix(np.array(rows, dtype=object))
        found = self.system.from_matrix(left * table * inverse.transpose())
        if phi.has_slope or phi.even:
            return found
        return self._signed(readout, scores, self.middle(found), means[0], directions[0])

    def _signed(
        self,
        readout: NDArray[Any],
        scores: Sequence[NDArray[Any]],
        found: NDArray[Any],
        mean: NDArray[Any],
        direction: NDArray[Any],
    ) -> NDArray[Any]:
        """The sign of a score under a normalizer that is not even but has no slope.

        The two signs differ at a higher order in ``t``, so a larger ``t`` tells them apart.
        """
        inputs = self.line(mean, direction, max(2, self.exponents[len(scores)] // 4))
        observed = self.ask(inputs).sum(axis=0) / self.tokens

        def gap(candidate: NDArray[Any]) -> float:
            centre = self.prefix([*scores, candidate], inputs).sum(axis=0) / self.tokens
            left_over = observed - readout @ centre
            return max(float_log(abs(x.mid())) for x in left_over)

        return found if gap(found) < gap(-found) else -found

    def _leading_coefficient(self, phi: Normalizer) -> Any:
        """``k b_k`` for ``log phi = b_k s^k + ...``: the leading coefficient of its derivative."""
        degree = phi.contact_degree
        constants = phi.log_taylor(degree)[degree]
        inverse_log = 1 / self.arb(2).log()
        total = self.arb(0)
        for j, c in enumerate(constants):
            total = total + self.system.number(c) * inverse_log**j
        return degree * total

    def _quadratic_means(
        self, readout: NDArray[Any], scores: Sequence[NDArray[Any]], scale: Any
    ) -> tuple[list[NDArray[Any]], list[Any]]:
        """Independent means ``v`` with ``v^T M v`` of one sign, known up to that sign.

        With ``z = v`` the leading part of ``H`` is ``(v^T M v)^2``; means close to one another
        have quadratic values of one sign.
        """
        layer = len(scores) + 1
        for _ in range(20):
            centre = 8 * self.rng.integers(-3, 4, self.width)
            drawn = [centre + row for row in np.eye(self.width, dtype=np.int64)]
            if abs(np.linalg.det(np.array(drawn, dtype=np.float64))) < 0.5:
                continue
            means = [self.system.array(row) for row in drawn]
            if not all(_is_seen(readout, row) for row in means):
                continue
            squares = [self.shift(readout, scores, v, v) / scale for v in means]
            if not all(square > 0 for square in squares):
                continue
            roots = [square.sqrt().mid() for square in squares]
            sizes = [float(root) for root in roots]
            if max(sizes) < 1.5 * min(sizes):
                return means, roots
        raise InputError(
            f"no mean input with a clear quadratic value was found for layer {layer}: its score "
            "has no symmetric part, and a normalizer without slope hides it"
        )


def _is_seen(readout: NDArray[Any], direction: NDArray[Any]) -> bool:
    """Whether ``L z`` provably is not zero."""
    return not all(x.contains(0) for x in readout @ direction)


def recover(
    oracle: Oracle,
    *,
    width: int,
    normalizers: Sequence[Normalizer],
    tokens: int = 2,
    digits: int = 30,
    seed: int = 0,
) -> RecoveredNetwork:
    """Recover ``L`` and all scores of a serial single-head network from its function.

    ``L`` comes from consensus inputs. Layer by layer, the output mean on tokens
    ``t (m + c_a z)`` minus ``L`` times the exact mean of the recovered prefix is the layer's
    signature ``H(m, z) = h'(m^T M m) m^T M z`` times known factors, up to higher order in ``t``;
    its part of lowest degree in ``m`` is rational in ``M`` (Konda, C.3 and A.2). Newton's method
    on a few inputs of size one then removes the truncation, and interval Newton encloses the
    result.

    Parameters
    ----------
    oracle
        See :data:`Oracle`.
    width
        Input width ``d``.
    normalizers
        One a layer: depth 1 to 3 with nonzero slopes, depth 1 or 2 where first degrees are 1 or 2.
    tokens
        Number of tokens of every input.
    digits
        Digits wanted of every entry.
    seed
        Seeds the probing directions.

    Raises
    ------
    InputError
        If the depth is not covered, the readout is zero, a score passes no contrast along lines,
        the oracle returns too few digits (the message says how many are needed), or the oracle is
        no such network.
    """
    degrees = [phi.contact_degree for phi in normalizers]
    depth = len(degrees)
    if tokens < 2:
        raise InputError("recovery needs at least two tokens: with one no score is observable")
    if depth < 1 or max(degrees) > 2 or depth > (3 if max(degrees) == 1 else 2):
        raise InputError(
            "recovery covers depth 1 to 3 for normalizers with a nonzero slope, and depth 1 and 2 "
            f"where first degrees are 1 or 2; got depth {depth} with first degrees {degrees}"
        )
    rng = np.random.default_rng(seed)
    run = _Recovery(oracle, width, normalizers, tokens, digits, rng)
    try:
        return _recovered(run)
    except ZeroDivisionError:
        # Balls that contain zero where a network of this form has an invertible matrix.
        raise InputError(run.unfit("a matrix that must be invertible is not")) from None


def _recovered(run: _Recovery) -> RecoveredNetwork:
    with run.system.precision():
        readout = run.readout()
        if all(value.contains(0) for value in readout.reshape(-1)):
            raise InputError("the oracle is zero on consensus inputs: L = 0 hides every score")
        run.check_form(readout)
        scores: list[NDArray[Any]] = []
        for _ in range(run.depth):
            scores.append(run.middle(run.score(readout, scores)))
        enclosed, radius = run.refine(readout, scores)
        held_out = _held_out(run, readout, enclosed)
        radii = [x.rad() for part in [readout, *enclosed] for x in part.reshape(-1)]
        bound = max(radii, key=float_log)
        return RecoveredNetwork(
            readout=readout,
            scores=tuple(enclosed),
            error_bound=decimal_bound(bound),
            search_radius=decimal_bound(radius),
            free_signs=tuple(i for i, phi in enumerate(run.normalizers, start=1) if phi.even),
            digits=run.digits,
            evaluations=run.evaluations,
            held_out_error=held_out,
            bits=run.bits,
        )


def _held_out(run: _Recovery, readout: NDArray[Any], scores: Sequence[NDArray[Any]]) -> str:
    """Largest deviation from the oracle at fresh inputs of size one."""
    worst = run.arb(0)
    for _ in range(3):
        inputs = run.fresh()
        tokens = run.prefix(list(scores), inputs)
        deviation = run.compare(
            run.ask(inputs),
            tokens @ readout.T,
            "fresh inputs do not go where the recovered network sends them",
        )
        worst = max([worst, deviation], key=float_log)
    return decimal_bound(worst)


def network_oracle(
    effective: EffectiveParameters, normalizers: Sequence[Normalizer], tokens: int
) -> Oracle:
    """Wrap exact effective parameters as an oracle, evaluated in balls."""
    architecture, parameters = effective_architecture(effective, normalizers, tokens)

    def oracle(inputs: NDArray[Any], bits: int) -> NDArray[Any]:
        system = Balls(bits)
        with system.precision():
            point = {name: system.array(value) for name, value in parameters.items()}
            outputs: NDArray[Any] = forward(architecture, point, system.array(inputs)[None], system)
            return outputs[0]

    return oracle
