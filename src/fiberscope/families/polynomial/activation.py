"""Polynomial activations with rational coefficients: parsing and elementary properties."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fiberscope.errors import InputError
from fiberscope.numbers.balls import load_flint

MAX_DEGREE = 10_000
"""Highest exponent of a monomial that is parsed: beyond it nothing here is practical."""

MAX_EXPANDED_DEGREE = 2000
"""Highest degree up to which products, powers and compositions of other terms are expanded."""

_MOST_DIGITS = 1000
_SMALL = 64
_TEST_PRIME = 2147483629

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([A-Za-z])|(\*\*|[-+*/^()]))")


@dataclass(frozen=True)
class Polynomial:
    """A univariate polynomial over the rationals.

    Attributes
    ----------
    coefficients
        Coefficient of ``z^i`` at position ``i``; the last one is not zero (empty for zero).
    """

    coefficients: tuple[Fraction, ...]

    @classmethod
    def of(cls, coefficients: Sequence[Fraction | int]) -> Polynomial:
        """Build from coefficients in ascending order, dropping leading zeros."""
        trimmed = [Fraction(c) for c in coefficients]
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        return cls(tuple(trimmed))

    @classmethod
    def monomial(cls, degree: int) -> Polynomial:
        """``z^degree``."""
        return cls.of([0] * degree + [1])

    @property
    def degree(self) -> int:
        """Degree; -1 for the zero polynomial."""
        return len(self.coefficients) - 1

    @property
    def exponents(self) -> frozenset[int]:
        """Exponents whose coefficient is not zero."""
        return frozenset(i for i, c in enumerate(self.coefficients) if c)

    @property
    def is_monomial(self) -> bool:
        """True for ``a z^r`` with ``a`` not zero."""
        return len(self.exponents) == 1

    @property
    def through_origin(self) -> bool:
        """True when the value at zero is zero."""
        return 0 not in self.exponents

    @property
    def parity(self) -> int:
        """1 for even, -1 for odd, 0 for neither (the zero polynomial counts as even)."""
        if all(e % 2 == 0 for e in self.exponents):
            return 1
        return -1 if all(e % 2 for e in self.exponents) else 0

    @property
    def centre(self) -> Fraction:
        """``c`` such that ``p(z + c)`` has no term of degree one below the leading one."""
        return -self.coefficients[-2] / (self.degree * self.coefficients[-1])

    @property
    def is_shifted_monomial(self) -> bool:
        """True for ``a (z - c)^r + b``: with biases such an activation is as good as ``z^r``."""
        if self.degree < 1:
            return False
        moved = self(Polynomial.of([self.centre, 1]))
        return moved.exponents <= {0, self.degree}

    def __add__(self, other: Polynomial) -> Polynomial:
        size = max(len(self.coefficients), len(other.coefficients))
        first = [*self.coefficients, *([Fraction(0)] * (size - len(self.coefficients)))]
        second = [*other.coefficients, *([Fraction(0)] * (size - len(other.coefficients)))]
        return Polynomial.of([a + b for a, b in zip(first, second, strict=True)])

    def __mul__(self, other: Polynomial) -> Polynomial:
        if not self.coefficients or not other.coefficients:
            return Polynomial(())
        if min(self.degree, other.degree) > _SMALL:
            return _from_flint(_to_flint(self) * _to_flint(other))
        product = [Fraction(0)] * (self.degree + other.degree + 1)
        for i, a in enumerate(self.coefficients):
            if a:
                for j, b in enumerate(other.coefficients):
                    product[i + j] += a * b
        return Polynomial.of(product)

    def __call__(self, inner: Polynomial) -> Polynomial:
        """Composition ``self(inner(z))``, by Horner's rule where it is small."""
        if self.degree > _SMALL:
            return _from_flint(_to_flint(self)(_to_flint(inner)))
        result = Polynomial(())
        for coefficient in reversed(self.coefficients):
            result = result * inner + Polynomial.of([coefficient])
        return result

    def power(self, exponent: int) -> Polynomial:
        """``self ** exponent``, by repeated squaring where it is small."""
        if self.degree * exponent > _SMALL:
            return _from_flint(_to_flint(self) ** exponent)
        result, square = Polynomial.of([1]), self
        while exponent:
            if exponent & 1:
                result = result * square
            square = square * square
            exponent >>= 1
        return result

    def as_power(self) -> tuple[int, Polynomial]:
        """Largest ``l`` with ``self = a f^l``, and the monic ``f``."""
        for exponent in range(self.degree, 1, -1):
            if self.degree % exponent == 0:
                root = self._root(exponent)
                if root is not None:
                    return exponent, root
        return 1, Polynomial.of([c / self.coefficients[-1] for c in self.coefficients])

    def _root(self, exponent: int) -> Polynomial | None:
        """Monic ``f`` with ``self = a f^exponent``, by comparing coefficients from the top.

        With ``F = 1 + F_1 t + ...`` and ``G = 1 + G_1 t + ...`` the reversed polynomials,
        ``G = F^(1/exponent)`` gives ``exponent G' F = F' G``, a recurrence for ``G``.
        """
        size = self.degree // exponent
        monic = Polynomial.of([c / self.coefficients[-1] for c in self.coefficients])
        given = monic.coefficients[::-1]
        if size > _SMALL and not _may_be_power(given[: size + 1], monic, exponent):
            return None
        root = [Fraction(1)]
        for k in range(1, size + 1):
            total = sum(
                ((j - exponent * (k - j)) * given[j] * root[k - j] for j in range(1, k + 1)),
                Fraction(0),
            )
            root.append(total / (exponent * k))
        candidate = Polynomial.of(root[::-1])
        return candidate if candidate.power(exponent) == monic else None

    def __str__(self) -> str:
        terms = []
        for exponent in sorted(self.exponents, reverse=True):
            c = self.coefficients[exponent]
            sign = "-" if c < 0 else "+"
            size = str(abs(c)) if abs(c) != 1 or exponent == 0 else ""
            variable = "" if exponent == 0 else "z" if exponent == 1 else f"z^{exponent}"
            terms.append((sign, "*".join(part for part in (size, variable) if part)))
        if not terms:
            return "0"
        first = ("-" if terms[0][0] == "-" else "") + terms[0][1]
        return first + "".join(f" {sign} {term}" for sign, term in terms[1:])


