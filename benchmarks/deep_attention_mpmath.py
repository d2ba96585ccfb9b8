"""Spectrum of the 768 x 96 matrix case: this package in ball arithmetic against mpmath.

Both sides use the same inputs, the same point t = 0.06 and the same working precision, 120 digits,
and run in one process, one after the other, on one thread. Two mpmath programs are timed:

- straightforward: dual numbers for the Jacobian, ``svd_r`` for the singular values;
- strongest: the closed-form adjoint Jacobian, and ``eigsy`` of its Gram matrix.

Only this package encloses its results. mpmath uses gmpy2 where it is installed. Usage:

    python benchmarks/deep_attention_mpmath.py [--only-strongest] [--points]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import mpf

from fiberscope.analysis.spectrum import enclosed_spectrum
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.paths import matrix_case

DIGITS, BITS = 120, 400
Matrix = list[list[Any]]


class Dual:
    """A number with one derivative, the textbook way."""

    __slots__ = ("d", "v")

    def __init__(self, v: Any, d: Any) -> None:
        self.v, self.d = v, d

    def __add__(self, other: Dual) -> Dual:
        return Dual(self.v + other.v, self.d + other.d)

    def __mul__(self, other: Dual) -> Dual:
        return Dual(self.v * other.v, self.d * other.v + self.v * other.d)

    def __truediv__(self, other: Dual) -> Dual:
        quotient = self.v / other.v
        return Dual(quotient, (self.d - quotient * other.d) / other.v)

    def exp(self) -> Dual:
        """Exponential; its derivative is itself."""
        value = mpmath.exp(self.v)
        return Dual(value, self.d * value)


def flat(matrix: Matrix) -> list[Any]:
    return [value for row in matrix for value in row]


def product(a: Any, b: Any) -> Any:
    columns = list(zip(*b, strict=True))
    rows = []
    for row in a:
        line = []
        for column in columns:
            total = row[0] * column[0]
            for x, y in zip(row[1:], column[1:], strict=True):
                total = total + x * y
            line.append(total)
        rows.append(line)
    return rows


def transpose(a: Any) -> Any:
    return [list(column) for column in zip(*a, strict=True)]


def dual_network(point: dict[str, Any], x: Any) -> Any:
    for layer in (1, 2, 3):
        scores = product(product(x, point[f"Q{layer}"]), transpose(product(x, point[f"K{layer}"])))
        weights = []
        for row in scores:
            exps = [s.exp() for s in row]
            total = exps[0]
            for e in exps[1:]:
                total = total + e
            weights.append([e / total for e in exps])
        x = product(product(weights, x), transpose(point[f"V{layer}"]))
    return x


def jacobian_by_duals(point: dict[str, Matrix], inputs: list[Matrix]) -> Matrix:
    zero, one = mpf(0), mpf(1)
    names = list(point)
    columns = []
    for name in names:
        for i in range(len(point[name])):
            for j in range(len(point[name][0])):
                varied = {
                    key: [
                        [
                            Dual(v, one if (key, a, b) == (name, i, j) else zero)
                            for b, v in enumerate(row)
                        ]
                        for a, row in enumerate(value)
                    ]
                    for key, value in point.items()
                }
                column = []
                for x in inputs:
                    lifted = [[Dual(v, zero) for v in row] for row in x]
                    column += [entry.d for row in dual_network(varied, lifted) for entry in row]
                columns.append(column)
    return transpose(columns)


def jacobian_closed_form(point: dict[str, Matrix], inputs: list[Matrix]) -> Matrix:
    """Adjoint accumulation with plain lists; the same formulas as this package's."""
    rows: Matrix = []
    d = n = 4
    for x0 in inputs:
        x = x0
        kept = []
        for layer in (1, 2, 3):
            q, k, v = (point[f"{kind}{layer}"] for kind in "QKV")
            scores = product(product(x, q), transpose(product(x, k)))
            weights = []
            for row in scores:
                exps = [mpmath.exp(s) for s in row]
                total = sum(exps)
                weights.append([e / total for e in exps])
            mixed = product(weights, x)
            kept.append((x, mixed, weights, q, k, v))
            x = product(mixed, transpose(v))
        zero, one = mpf(0), mpf(1)
        for out in range(n * d):
            g = [[one if a * d + c == out else zero for c in range(d)] for a in range(n)]
            blocks: dict[str, list[Any]] = {}
            for layer in (3, 2, 1):
                x, mixed, weights, q, k, v = kept[layer - 1]
                blocks[f"V{layer}"] = flat(product(transpose(g), mixed))
                gu = product(g, v)
                score = []
                for a in range(n):
                    along = [sum(p * r for p, r in zip(gu[a], x[b], strict=True)) for b in range(n)]
                    own = sum(p * r for p, r in zip(gu[a], mixed[a], strict=True))
                    score.append([w * (s - own) for w, s in zip(weights[a], along, strict=True)])
                key_sums = product(score, product(x, k))
                query_sums = product(transpose(score), product(x, q))
                blocks[f"Q{layer}"] = flat(product(transpose(x), key_sums))
                blocks[f"K{layer}"] = flat(product(transpose(x), query_sums))
                back = product(transpose(weights), gu)
                to_q = product(key_sums, transpose(q))
                to_k = product(query_sums, transpose(k))
                g = [
                    [p + r + s for p, r, s in zip(*lines, strict=True)]
                    for lines in zip(back, to_q, to_k, strict=True)
                ]
            rows.append(flat([blocks[name] for name in point]))
    return rows


