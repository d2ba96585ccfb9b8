"""Score normalizers: positive functions phi, with what is known of them exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.numbers import Array, Dual, DualNumbers, NumberSystem
from fiberscope.numbers.balls import Balls
from fiberscope.numbers.power_series import PowerSeries

Constants = tuple[Fraction, ...]
"""A Taylor coefficient as a polynomial ``sum_j c_j lambda^j`` in one transcendental number
``lambda`` (``1 / log 2`` for softplus); rational normalizers have one entry."""


def _add(a: Constants, b: Constants) -> Constants:
    size = max(len(a), len(b))
    wide = [
        (a[j] if j < len(a) else Fraction(0)) + (b[j] if j < len(b) else Fraction(0))
        for j in range(size)
    ]
    while len(wide) > 1 and wide[-1] == 0:
        wide.pop()
    return tuple(wide)


def _multiply(a: Constants, b: Constants) -> Constants:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return _add(tuple(product), (Fraction(0),))


class Normalizer(ABC):
    """A positive function ``phi`` of the score, analytic near zero, and nonconstant.

    Attributes
    ----------
    name
        What the command line calls it.
    even
        True when ``phi(-s) = phi(s)``: then a score matrix and its negative act alike.
    log_odd
        True when ``log phi(s) - log phi(0)`` is odd: then two tokens collapse under skew scores.
    """

    name: str
    even: bool = False
    log_odd: bool = False

    @abstractmethod
    def value(self, s: Array, system: NumberSystem) -> Array:
        """``phi(s)``, entry by entry, in float64 or balls."""

    @abstractmethod
    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """``phi'(s)``, entry by entry, in float64 or balls."""

    @abstractmethod
    def taylor(self, order: int) -> list[Constants]:
        """Coefficients of ``phi(s) / phi(0)`` at zero, degrees ``0 .. order``."""

    def residues(self, order: int, system: PowerSeries) -> list[Any]:
        """Return the Taylor coefficients as elements of the system's field.

        A transcendental constant is replaced by a fixed residue: ranks after the replacement are
        at most the true ones, since the constant satisfies no algebraic equation over Q.
        """
        modulus = system.modulus
        if modulus is None:
            if any(len(c) > 1 for c in self.taylor(order)):
                raise InputError(f"{self.name} has no rational Taylor series: use a prime field")
            return [c[0] for c in self.taylor(order)]
        stand_in = 2718281 % modulus
        return [
            int(sum(int(system.scalars(x)) * pow(stand_in, j, modulus) for j, x in enumerate(c)))
            % modulus
            for c in self.taylor(order)
        ]

    def apply(self, s: Array, system: NumberSystem) -> Array:
        """``phi(s)`` in any number system; power series get ``phi(s) / phi(0)``.

        The constant ``phi(0)`` cancels in the normalised weights.
        """
        if isinstance(system, DualNumbers):
            if not isinstance(s, Dual):
                return self.apply(s, system.base)
            slope = self.slope(s.value, system.base)
            return Dual(self.apply(s.value, system.base), s.tangent * slope)
        if isinstance(system, PowerSeries):
            return system.compose(self.residues(system.terms(s) - 1, system), s)
        return self.value(s, system)

    def slope(self, s: Array, system: NumberSystem) -> Array:
        """``phi'(s)`` in any number system without duals, divided by ``phi(0)`` for series."""
        if isinstance(system, PowerSeries):
            coefficients = self.residues(system.terms(s), system)
            shifted = [k * c for k, c in enumerate(coefficients)][1:]
            return system.compose(shifted, s)
        return self.derivative(s, system)

    def log_taylor(self, order: int) -> list[Constants]:
        """Coefficients of ``h = log(phi / phi(0))``, degrees ``0 .. order``, exactly.

        From ``phi' = h' phi``: ``k h_k = k phi_k - sum_{0<i<k} i h_i phi_{k-i}``.
        """
        phi = self.taylor(order)
        h: list[Constants] = [(Fraction(0),)]
        for k in range(1, order + 1):
            total = _multiply((Fraction(k),), phi[k])
            for i in range(1, k):
                total = _add(total, _multiply((Fraction(-i),), _multiply(h[i], phi[k - i])))
            h.append(_multiply((Fraction(1, k),), total))
        return h

    def first_degree(
        self, *, parity: int | None = None, order: int = 24, after: int = 0
    ) -> int | None:
        """First degree beyond ``after`` with a nonzero coefficient of ``h``.

        Of even or odd degree only, if asked (``parity``).

        None when there is none through ``order``; for the parities that :attr:`even` and
        :attr:`log_odd` exclude this is exact.
        """
        for degree, constants in enumerate(self.log_taylor(order)):
            right_parity = parity is None or degree % 2 == parity
            if degree > after and right_parity and any(c != 0 for c in constants):
                return degree
        return None

    def second_degree(self) -> int | None:
        """Second degree with a nonzero coefficient of ``h``, None where none is known."""
        first = self.first_degree()
        if first is None:
            return None
        return self.first_degree(after=first)

    @property
    def contact_degree(self) -> int:
        """``k``: the first nonconstant degree of ``log phi`` at zero."""
        degree = self.first_degree()
        if degree is None:
            raise InputError(
                f"{self.name} has no nonconstant Taylor coefficient through degree 24: "
                "give a normalizer whose Taylor data see it"
            )
        return degree

    @property
    def has_slope(self) -> bool:
        """Whether ``h'(0)`` is not zero."""
        return any(c != 0 for c in self.log_taylor(1)[1])

    @property
    def has_curvature(self) -> bool:
        """Whether ``h''(0)`` is not zero."""
        return any(c != 0 for c in self.log_taylor(2)[2])


