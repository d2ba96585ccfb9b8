"""Certified functional dimensions over thousands of width and rank patterns.

Patterns are drawn so that bottlenecks and sharp last drops with small ranks are common: those are
where the closed form only bounds. For every pattern: the proved dimension of the softmax and of
the lightning network, the rank of the map to effective parameters modulo a prime, the closed form,
and the rank that a float32 rule reports (ten normal inputs, five draws, default tolerance of
``matrix_rank``, the largest rank kept). Usage:

    python benchmarks/deep_attention_dimensions.py [--patterns 2100] [--seed 0] [--out FILE.csv]
    python benchmarks/deep_attention_dimensions.py --published
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from fiberscope.families.deep_attention import (
    Architecture,
    certified_dimension,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.effective_dimension import closed_form, effective_map_rank
from fiberscope.families.deep_attention.forward import forward
from fiberscope.numbers import DualNumbers, NumberSystem
from fiberscope.verdict import Status

Pattern = tuple[tuple[int, ...], tuple[int, ...]]


class Float32(NumberSystem):
    """Single precision, for the rule under test only."""

    name = "float32"

    def array(self, values: Any) -> Any:
        """Round to float32."""
        return np.asarray(values, dtype=np.float32)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Array of zeros."""
        return np.zeros(shape, dtype=np.float32)

    def exp(self, x: Any) -> Any:
        """Exponential."""
        return np.exp(x)

    def sqrt(self, x: Any) -> Any:
        """Square root."""
        return np.sqrt(x)

    def to_float64(self, x: Any) -> Any:
        """Widen."""
        return x.astype(np.float64)


def float32_rule(architecture: Architecture, rng: np.random.Generator, inputs: int = 10) -> int:
    """The largest ``matrix_rank`` of five float32 Jacobians at normal parameters and inputs."""
    system = Float32()
    duals = DualNumbers(system)
    space = architecture.space
    best = 0
    for _ in range(5):
        flat = duals.variables(system.array(rng.standard_normal(space.size)))
        named = {name: flat[window].reshape(space.shapes[name]) for name, window in space.slices()}
        shape = (inputs, architecture.tokens, architecture.widths[0])
        with np.errstate(all="ignore"):
            outputs = forward(architecture, named, system.array(rng.standard_normal(shape)), duals)
        jacobian = outputs.tangent.reshape(space.size, -1)
        if np.isfinite(jacobian).all():
            best = max(best, int(np.linalg.matrix_rank(jacobian)))
    return best


def draw_patterns(count: int, rng: np.random.Generator) -> list[Pattern]:
    """Distinct patterns, a third each: any, with a bottleneck, with a sharp last drop."""
    found: dict[Pattern, None] = {}
    while len(found) < count:
        kind = len(found) % 3
        depth = int(rng.integers(1 if kind == 0 else 2, 5))
        widths = rng.integers(1, 7, depth + 1)
        ranks = [int(rng.integers(1, min(3, width) + 1)) for width in widths[:-1]]
        if kind == 1:
            narrow = int(rng.integers(1, depth))
            widths[narrow] = int(rng.integers(1, 3))
            widths[0] = int(rng.integers(3, 7))
        if kind == 2:
            widths[-2] = int(rng.integers(4, 8))
            widths[:-2] = np.maximum(widths[:-2], int(rng.integers(4, 8)))
            widths[-1] = int(rng.integers(1, 3))
            ranks = [1 if rng.random() < 0.7 else 2 for _ in ranks]
        ranks = [min(rank, int(width)) for rank, width in zip(ranks, widths[:-1], strict=True)]
        found[tuple(int(w) for w in widths), tuple(ranks)] = None
    return list(found)


def published_settings(rng: np.random.Generator) -> None:
    """The settings of Henry, Marchetti and Kohn: proved dimension beside the float32 rule."""
    cases: list[tuple[list[int], int, str | None]] = [
        ([4] * 4, rank, phi) for rank in (1, 2, 3, 4) for phi in ("softmax", None)
    ]
    cases += [([width] * 3, 2, "softmax") for width in range(3, 11)]
    print("| widths | rank | network | parameters | dimension | float32: 10 inputs | 250 inputs |")
    print("|---|---|---|---|---|---|---|")
    for widths, rank, phi in cases:
        architecture = deep_attention_architecture(
            widths=widths, ranks=rank, tokens=3, normalizers=phi
        )
        proved = certified_dimension(architecture)
        assert proved.status is Status.CERTIFIED
        rules = " | ".join(str(float32_rule(architecture, rng, n)) for n in (10, 250))
        shown = ",".join(map(str, widths))
        print(f"| {shown} | {rank} | {phi or 'lightning'} | {proved.parameters} | "
              f"{proved.dimension} | {rules} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patterns", type=int, default=2100)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    parser.add_argument("--published", action="store_true", help="only the published settings")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    if options.published:
        published_settings(rng)
        return
    rows, tally = [], Counter[str]()
    start = time.process_time()
    for number, (widths, ranks) in enumerate(draw_patterns(options.patterns, rng), start=1):
        row: dict[str, Any] = {
            "widths": "-".join(map(str, widths)), "ranks": "-".join(map(str, ranks)),
        }  # fmt: skip
        for label, phi in (("softmax", "softmax"), ("lightning", None)):
            architecture = deep_attention_architecture(
                widths=widths, ranks=ranks, tokens=options.tokens, normalizers=phi
            )
            proved = certified_dimension(architecture)
            certified = proved.status is Status.CERTIFIED
            tally[f"{label}: {'certified' if certified else 'bounded'}"] += 1
            row[f"{label} lower"], row[f"{label} upper"] = proved.lower_bound, proved.upper_bound
            row[f"{label} route"] = proved.route
            rule = float32_rule(architecture, rng)
            row[f"{label} float32 rule"] = rule
            tally[f"{label}: float32 rule wrong"] += certified and rule != proved.dimension
        row["effective map"], row["closed form"] = (
            effective_map_rank(architecture), closed_form(widths, ranks),
        )  # fmt: skip
        agree = row["effective map"] == row["softmax lower"]
        tally["softmax dimension equals the rank of the effective map"] += agree
        tally["closed form above the softmax dimension"] += (
            row["closed form"] > row["softmax upper"]
        )
        tally["closed form below the softmax dimension"] += (
            row["closed form"] < row["softmax lower"]
        )
        difference = row["softmax lower"] - row["lightning lower"] - len(ranks)
        tally["lightning equals softmax minus depth"] += difference == 0
        rows.append(row)
        if number % 100 == 0:
            seconds = time.process_time() - start
            print(f"{number} patterns, {seconds:.0f} s CPU", file=sys.stderr, flush=True)
            report(rows, tally, options.out)
    report(rows, tally, options.out)
    print(f"{len(rows)} patterns, {time.process_time() - start:.0f} s CPU, seed {options.seed}")
    for claim, count in sorted(tally.items()):
        print(f"{count:6d}  {claim}")


def report(rows: list[dict[str, Any]], tally: Counter[str], out: str | None) -> None:
    """Keep what is known so far, in case the run is stopped."""
    if out is None:
        return
    with open(out, "w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with open(f"{out}.summary.txt", "w") as handle:
        handle.write(f"{len(rows)} patterns\n")
        handle.writelines(f"{count:6d}  {claim}\n" for claim, count in sorted(tally.items()))


if __name__ == "__main__":
    main()