def _to_flint(polynomial: Polynomial) -> Any:
    flint = load_flint()
    return flint.fmpq_poly(
        [flint.fmpq(c.numerator, c.denominator) for c in polynomial.coefficients]
    )


def _from_flint(polynomial: Any) -> Polynomial:
    return Polynomial.of([Fraction(int(c.p), int(c.q)) for c in polynomial.coeffs()])


def _may_be_power(given: Sequence[Fraction], monic: Polynomial, exponent: int) -> bool:
    """False proves, modulo a prime, that a monic polynomial is no such power."""
    prime = _TEST_PRIME
    if any(c.denominator % prime == 0 for c in monic.coefficients):
        return True
    whole = [c.numerator * pow(c.denominator, -1, prime) % prime for c in monic.coefficients]
    head = np.array(whole[::-1][: len(given)], dtype=np.int64)
    root = np.zeros(len(given), dtype=np.int64)
    root[0] = 1
    for k in range(1, len(given)):
        j = np.arange(1, k + 1)
        # Products of two residues stay below 2^62; each is reduced before the next.
        terms = head[1 : k + 1] * root[k - j] % prime * ((j - exponent * (k - j)) % prime) % prime
        root[k] = int(terms.sum() % prime) * pow(exponent * k, -1, prime) % prime
    flint = load_flint()
    power = flint.nmod_poly([int(c) for c in root[::-1]], prime) ** exponent
    return bool(power == flint.nmod_poly(whole, prime))


def parse_compositions(text: str) -> list[Polynomial]:
    """Parse polynomials ``p_1,...,p_k`` in one common variable.

    Raises
    ------
    InputError
        If one is no polynomial, or two have different variables.
    """
    letters = sorted(set(filter(str.isalpha, text)))
    if len(letters) > 1:
        raise InputError(
            f"the compositions {text!r} have the variables {', '.join(letters)}: use only one"
        )
    return [parse_polynomial(part, "the composition") for part in text.split(",")]


def parse_polynomial(text: str, what: str = "the polynomial") -> Polynomial:
    """Parse ``z^3 + z + 1``, ``(z+1)^3 - 1``, ``3/7*z**2``; one letter is the variable.

    Raises
    ------
    InputError
        If the text is not a polynomial in one variable with rational coefficients.
    """
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InputError(
                f"{what} {text!r} cannot be read at {text[position:].strip()[:10]!r}: "
                "write for instance 'z^3 + 2/3*z - 1'"
            )
        tokens.append(match.group().strip())
        position = match.end()
    if any(len(token) > _MOST_DIGITS for token in tokens):
        raise InputError(
            f"{what} has a number of more than {_MOST_DIGITS} digits: use shorter ones"
        )
    letters = {token for token in tokens if token.isalpha()}
    if len(letters) > 1:
        raise InputError(f"{what} {text!r} has the variables {sorted(letters)}: use only one")
    return _Parser(text, tokens, what).parse()