def timed(function: Any, *arguments: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - start


def ours(t: Fraction) -> tuple[Any, float]:
    path, bank = matrix_case()
    family = DeepAttention(path.architecture)
    point = path.at(t)
    return timed(lambda: enclosed_spectrum(family, point, bank, digits=30, start_bits=BITS))


def theirs(t: Fraction, only_strongest: bool) -> dict[str, tuple[Any, float]]:
    path, bank = matrix_case()
    with mpmath.workdps(DIGITS):
        point = {
            name: [[mpf(v.numerator) / v.denominator for v in row] for row in value[0]]
            for name, value in path.at(t).items()
        }
        inputs = [[[mpf(v) for v in row] for row in x] for x in bank.inputs.tolist()]
        results = {}
        jacobian, seconds = timed(jacobian_closed_form, point, inputs)
        matrix = mpmath.matrix(jacobian)

        def eigen() -> list[Any]:
            values = mpmath.eigsy(matrix.T * matrix, eigvals_only=True)
            return [mpmath.sqrt(abs(v)) for v in sorted(values, reverse=True)[:52]]

        values, more = timed(eigen)
        print(f"mpmath closed form {seconds:.1f} s, Gram and eigsy {more:.1f} s", flush=True)
        results["closed form + eigsy"] = (values, seconds + more)
        if not only_strongest:
            by_duals, seconds = timed(jacobian_by_duals, point, inputs)
            worst = max(
                abs(a - b)
                for r, s in zip(jacobian, by_duals, strict=True)
                for a, b in zip(r, s, strict=True)
            )
            print(
                f"mpmath duals {seconds:.1f} s; largest deviation from the closed form "
                f"{mpmath.nstr(worst, 3)}",
                flush=True,
            )
            found, more = timed(mpmath.svd_r, mpmath.matrix(by_duals), False, False)
            print(f"mpmath svd_r {more:.1f} s", flush=True)
            values = sorted(found, reverse=True)[:52]
            results["duals + svd_r"] = (values, seconds + more)
        return results


def from_process_start(points: str) -> tuple[float, float]:
    """Wall and CPU time of the command, from process start, as a user meets it."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "fiberscope", "spectrum", "deep-attention", "--example", "matrix",
         "--t", points, "--json"],
        check=True, capture_output=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-strongest", action="store_true")
    parser.add_argument("--points", action="store_true", help="only time the command")
    options = parser.parse_args()
    for points in ("0.06", "0.6,0.4,0.25,0.16,0.1,0.06"):
        times = [from_process_start(points) for _ in range(5)]
        wall, cpu = (min(column) for column in zip(*times, strict=True))
        print(
            f"command from process start, t = {points}: {wall:.2f} s wall, {cpu:.2f} s CPU "
            "(least of 5)",
            flush=True,
        )
    if options.points:
        return
    t = Fraction("0.06")
    runs = [ours(t) for _ in range(3)]
    spectrum, best = runs[0][0], min(seconds for _, seconds in runs)
    print(
        f"fiberscope at {spectrum.bits} bits: {best:.2f} s CPU (best of 3), relative error bound "
        f"{spectrum.relative_error:.1e}",
        flush=True,
    )
    for name, (values, seconds) in theirs(t, options.only_strongest).items():
        pairs = zip(values, spectrum.decimals(30), strict=True)
        worst = max(abs(Fraction(mpmath.nstr(v, 40)) / Fraction(text) - 1) for v, text in pairs)
        print(
            f"{name}: {seconds:.1f} s CPU, {seconds / best:.0f} times slower; values agree to "
            f"{float(worst):.0e} of 30 printed digits",
            flush=True,
        )
    print("backend of mpmath:", mpmath.libmp.BACKEND)


if __name__ == "__main__":
    main()
