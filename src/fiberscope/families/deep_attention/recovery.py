"""Exact recovery of (L, M_1, ..., M_D) from an oracle, by rational inversion of finite jets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.ball_jacobian import ball_jacobian
from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    effective_architecture,
    effective_columns,
)
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.normalizers import Normalizer
from fiberscope.numbers.balls import Balls

Oracle = Callable[[NDArray[Any], int], Any]
"""``oracle(inputs, bits)``: tokens of shape ``(tokens, d)`` as exact balls (``flint.arb``) to
outputs ``(tokens, p)`` as balls, fractions, integers or decimal strings good to ``bits`` bits."""

GUARD = 24
"""Spare bits at every step."""


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


class _Recovery:
    def __init__(
        self,
        oracle: Oracle,
        width: int,
        normalizers: Sequence[Normalizer],
        tokens: int,
        digits: int,
        rng: np.random.Generator,
    ) -> None:
        self.oracle, self.width, self.tokens = oracle, width, tokens
        self.normalizers, self.rng, self.asked = tuple(normalizers), rng, digits
        self.depth = len(self.normalizers)
        self.evaluations = 0
        degrees = [phi.contact_degree for phi in normalizers]
        # On symmetric lines a slope's leading part has no other term of its degree; without slope
        # there are some, and the contrast must be smaller than the mean.
        self.spread = 1 if max(degrees) == 1 else 2
        self.orders = signal_orders(degrees, self.spread)
        self.exponents = probe_exponents(self.orders)
        self.bits = working_bits(self.exponents, self.orders, digits)
        self.system = Balls(self.bits)
        self.arb = self.system.flint.arb

    # -- the oracle ---------------------------------------------------------------------------

    def ask(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Output tokens as balls, shape ``(tokens, p)``."""
        self.evaluations += 1
        answer = np.asarray(self.oracle(inputs, self.bits))
        if answer.dtype.kind == "f":
            raise InputError(
                f"the oracle returns float64 values (16 digits), but {self.digits} digits are "
                "needed: return exact numbers, decimal strings or flint.arb balls"
            )
        if answer.ndim != 2 or answer.shape[0] != self.tokens:
            raise InputError(
                f"the oracle returned shape {answer.shape} for {self.tokens} tokens: expected "
                f"({self.tokens}, outputs)"
            )
        try:
            balls = self.system.array(answer)
        except (TypeError, ValueError):
            raise InputError(
                "the oracle must return integers, fractions, decimal strings or flint.arb balls"
            ) from None
        if not all(value.is_finite() for value in balls.reshape(-1)):
            raise InputError("the oracle returned a value that is not finite")
        return balls

    @property
    def digits(self) -> int:
        """Decimal digits of the working precision."""
        return ceil(self.bits * log10(2))

    # -- inputs -------------------------------------------------------------------------------

    def power(self, exponent: int) -> Any:
        """``2^-exponent``, exact."""
        return self.arb(2) ** (-exponent)

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

    def directions(self) -> list[NDArray[Any]]:
        """``d`` independent integer directions."""
        while True:
            drawn = self.rng.integers(-5, 6, (self.width, self.width))
            if abs(np.linalg.det(drawn)) > 0.5:
                return [self.system.array(row) for row in drawn]

    def score(self, readout: NDArray[Any], scores: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Read the next score off, to first order."""
        phi = self.normalizers[len(scores)]
        coefficient = self._leading_coefficient(phi)
        small = self.power(self.exponents[len(scores)])
        directions = self.directions()
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
        return self._signed(readout, scores, self._middle(found), means[0], directions[0])

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

    # -- refinement ---------------------------------------------------------------------------

    def refine(
        self, readout: NDArray[Any], scores: list[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], Any]:
        """Newton's method on fresh inputs of size one, then an interval Newton enclosure.

        Returns enclosures of the scores and the radius of the box in which they are unique.
        """
        count = 2 + ceil(2 * self.depth * self.width**2 / readout.shape[0])
        inputs = [self.fresh() for _ in range(count)]
        observed = np.concatenate([self.ask(x).reshape(-1) for x in inputs])
        stacked = np.stack(inputs)
        target = self.power(ceil(3.33 * self.asked) + GUARD)
        inverse = None
        for _ in range(40):
            values, jacobian = self._values_and_jacobian(readout, scores, stacked)
            transposed = jacobian.mid().transpose()
            inverse = (transposed * jacobian.mid()).inv().mid() * transposed
            gap = self.system.matrix((observed - values).reshape(-1, 1))
            step = (inverse * gap).entries()
            scores = [
                self._middle(m + s)
                for m, s in zip(scores, self._parts([x.mid() for x in step]), strict=True)
            ]
            # Steps shrink quadratically until the precision stops them.
            if all(abs(x.mid()) < target * target or abs(x.mid()) < x.rad() for x in step):
                break
        return self._enclose(readout, scores, stacked, observed, inverse)

    def fresh(self) -> NDArray[Any]:
        """Tokens with entries that are multiples of 1/8 between -1 and 1."""
        drawn = self.rng.integers(-8, 9, (self.tokens, self.width))
        return self.system.array(drawn) / 8

    def _middle(self, values: NDArray[Any]) -> NDArray[Any]:
        flat = np.empty(values.size, dtype=object)
        flat[:] = [value.mid() for value in values.reshape(-1)]
        return flat.reshape(values.shape)

    def _values_and_jacobian(
        self, readout: NDArray[Any], scores: Sequence[NDArray[Any]], inputs: NDArray[Any]
    ) -> tuple[NDArray[Any], Any]:
        """Outputs of a network on the inputs, and their Jacobian in the scores (``arb_mat``)."""
        architecture, parameters = effective_architecture(
            EffectiveParameters(readout, tuple(scores)),
            self.normalizers,
            self.tokens,
            convert=self.system.array,
        )
        values = forward(architecture, parameters, inputs, self.system).reshape(-1)
        table = ball_jacobian(architecture, parameters, inputs, self.system).tolist()
        columns = effective_columns(architecture)[readout.size :]
        return values, self.system.flint.arb_mat([[row[c] for c in columns] for row in table])

    def _parts(self, entries: Sequence[Any]) -> list[NDArray[Any]]:
        flat = np.empty(len(entries), dtype=object)
        flat[:] = list(entries)
        return list(flat.reshape(self.depth, self.width, self.width))

    def _enclose(
        self,
        readout: NDArray[Any],
        scores: list[NDArray[Any]],
        inputs: NDArray[Any],
        observed: NDArray[Any],
        inverse: Any,
    ) -> tuple[list[NDArray[Any]], Any]:
        """Krawczyk's test in growing boxes around the refined scores.

        With an approximate left inverse ``Y`` of the Jacobian, ``c + Y (y - F(c)) + (1 - Y F'(box))
        (box - c)`` inside the box encloses the only scores in the box that give the answers ``y``.
        """
        flint = self.system.flint
        values, _ = self._values_and_jacobian(readout, scores, inputs)
        newton = inverse * self.system.matrix((observed - values).reshape(-1, 1))
        size = newton.nrows()
        radius = 4 * max((x.abs_upper() for x in newton.entries()), key=float_log)
        radius = radius.upper() + self.power(2 * self.bits)
        identity = flint.arb_mat(size, size)
        for i in range(size):
            identity[i, i] = 1
        for _ in range(8):
            box = [self._widened(m, radius) for m in scores]
            _, wide = self._values_and_jacobian(readout, box, inputs)
            spread = flint.arb_mat([[flint.arb(0, radius)]] * size)
            image = (newton + (identity - inverse * wide) * spread).entries()
            if all(x.abs_upper() < radius for x in image):
                return [m + x for m, x in zip(scores, self._parts(image), strict=True)], radius
            radius = (16 * radius).upper()
        raise InputError(
            "the recovered scores are not confirmed by interval Newton: the oracle is not a "
            f"network of this depth, width and normalizers, or supplies fewer than {self.digits} "
            "digits"
        )

    def _widened(self, middle: NDArray[Any], radius: Any) -> NDArray[Any]:
        flat = np.empty(middle.size, dtype=object)
        flat[:] = [self.arb(x, radius) for x in middle.reshape(-1)]
        return flat.reshape(middle.shape)


def float_log(value: Any) -> float:
    """Logarithm of a nonnegative ball's midpoint, also below float64's range."""
    return float("-inf") if value == 0 else float(value.mid().log())


def signal_orders(degrees: Sequence[int], spread: int) -> list[int]:
    """Order in ``t`` of every layer's signal: means have order 1, contrasts order ``spread``.

    ``2 * 3^{i-1}`` contrasts and ``2 v_{i-1} + 2 k_i - 1`` means, with ``v_0 = 0`` and
    ``v_i = 3 v_{i-1} + 2 k_i - 2``; for ``spread`` 1 these are the Taylor orders.
    """
    orders, means, contrasts = [], 0, 1
    for k in degrees:
        orders.append(2 * contrasts * spread + 2 * means + 2 * k - 1)
        means, contrasts = 3 * means + 2 * k - 2, 3 * contrasts
    return orders


def probe_exponents(orders: Sequence[int]) -> list[int]:
    """Sizes ``2^-e_i`` of the probes of every layer.

    Layer ``i`` is read with relative error of about ``2^(-2 e_i)``, and its error must stay below
    the signal of every later layer ``j``: ``2 e_i >= e_j (N_j - N_i) + 2 e_j``.
    """
    exponents = [0] * len(orders)
    for i in reversed(range(len(orders))):
        need = GUARD
        for j in range(i + 1, len(orders)):
            step = exponents[j] * (orders[j] - orders[i] + 2)
            need = max(need, ceil((step + GUARD) / 2))
        exponents[i] = need
    return exponents


def working_bits(exponents: Sequence[int], orders: Sequence[int], digits: int) -> int:
    """Precision that separates every layer's signal, to the accuracy that later layers need.

    The last layer needs ``digits``; layer ``i`` must be known to ``2^(-e_j (N_j - N_i))`` times
    what layer ``j`` needs, and its signal is ``2^(-e_i (N_i - 1))`` of the outputs.
    """
    needs = [0] * len(orders)
    bits = 0
    for i in reversed(range(len(orders))):
        needs[i] = ceil(3.33 * digits) + 2 * GUARD
        for j in range(i + 1, len(orders)):
            needs[i] = max(needs[i], exponents[j] * (orders[j] - orders[i]) + needs[j] + GUARD)
        bits = max(bits, exponents[i] * (orders[i] - 1) + needs[i])
    return bits + 2 * GUARD


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
    with run.system.precision():
        readout = run.readout()
        if all(value.contains(0) for value in readout.reshape(-1)):
            raise InputError("the oracle is zero on consensus inputs: L = 0 hides every score")
        scores: list[NDArray[Any]] = []
        for _ in range(depth):
            scores.append(run._middle(run.score(readout, scores)))
        enclosed, radius = run.refine(readout, scores)
        held_out = _held_out(run, readout, enclosed)
        radii = [x.rad() for part in [readout, *enclosed] for x in part.reshape(-1)]
        bound = max(radii, key=float_log)
        return RecoveredNetwork(
            readout=readout,
            scores=tuple(enclosed),
            error_bound=_decimal(bound),
            search_radius=_decimal(radius),
            free_signs=tuple(i for i, phi in enumerate(normalizers, start=1) if phi.even),
            digits=run.digits,
            evaluations=run.evaluations,
            held_out_error=held_out,
            bits=run.bits,
        )


def _decimal(value: Any) -> str:
    """Upper bound as a decimal string of a few digits (it can be far below float64's range)."""
    text: str = (value.upper() * 1.01).upper().str(3, radius=False)
    return text


def _held_out(run: _Recovery, readout: NDArray[Any], scores: Sequence[NDArray[Any]]) -> str:
    """Largest deviation from the oracle at fresh inputs of size one."""
    worst = run.arb(0)
    for _ in range(3):
        inputs = run.fresh()
        tokens = run.prefix(list(scores), inputs)
        difference = run.ask(inputs) - tokens @ readout.T
        if not all(x.contains(0) for x in difference.reshape(-1)):
            raise InputError(
                "on fresh inputs the oracle differs from the recovered network by "
                f"{_decimal(max((abs(x) for x in difference.reshape(-1)), key=float_log))}: it is "
                f"not a network of this depth, width and normalizers, or its values are not good "
                f"to {run.digits} digits"
            )
        worst = max([worst, *(x.abs_upper() for x in difference.reshape(-1))], key=float_log)
    return _decimal(worst)


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