class _Parser:
    """Recursive descent over sums, products, powers and brackets."""

    def __init__(self, text: str, tokens: list[str], what: str) -> None:
        self.text, self.tokens, self.what, self.position = text, tokens, what, 0

    def fail(self, reason: str) -> InputError:
        return InputError(
            f"{self.what} {self.text!r} cannot be read: {reason}; "
            "write for instance 'z^3 + 2/3*z - 1'"
        )

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def parse(self) -> Polynomial:
        result = self.sum()
        if self.peek():
            raise self.fail(f"{self.peek()!r} is not expected there")
        return result

    def sum(self) -> Polynomial:
        total = self.product()
        while self.peek() in ("+", "-"):
            sign = Fraction(1 if self.take() == "+" else -1)
            total = total + Polynomial.of([sign]) * self.product()
        return total

    def product(self) -> Polynomial:
        total = self.factor()
        while True:
            token = self.peek()
            if token == "*":
                self.take()
                total = self.multiply(total, self.factor())
            elif token == "/":
                self.take()
                divisor = self.factor()
                if divisor.degree != 0:
                    raise self.fail("only a non-zero number can divide")
                total = total * Polynomial.of([1 / divisor.coefficients[0]])
            elif token == "(" or token.isalnum() or "." in token:
                total = self.multiply(total, self.factor())
            else:
                return total

    def multiply(self, first: Polynomial, second: Polynomial) -> Polynomial:
        monomials = first.is_monomial and second.is_monomial
        self.check(first.degree + second.degree, monomials)
        return first * second

    def check(self, degree: int, monomial: bool) -> None:
        most = MAX_DEGREE if monomial else MAX_EXPANDED_DEGREE
        if degree > most:
            raise self.fail(f"its degree is above {most}, the most that is expanded")

    def factor(self) -> Polynomial:
        token = self.peek()
        if token in ("+", "-"):
            self.take()
            inner = self.factor()
            return inner if token == "+" else Polynomial.of([-1]) * inner
        base = self.atom()
        if self.peek() in ("^", "**"):
            self.take()
            exponent = self.take()
            if not exponent.isdigit():
                raise self.fail("an exponent must be a whole number")
            self.check(int(exponent) * max(base.degree, 1), base.is_monomial)
            if base.is_monomial:
                leading = base.coefficients[-1] ** int(exponent)
                return Polynomial.of([0] * (base.degree * int(exponent)) + [leading])
            return base.power(int(exponent))
        return base

    def atom(self) -> Polynomial:
        token = self.take()
        if token == "(":
            inner = self.sum()
            if self.take() != ")":
                raise self.fail("a bracket is not closed")
            return inner
        if token.isalpha():
            return Polynomial.of([0, 1])
        if token and (token[0].isdigit()):
            return Polynomial.of([Fraction(token)])
        raise self.fail("it ends too early" if not token else f"{token!r} is not expected there")


def good_for_two(sigma: Polynomial) -> bool:
    """Tell whether ``sigma`` keeps every two compositions independent, by Delta2 and Delta3.

    Sufficient, not necessary: degree ``r >= 3`` and ``a_r Delta2 Delta3 != 0``, with
    ``Delta2 = 2 r a_r a_(r-2) - (r-1) a_(r-1)^2`` and ``Delta3 = 3 r^2 a_r^2 a_(r-3)
    - 3 r (r-2) a_r a_(r-1) a_(r-2) + (r-1)(r-2) a_(r-1)^3``. Source: Kohn, Marchetti, Massarenti,
    Mella (2026), the case of two polynomials with constant terms.
    """
    if sigma.degree < 3:
        return False
    delta2, delta3 = deltas(sigma)
    return delta2 != 0 and delta3 != 0


def deltas(sigma: Polynomial) -> tuple[Fraction, Fraction]:
    """``(Delta2, Delta3)`` of an activation of degree at least three."""
    r = sigma.degree
    a0, a1, a2, a3 = (sigma.coefficients[r - i] for i in range(4))
    delta2 = 2 * r * a0 * a2 - (r - 1) * a1**2
    delta3 = 3 * r**2 * a0**2 * a3 - 3 * r * (r - 2) * a0 * a1 * a2 + (r - 1) * (r - 2) * a1**3
    return delta2, delta3
