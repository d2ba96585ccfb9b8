r"""One probe in balls: the answers to k copies, read as a rational function of k.

Ask for ``k`` copies of ``y + z`` followed by ``y``. With ``a_h = exp(z^T W_h y)``,
``r_h = z^T v_h`` and ``u = sum_h v_h`` the answer is

    f(k) = u^T y + sum_h r_h k a_h / (1 + k a_h),

so ``g(k) = f(k) - u^T y = k N(k) / D(k)`` with ``D(k) = prod_h (1 + k a_h)`` and ``N`` of degree
below the number of heads: ``2 H`` values determine all ``(a_h, r_h)``. Equal ``a_h`` show as one,
and a head with ``r_h = 0`` does not show, so the count is the one at this probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fiberscope.numbers.balls import load_flint


class NeedsMoreBits(Exception):  # noqa: N818 - asks for precision, says nothing about the oracle
    """The enclosures are too wide to tell."""


class Contradiction(Exception):  # noqa: N818 - a finding about the oracle
    """Enclosures that must meet are proved disjoint: no function of this form answers so."""


@dataclass(frozen=True)
class Probe:
    """The heads as one probe sees them, in no particular order.

    Attributes
    ----------
    logarithms
        Enclosures of ``log a_h = z^T W_h y``.
    heights
        Enclosures of ``r_h = z^T v_h``, none of which contains zero.
    """

    logarithms: tuple[Any, ...]
    heights: tuple[Any, ...]

    @property
    def count(self) -> int:
        """How many heads this probe tells apart."""
        return len(self.heights)


def read_probe(values: list[Any]) -> Probe:
    """Enclose every ``(log a_h, r_h)`` from ``g(1), ..., g(2 bound)``.

    Parameters
    ----------
    values
        Balls around ``g(k) = f(k) - u^T y`` for ``k = 1 .. 2 bound``. The largest number of heads
        whose linear system is proved regular is taken, and every value must then be met.

    Raises
    ------
    NeedsMoreBits
        Regularity, the values or the roots are not resolved at this precision.
    Contradiction
        The values are proved not to come from at most ``bound`` heads.
    """
    bound = len(values) // 2
    for count in range(bound, 0, -1):
        try:
            numerator, denominator = _rational(values[: 2 * count], count)
        except ZeroDivisionError:  # singular, or not proved regular
            continue
        for k, value in enumerate(values[2 * count :], start=2 * count + 1):
            if not (value * denominator(k) - k * numerator(k)).contains(0):
                raise NeedsMoreBits
        try:
            return _residues(numerator, denominator, count)
        except Contradiction as found:
            # With fewer heads than allowed, a head that does not show may explain it.
            if count == bound:
                raise
            raise NeedsMoreBits(str(found)) from None
    if all(value.contains(0) for value in values):
        return Probe((), ())
    raise NeedsMoreBits


def _rational(values: list[Any], count: int) -> tuple[Any, Any]:
    """Polynomials ``N`` (degree below ``count``) and ``D`` (degree ``count``, ``D(0) = 1``)."""
    flint = load_flint()
    rows, right = [], []
    for k, value in enumerate(values, start=1):
        rows += [value * k**j for j in range(1, count + 1)]
        rows += [flint.arb(-(k**j)) for j in range(1, count + 1)]
        right.append(-value)
    size = 2 * count
    solution = flint.arb_mat(size, size, rows).solve(flint.arb_mat(size, 1, right)).entries()
    return flint.arb_poly(solution[count:]), flint.arb_poly([1, *solution[:count]])


def _residues(numerator: Any, denominator: Any, count: int) -> Probe:
    """Roots and residues: ``a_h`` are the roots of ``x^count D(-1/x)``."""
    flint = load_flint()
    signed = [(-1) ** j * c for j, c in enumerate(denominator.coeffs())]
    signed += [flint.arb(0)] * (count + 1 - len(signed))
    roots = _positive_roots(flint.arb_poly(signed[::-1]), count)
    heights = []
    for h, a in enumerate(roots):
        others = flint.arb(1)
        for m, b in enumerate(roots):
            if m != h:
                others *= 1 - b / a
        heights.append(numerator(-1 / a) / (a * others))
    if not all(r.is_finite() and not r.contains(0) for r in heights):
        raise NeedsMoreBits
    return Probe(tuple(a.log() for a in roots), tuple(heights))


def _positive_roots(polynomial: Any, count: int) -> list[Any]:
    """Enclosures of ``count`` distinct positive roots, each with exactly one root (Newton)."""
    flint = load_flint()
    if polynomial.degree() != count:
        raise NeedsMoreBits
    middle = flint.acb_poly([c.mid() for c in polynomial.coeffs()])
    try:
        approximate = middle.roots()
    except ValueError:  # a multiple root, as far as this precision can see
        raise NeedsMoreBits from None
    complex_polynomial = flint.acb_poly(polynomial)
    slope, complex_slope = polynomial.derivative(), complex_polynomial.derivative()
    roots = []
    for root in approximate:
        near = _polish(middle, root.mid())
        start = near.real.mid()
        step = (polynomial(start) / slope(start)).abs_upper()
        if near.imag.mid().abs_upper() > 4 * step:
            # Off the real axis: a box that holds exactly one root and misses the axis proves it.
            box = _newton(complex_polynomial, complex_slope, near)
            if not box.imag.contains(0):
                raise Contradiction("a probe has poles off the real axis")
            raise NeedsMoreBits
        enclosure = _newton(polynomial, slope, start)
        if enclosure < 0:
            raise Contradiction("a probe has a pole at a positive number of copies")
        if not enclosure > 0:
            raise NeedsMoreBits
        roots.append(enclosure)
    for h, a in enumerate(roots):
        if any(a.overlaps(b) for b in roots[:h]):
            raise NeedsMoreBits
    return roots


def _polish(polynomial: Any, root: Any) -> Any:
    """Newton's iteration on exact coefficients, up to the working precision."""
    slope = polynomial.derivative()
    last = None
    for _ in range(64):
        step = polynomial(root) / slope(root)
        if not step.is_finite():
            raise NeedsMoreBits
        size = step.mid().abs_upper()
        if last is not None and not size < last / 2:
            break
        root, last = (root - step.mid()).mid(), size
    return root


def _newton(polynomial: Any, slope: Any, start: Any) -> Any:
    """Interval Newton: a ball around ``start`` that holds exactly one root of every member."""
    flint = load_flint()
    value = polynomial(start)
    quotient = value / slope(start)
    if not quotient.is_finite():
        raise NeedsMoreBits
    for widening in (2, 8):
        radius = flint.arb(quotient.abs_upper()) * widening
        # A root known exactly still needs a ball with an interior.
        radius += flint.arb(start.abs_upper()) * flint.arb(2) ** (-flint.ctx.prec)
        around = flint.arb(0, radius.upper())
        ball = start + (around if isinstance(start, flint.arb) else flint.acb(around, around))
        image = start - value / slope(ball)
        if image.is_finite() and ball.contains(image):
            return image
    raise NeedsMoreBits
