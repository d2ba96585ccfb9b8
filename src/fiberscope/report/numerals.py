"""Numbers as people read them."""

from __future__ import annotations

import math


def count(number: int) -> str:
    """Integer with thousands separators."""
    return f"{number:,}"


def share(part: int, whole: int) -> str:
    """Percentage with three significant digits; never rounded to 0 or 100 when it is neither."""
    if whole == 0 or part == 0:
        return "0 %"
    if part == whole:
        return "100 %"
    percent = 100 * part / whole
    if percent < 0.001:
        return "< 0.001 %"
    if percent > 99.99:
        return "> 99.99 %"
    digits = max(0, 2 - math.floor(math.log10(percent)))
    return f"{percent:.{min(digits, 4)}f} %"


def real(number: float) -> str:
    """Three significant digits, without an exponent where that stays short."""
    if math.isinf(number):
        return "infinite"
    if number == 0:
        return "0"
    if 1e-4 <= abs(number) < 1e5:
        digits = max(0, 2 - math.floor(math.log10(abs(number))))
        return f"{number:,.{digits}f}"
    return f"{number:.2e}"


def order(log10: float) -> str:
    """The order of a finite group, given by its logarithm."""
    if log10 < 5.95:
        return f"{round(10**log10):,}"
    return f"10^{log10:,.1f}"


def plural(number: int, noun: str) -> str:
    """``1 head``, ``1,234 heads``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
