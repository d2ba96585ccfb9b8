"""Recover a polynomial network from queries: what theorems make unique is not always findable.

One hidden layer of monomials: interpolate the moments ``T_a = sum_j w_j l_j^a`` at the lattice
points of degree ``r``, contract them in two random ways to matrices ``V D V^T`` and ``V D' V^T``
(the columns of ``V`` hold the monomials of degree ``k`` of one neuron), and read the neurons off
the eigenvectors of the quotient; the outputs follow by linear algebra. This works for
``d_1 <= C(d_0 + k - 1, k)``, exactly over the rationals and in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb, factorial, log2, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.canonical import canonical_form
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.oracle import Oracle
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.numbers import FLOAT64
from fiberscope.numbers.balls import load_flint
from fiberscope.verdict import to_plain

MOST_BITS = 53.0
_ATTEMPTS = 6
_CHECKS = 4


@dataclass(frozen=True)
class Recovery:
    """Weights found from queries, or why there are none.

    Attributes
    ----------
    recovered
        True when weights were found and verified; False means UNDECIDED, never 'impossible'.
    method
        How they were found.
    parameters
        Canonical weights (exact when the oracle is), or None.
    precision_bits
        Correct bits of the function at fresh inputs (``inf`` when exact).
    queries
        Number of inputs asked, verification included.
    verified
        In words: how the weights were checked.
    reason
        For UNDECIDED: what is missing.
    """

    recovered: bool
    method: str
    parameters: dict[str, NDArray[Any]] | None
    precision_bits: float
    queries: int
    verified: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = to_plain(self)
        plain["outcome"] = "RECOVERED" if self.recovered else "UNDECIDED"
        return plain


Exponents = tuple[int, ...]


def exponents(variables: int, degree: int) -> list[Exponents]:
    """All exponent vectors of a degree, in a fixed order."""
    return [
        tuple(chosen.count(axis) for axis in range(variables))
        for chosen in combinations_with_replacement(range(variables), degree)
    ]


def split_degree(inputs: int, hidden: int, outputs: int, degree: int) -> int | None:
    """Degree ``k`` of the contraction, or None when the method does not reach ``hidden``.

    With several outputs an even degree can be halved; otherwise ``k = floor((r - 1) / 2)``.
    """
    candidates = [(degree - 1) // 2]
    if outputs >= 2 and degree % 2 == 0:
        candidates.append(degree // 2)
    for k in candidates:
        if k >= 1 and hidden <= comb(inputs + k - 1, k):
            return k
    return None


def recover_shallow(oracle: Oracle, architecture: Architecture, seed: int = 0) -> Recovery:
    """Recover ``x -> W_2 (W_1 x)^r`` by contractions, exactly or in float64."""
    inputs, hidden, outputs = architecture.widths
    degree = architecture.degrees[0]
    method = "contractions of the moments"
    k = split_degree(inputs, hidden, outputs, degree)
    if hidden > 1 and k is None:
        reach = (degree - 1) // 2
        return Recovery(
            False,
            method,
            None,
            0.0,
            oracle.queries,
            reason=f"{hidden} hidden neurons are out of reach of the contractions of degree "
            f"{reach} ({comb(inputs + reach - 1, reach)} dimensions); identifiable does not mean "
            "recoverable",
        )
    rng = np.random.default_rng(seed)
    moments = _moments(oracle, degree)
    system = _Exact() if oracle.exact else _Rounded()
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            rows = (
                [_single(moments, inputs, degree)]
                if hidden == 1
                else system.neurons(moments, (inputs, hidden, outputs), degree, int(k or 1), rng)
            )
            weights = system.outputs(moments, rows, inputs, degree)
        except _FailedError as error:
            reason = str(error)
            continue
        found = _finished(oracle, architecture, rows, weights, rng, method)
        if found.recovered:
            return found
        reason = found.reason
    return Recovery(False, method, None, 0.0, oracle.queries, reason=reason)


class _FailedError(Exception):
    """An attempt that does not work; the message says why."""


Moments = list[dict[Exponents, Any]]


def _moments(oracle: Oracle, degree: int) -> Moments:
    """``T_a = sum_j w_j l_j^a`` for every output, from values at all points with ``|x| = r``."""
    powers = exponents(oracle.inputs, degree)
    points = np.array(powers, dtype=np.int64)
    multinomials = [
        factorial(degree) // prod(factorial(part) for part in power) for power in powers
    ]
    if oracle.exact:
        flint = load_flint()
        values = oracle(RATIONALS.array(points))
        matrix = [
            [
                flint.fmpq(prod(int(x) ** e for x, e in zip(point, power, strict=True)))
                for power in powers
            ]
            for point in powers
        ]
        right = [[flint.fmpq(v.numerator, v.denominator) for v in row] for row in values]
        solved = flint.fmpq_mat(matrix).solve(flint.fmpq_mat(right))
        return [
            {
                power: Fraction(int(solved[i, o].p), int(solved[i, o].q)) / multinomials[i]
                for i, power in enumerate(powers)
            }
            for o in range(oracle.outputs)
        ]
    # Points on the unit sphere, with signs: far better conditioned than the lattice itself.
    draw = np.random.default_rng(0).standard_normal((2 * len(powers) + 4, oracle.inputs))
    asked = draw / np.linalg.norm(draw, axis=1, keepdims=True)
    values = oracle(asked)
    weights = np.sqrt(np.array(multinomials, dtype=np.float64))
    design = np.prod(asked[:, None, :] ** points[None], axis=2) * weights
    fitted = np.linalg.lstsq(design, values, rcond=None)[0] / weights[:, None]
    return [{power: fitted[i, o] for i, power in enumerate(powers)} for o in range(oracle.outputs)]


def _single(moments: Moments, inputs: int, degree: int) -> list[Any]:
    """The row of a single neuron, up to scale."""
    for output in moments:
        pure = [output[tuple(degree * (i == p) for i in range(inputs))] for p in range(inputs)]
        p = int(np.argmax([abs(float(value)) for value in pure]))
        if pure[p] != 0:
            return [
                output[tuple((degree - 1) * (a == p) + (a == i) for a in range(inputs))] / pure[p]
                for i in range(inputs)
            ]
    raise _FailedError("the function is zero")


def _contraction(
    moments: Moments, low: list[Exponents], rest: list[Exponents], factors: NDArray[Any]
) -> list[list[Any]]:
    """``sum_(o, c) factor_(o, c) T^o_(a + b + c)`` for all ``a, b`` of degree ``k``."""

    def entry(a: Exponents, b: Exponents) -> Any:
        total: Any = 0
        for o, output in enumerate(moments):
            for c, extra in enumerate(rest):
                power = tuple(x + y + z for x, y, z in zip(a, b, extra, strict=True))
                total = total + factors[o, c] * output[power]
        return total

    return [[entry(a, b) for b in low] for a in low]


def _row(features: Any, low: list[Exponents], inputs: int, k: int) -> list[Any]:
    """Row ``l`` up to scale from the monomials of degree ``k`` in it."""
    position = {power: index for index, power in enumerate(low)}
    pure = [features[position[tuple(k * (i == p) for i in range(inputs))]] for p in range(inputs)]
    p = int(np.argmax([abs(float(value)) for value in pure]))
    if pure[p] == 0:
        raise _FailedError("a neuron vanishes in the contraction")
    return [
        features[position[tuple((k - 1) * (a == p) + (a == i) for a in range(inputs))]] / pure[p]
        for i in range(inputs)
    ]


class _Exact:
    """Over the rationals, with python-flint."""

    def neurons(
        self,
        moments: Moments,
        shape: tuple[int, int, int],
        degree: int,
        k: int,
        rng: np.random.Generator,
    ) -> list[list[Fraction]]:
        flint = load_flint()
        inputs, hidden, outputs = shape
        low, rest = exponents(inputs, k), exponents(inputs, degree - 2 * k)

        def matrix() -> Any:
            factors = rng.integers(-9, 10, (outputs, len(rest))).astype(object)
            rows = _contraction(moments, low, rest, factors)
            return flint.fmpq_mat([[_rational(entry) for entry in row] for row in rows])

        first, second = matrix(), matrix()
        reduced, rank = first.rref()
        if not 0 < rank <= hidden:
            raise _FailedError(f"the contraction has rank {rank}, not at most {hidden}")
        # Superfluous neurons lower the rank; an unlucky contraction fails the verification.
        hidden, size = int(rank), len(low)
        chosen = [
            next(column for column in range(size) if reduced[row, column] != 0)
            for row in range(rank)
        ]

        def part(source: Any) -> Any:
            return flint.fmpq_mat([[source[i, j] for j in chosen] for i in chosen])

        inverse = part(first).inv()
        quotient = part(second) * inverse
        lift = flint.fmpq_mat([[first[i, j] for j in chosen] for i in range(size)]) * inverse
        factored = quotient.charpoly().factor()[1]
        if any(power != 1 for _, power in factored):
            raise _FailedError("two neurons fell together in the contraction")
        if any(factor.degree() != 1 for factor, _ in factored):
            raise _FailedError("the neurons are not rational: recover in floating point")
        rows = []
        for factor, _ in factored:
            root = -factor[0] / factor[1]
            shifted = flint.fmpq_mat(
                [
                    [quotient[i, j] - (root if i == j else 0) for j in range(hidden)]
                    for i in range(hidden)
                ]
            )
            vector = _kernel_vector(shifted, hidden)
            features = lift * flint.fmpq_mat([[value] for value in vector])
            numbers = [Fraction(int(features[i, 0].p), int(features[i, 0].q)) for i in range(size)]
            rows.append(_row(numbers, low, inputs, k))
        return rows

    def outputs(
        self, moments: Moments, rows: list[Any], inputs: int, degree: int
    ) -> list[list[Fraction]]:
        flint = load_flint()
        powers = exponents(inputs, degree)
        columns = [[prod(x**e for x, e in zip(r, p, strict=True)) for p in powers] for r in rows]
        gram = flint.fmpq_mat(
            [
                [_rational(sum(a * b for a, b in zip(x, y, strict=True))) for y in columns]
                for x in columns
            ]
        )
        right = flint.fmpq_mat(
            [
                [
                    _rational(sum(c * output[p] for c, p in zip(column, powers, strict=True)))
                    for output in moments
                ]
                for column in columns
            ]
        )
        try:
            solved = gram.solve(right)
        except ZeroDivisionError:
            raise _FailedError("the features are dependent") from None
        return [
            [Fraction(int(solved[j, o].p), int(solved[j, o].q)) for j in range(len(rows))]
            for o in range(len(moments))
        ]


def _rational(value: Any) -> Any:
    fraction = Fraction(value)
    return load_flint().fmpq(fraction.numerator, fraction.denominator)


def _kernel_vector(matrix: Any, size: int) -> list[Any]:
    """A vector in the one-dimensional kernel."""
    reduced, rank = matrix.rref()
    pivots = [next(j for j in range(size) if reduced[i, j] != 0) for i in range(rank)]
    free = next(j for j in range(size) if j not in pivots)
    vector = [load_flint().fmpq(0)] * size
    vector[free] = load_flint().fmpq(1)
    for row, pivot in enumerate(pivots):
        vector[pivot] = -reduced[row, free]
    return vector


class _Rounded:
    """In float64."""

    def neurons(
        self,
        moments: Moments,
        shape: tuple[int, int, int],
        degree: int,
        k: int,
        rng: np.random.Generator,
    ) -> list[list[float]]:
        inputs, hidden, outputs = shape
        low, rest = exponents(inputs, k), exponents(inputs, degree - 2 * k)
        # Symmetric tensors have each monomial several times: these weights make the basis
        # orthonormal, which the conditioning needs.
        scale = np.sqrt([factorial(k) / prod(factorial(e) for e in power) for power in low])
        first, second = (
            scale[:, None]
            * np.array(
                _contraction(moments, low, rest, rng.standard_normal((outputs, len(rest)))),
                dtype=np.float64,
            )
            * scale
            for _ in range(2)
        )
        left, sigma, right = np.linalg.svd(first)
        hidden = min(hidden, int(np.sum(sigma > 1e-12 * sigma[0])))
        if not hidden:
            raise _FailedError("the function is zero")
        basis, dual = left[:, :hidden], right[:hidden].T
        quotient = (basis.T @ second @ dual) / sigma[:hidden]
        values, vectors = np.linalg.eig(quotient)
        if np.abs(values.imag).max() > 1e-6 * np.abs(values).max():
            raise _FailedError("the quotient of the contractions has complex eigenvalues")
        features = (basis @ vectors).real / scale[:, None]
        return [_row(features[:, j], low, inputs, k) for j in range(hidden)]

    def outputs(
        self, moments: Moments, rows: list[Any], inputs: int, degree: int
    ) -> list[list[float]]:
        powers = exponents(inputs, degree)
        design = np.prod(
            np.array(rows, dtype=np.float64)[None] ** np.array(powers)[:, None, :], axis=2
        )
        right = np.array([[output[power] for output in moments] for power in powers])
        solved: list[list[float]] = np.linalg.lstsq(design, right, rcond=None)[0].T.tolist()
        return solved


def _finished(
    oracle: Oracle,
    architecture: Architecture,
    rows: list[Any],
    weights: list[Any],
    rng: np.random.Generator,
    method: str,
) -> Recovery:
    family = PolynomialNetwork(architecture)
    inputs, hidden, _ = architecture.widths
    missing = hidden - len(rows)
    rows = [*rows, *([[0] * inputs] * missing)]
    weights = [[*row, *([0] * missing)] for row in weights]
    if oracle.exact:
        point = {"W1": RATIONALS.array(rows), "W2": RATIONALS.array(weights)}
    else:
        point = {"W1": np.array(rows, dtype=float), "W2": np.array(weights, dtype=float)}
    return verify(oracle, family, point, rng, method)


def verify(
    oracle: Oracle,
    family: PolynomialNetwork,
    parameters: dict[str, NDArray[Any]],
    rng: np.random.Generator,
    method: str,
) -> Recovery:
    """Check weights at fresh inputs, and bring them to their canonical form."""
    form = canonical_form(family, parameters, decompose=False).parameters
    if oracle.exact:
        points = RATIONALS.array(rng.integers(-1000, 1001, (_CHECKS, oracle.inputs)))
        same = (oracle(points) == family.values(form, points, RATIONALS)).all()
        if same:
            degree = family.architecture.total_degree
            odds = f"wrong with probability at most {(degree / 2001) ** _CHECKS:.0e}"
            verified = f"equal at {_CHECKS} fresh random inputs ({odds})"
            return Recovery(True, method, form, float("inf"), oracle.queries, verified)
        reason = "the weights found do not reproduce fresh inputs"
        return Recovery(False, method, None, 0.0, oracle.queries, reason=reason)
    points = rng.standard_normal((4 * _CHECKS, oracle.inputs))
    expected = oracle(points)
    found = family.values(form, points, FLOAT64)
    scale = float(np.abs(expected).max()) or 1.0
    deviation = float(np.abs(found - expected).max()) / scale
    bits = MOST_BITS if deviation == 0 else min(MOST_BITS, -log2(deviation))
    if bits < 16:
        reason = f"the weights found reproduce fresh inputs to {bits:.0f} bits only"
        return Recovery(False, method, None, max(bits, 0.0), oracle.queries, reason=reason)
    verified = f"{bits:.0f} bits at {4 * _CHECKS} fresh random inputs"
    return Recovery(True, method, form, bits, oracle.queries, verified)
