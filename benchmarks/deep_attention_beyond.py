"""Contact orders and local fiber dimensions that no published theorem covers, computed exactly.

Orders are Smith factors modulo a prime of the native Jacobian along ``Q = t U, K = t W`` with
random ``U, W`` and inputs; a table row is certified resolved when the columns left over equal the
exact kernel. Local dimensions are proved bounds at given points. Usage:

    python benchmarks/deep_attention_beyond.py
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from fiberscope.families.deep_attention import deep_attention_architecture
from fiberscope.families.deep_attention.banks import exact_orders
from fiberscope.families.deep_attention.effective import EffectiveParameters, exact
from fiberscope.families.deep_attention.exact_orders import random_residue_path
from fiberscope.families.deep_attention.fiber import classify_fiber
from fiberscope.families.deep_attention.normalizers import normalizer

WIRINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "residual": {"residual": True},
    "causal": {"causal": True},
    "2 heads": {"heads": 2},
    "3 heads": {"heads": 3},
    "layer norm": {"layer_norm": True},
    "residual, causal": {"residual": True, "causal": True},
    "residual, layer norm": {"residual": True, "layer_norm": True},
    "residual, 2 heads": {"residual": True, "heads": 2},
    "causal, 2 heads": {"causal": True, "heads": 2},
}


def orders_table() -> None:
    print(
        "| wiring | depth | width | rank | values | order: multiplicity | exact zeros | resolved |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (name, wiring), depth, rank in itertools.product(WIRINGS.items(), (1, 2, 3), (1, 2)):
        if rank == 2 and depth == 3 and "heads" in wiring:
            continue
        width, tokens = 3, 3
        architecture = deep_attention_architecture(
            widths=[width] * (depth + 1), ranks=rank, tokens=tokens, **wiring
        )
        for values in ("identity", "generic"):
            size = 4 + -(-architecture.space.size // width)
            path = random_residue_path(architecture, size, np.random.default_rng(0), values)
            found = exact_orders(path)
            shown = " ".join(f"{order}:{count}" for order, count in found.multiplicities.items())
            head = f"| {name} | {depth} | {width} | {rank} | {values} | {shown} "
            resolved = "yes" if found.resolved else "no"
            print(f"{head}| {found.kernel_dimension} | {resolved} |", flush=True)


def scores(kind: str, width: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "skew":
        drawn = rng.integers(-3, 4, (width, width))
        drawn[0, 1] = 2
        upper = np.triu(drawn, 1)
        return upper - upper.T
    if kind == "rank one":
        return np.outer(rng.integers(1, 4, width), rng.integers(1, 4, width))
    if kind == "zero":
        return np.zeros((width, width), dtype=int)
    return rng.integers(-3, 4, (width, width)) + 4 * np.eye(width, dtype=int)


def mixed_points_table() -> None:
    print()
    print("| n | d | M_1 | M_2 | theorem | free entries of the fiber, proved bounds | degree |")
    print("|---|---|---|---|---|---|---|")
    kinds = ("plain", "rank one", "skew")
    for tokens, width in ((3, 2), (4, 2), (3, 3), (4, 3)):
        for first, second in itertools.product(kinds, kinds):
            rng = np.random.default_rng(1)
            three = [scores(kind, width, rng) for kind in (first, second, "plain")]
            point = EffectiveParameters(
                exact(np.eye(width, dtype=int)), tuple(exact(score) for score in three)
            )
            found = classify_fiber(point, [normalizer("softmax")] * 3, tokens, evidence=True)
            e = found.evidence
            assert e is not None
            print(f"| {tokens} | {width} | {first} | {second} | {found.outcome} | "
                  f"{e.dimension_lower_bound} to {e.dimension_upper_bound} of {e.parameters} | "
                  f"{e.order} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    start = time.process_time()
    orders_table()
    mixed_points_table()
    print(f"\n{time.process_time() - start:.0f} s CPU")