class Softmax(Normalizer):
    """``phi(s) = exp(s)``."""

    name = "softmax"
    log_odd = True

    def value(self, s: Array, system: NumberSystem) -> Array:
        """``exp(s)``."""
        return system.exp(s)

    derivative = value

    def taylor(self, order: int) -> list[Constants]:
        """``1 / k!``."""
        return [(Fraction(1, factorial(k)),) for k in range(order + 1)]


class Cosh(Normalizer):
    """``phi(s) = cosh(s)``."""

    name = "cosh"
    even = True

    def value(self, s: Array, system: NumberSystem) -> Array:
        """``(e^s + e^-s) / 2``."""
        return (system.exp(s) + system.exp(-s)) / 2

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """``(e^s - e^-s) / 2``."""
        return (system.exp(s) - system.exp(-s)) / 2

    def taylor(self, order: int) -> list[Constants]:
        """``1 / k!`` at even degrees."""
        return [(Fraction(1 - k % 2, factorial(k)),) for k in range(order + 1)]


class ExpSquare(Normalizer):
    """``phi(s) = exp(s^2)``."""

    name = "exp-square"
    even = True

    def value(self, s: Array, system: NumberSystem) -> Array:
        """``exp(s^2)``."""
        return system.exp(s * s)

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """``2 s exp(s^2)``."""
        return 2 * s * system.exp(s * s)

    def taylor(self, order: int) -> list[Constants]:
        """``1 / j!`` at degree ``2 j``."""
        return [
            (Fraction(1, factorial(k // 2)) if k % 2 == 0 else Fraction(0),)
            for k in range(order + 1)
        ]


class OnePlusSquare(Normalizer):
    """``phi(s) = 1 + s^2``."""

    name = "one-plus-square"
    even = True

    def value(self, s: Array, system: NumberSystem) -> Array:
        """``1 + s^2``."""
        return s * s + 1

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """``2 s``."""
        return 2 * s

    def taylor(self, order: int) -> list[Constants]:
        """One at degrees 0 and 2."""
        return [(Fraction(int(k in (0, 2))),) for k in range(order + 1)]


def _logistic(s: Array, system: NumberSystem) -> Array:
    return 1 / (system.exp(-s) + 1)


def _sigmoid_taylor(order: int) -> list[Fraction]:
    """Coefficients of ``2 / (1 + exp(-s))`` by inverting its denominator's series."""
    denominator = [Fraction((-1) ** k, factorial(k)) for k in range(order + 1)]
    denominator[0] += 1
    result = [Fraction(1)]
    for k in range(1, order + 1):
        total = sum((denominator[i] * result[k - i] for i in range(1, k + 1)), Fraction(0))
        result.append(-total / 2)
    return result


class Sigmoid(Normalizer):
    """``phi(s) = 1 / (1 + exp(-s))``."""

    name = "sigmoid"

    def value(self, s: Array, system: NumberSystem) -> Array:
        """The logistic function."""
        return _logistic(s, system)

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """``phi (1 - phi)``."""
        value = _logistic(s, system)
        return value * (1 - value)

    def taylor(self, order: int) -> list[Constants]:
        """Coefficients of ``2 / (1 + exp(-s))``."""
        return [(c,) for c in _sigmoid_taylor(order)]


class Softplus(Normalizer):
    """``phi(s) = log(1 + exp(s))``, with ``phi(0) = log 2`` (transcendental)."""

    name = "softplus"

    def value(self, s: Array, system: NumberSystem) -> Array:
        """``log(1 + exp(s))``."""
        if isinstance(system, Balls):
            return system.log1p(system.exp(s))
        # Complex steps need an analytic formula; real float64 the one without overflow.
        return np.log1p(np.exp(s)) if np.iscomplexobj(s) else np.logaddexp(0.0, s)

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """The logistic function."""
        return _logistic(s, system)

    def taylor(self, order: int) -> list[Constants]:
        """``1 + lambda (s/2 + s^2/8 - ...)`` with ``lambda = 1 / log 2``."""
        logistic = [c / 2 for c in _sigmoid_taylor(max(order - 1, 0))]
        first: list[Constants] = [(Fraction(1),)]
        return first + [(Fraction(0), logistic[k - 1] / k) for k in range(1, order + 1)]


@dataclass(frozen=True)
class _Data:
    value: Callable[[Any], Any]
    derivative: Callable[[Any], Any]
    coefficients: tuple[Fraction, ...]


class CustomNormalizer(Normalizer):
    """A positive analytic function given by callables and its Taylor data.

    Parameters
    ----------
    name
        What reports call it.
    value, derivative
        ``phi`` and ``phi'`` of an array, in float64 (NumPy) and, where ball arithmetic is asked
        for, of object arrays of balls.
    taylor
        Coefficients ``phi(0), phi'(0), phi''(0)/2, ...`` as rational numbers. Computations that
        need a degree beyond the last one raise :class:`InputError`.
    even, log_odd
        Parities that hold at every order (finite data can only refute them).

    Raises
    ------
    InputError
        If ``phi(0) <= 0``, if the data contradict a parity, or if no nonconstant coefficient is
        given.
    """

    def __init__(
        self,
        name: str,
        value: Callable[[Any], Any],
        derivative: Callable[[Any], Any],
        taylor: Sequence[int | float | Fraction],
        *,
        even: bool = False,
        log_odd: bool = False,
    ) -> None:
        self.name, self.even, self.log_odd = name, even, log_odd
        exact = [Fraction(c) for c in taylor]
        if len(exact) < 2 or not any(exact[1:]):
            raise InputError(
                f"normalizer {name}: its Taylor data show a constant; give a nonzero coefficient "
                "of positive degree"
            )
        if exact[0] <= 0:
            raise InputError(f"normalizer {name}: phi(0) = {exact[0]} is not positive")
        self._data = _Data(value, derivative, tuple(c / exact[0] for c in exact))
        if even and any(exact[1::2]):
            raise InputError(f"normalizer {name}: declared even, but an odd coefficient is given")
        odd_log = [c for c in self.log_taylor(len(exact) - 1)[2::2] if any(c)]
        if log_odd and odd_log:
            raise InputError(f"normalizer {name}: declared log-odd, but log phi has an even term")

    def value(self, s: Array, system: NumberSystem) -> Array:
        """The given callable."""
        return self._data.value(s)

    def derivative(self, s: Array, system: NumberSystem) -> Array:
        """The given callable."""
        return self._data.derivative(s)

    def taylor(self, order: int) -> list[Constants]:
        """The given data, divided by ``phi(0)``."""
        known = self._data.coefficients
        if order >= len(known):
            raise InputError(
                f"normalizer {self.name}: Taylor degree {order} is needed but only "
                f"{len(known) - 1} is given"
            )
        return [(c,) for c in known[: order + 1]]

    def first_degree(
        self, *, parity: int | None = None, order: int = 24, after: int = 0
    ) -> int | None:
        """First nonzero degree within the given data."""
        return super().first_degree(
            parity=parity, order=min(order, len(self._data.coefficients) - 1), after=after
        )


NORMALIZERS: dict[str, Normalizer] = {
    phi.name: phi
    for phi in (Softmax(), Cosh(), ExpSquare(), OnePlusSquare(), Softplus(), Sigmoid())
}
"""Normalizers by name; ``exp`` is another name of ``softmax``."""

ALIASES = {"exp": "softmax", "exp(s^2)": "exp-square", "1+s^2": "one-plus-square"}


def normalizer(name: str | Normalizer) -> Normalizer:
    """Normalizer of a name (or itself); :class:`InputError` lists the names."""
    if isinstance(name, Normalizer):
        return name
    found = NORMALIZERS.get(ALIASES.get(name, name))
    if found is None:
        known = ", ".join([*NORMALIZERS, *ALIASES])
        raise InputError(f"no normalizer is called {name!r}; known are {known}")
    return found
