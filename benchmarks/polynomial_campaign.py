"""Checks that the theorem checkers never contradict the ranks.

At least 50,000 random architectures (two to four layers, widths 1 to 6, mixed degrees 2 to 5, one
to six outputs, a fifth of them with biases), plus every single-output block of small size.
Limits: no contradiction; at least 90 % of the monomial networks without biases decided; and three
negative controls that must be caught: the withdrawn theorem (unique blocks make a unique network),
ranks from too few points, and a wrong list of exceptions to Alexander-Hirschowitz.

Run: python benchmarks/polynomial_campaign.py [--count 50000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.bounds import upper_bound
from fiberscope.families.polynomial.jacobian_rank import rank_modulo, undersampled_rank
from fiberscope.families.polynomial.theorems import THEOREMS, Notion
from fiberscope.families.polynomial.two_layers import block_finite

WRONG_EXCEPTIONS = frozenset({(3, 4, 5), (4, 4, 9), (5, 3, 8)})
MOST_AMBIENT = 10**12


def draw(rng: np.random.Generator, bias: bool) -> Architecture:
    while True:
        layers = int(rng.integers(2, 5))
        widths = tuple(int(d) for d in rng.integers(1, 7, layers + 1))
        degrees = tuple(int(r) for r in rng.integers(2, 6, layers - 1))
        architecture = Architecture.build(widths, degrees, bias=bias)
        if architecture.ambient < MOST_AMBIENT:
            return architecture


def withdrawn(architecture: Architecture) -> bool:
    """Hypotheses of the withdrawn theorem: every block unique in its own widths."""
    widths = architecture.widths
    return all(
        block_finite(*widths[i : i + 3], architecture.degrees[i]).answer
        for i in range(architecture.layers - 1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    counts: Counter[str] = Counter()
    by_theorem: Counter[str] = Counter()
    contradictions: list[str] = []
    start, processor = time.perf_counter(), time.process_time()
    for number in range(given.count):
        bias = number % 5 == 4
        kind = "biased" if bias else "monomial"
        architecture = draw(rng, bias)
        counts[kind] += 1
        bound = upper_bound(architecture).value
        trial = rank_modulo(architecture, bound, rng)
        if trial.rank < bound:
            again = rank_modulo(architecture, bound, rng)
            trial = max(trial, again, key=lambda t: t.rank)
        counts["tight"] += trial.rank == bound
        finite = trial.rank == architecture.effective
        decided = False
        for theorem in THEOREMS:
            wanted = theorem.conclusions.get(Notion.FINITE)
            if wanted is None or not theorem.check(architecture).applies:
                continue
            decided = True
            by_theorem[f"{theorem.name} ({theorem.source}): {'yes' if wanted else 'no'}"] += 1
            if wanted is not finite:
                contradictions.append(f"{architecture}: {theorem.name}, rank {trial.rank}")
        counts[f"{kind} decided"] += decided
        if not bias and architecture.layers >= 3:
            counts["withdrawn applies"] += withdrawn(architecture)
            counts["withdrawn contradicted"] += withdrawn(architecture) and not finite
        # Control: the rank from just enough values if the outputs were balanced.
        points = ceil(bound / architecture.widths[-1]) + 2
        few = undersampled_rank(architecture, points, trial.prime, rng)
        counts["undersampled wrong"] += few < trial.rank
        if (number + 1) % 1000 == 0:
            print(f"{number + 1}, {len(contradictions)} contradictions", file=sys.stderr)
    blocks = 0
    for inputs in range(2, 6):
        for degree in range(2, 5):
            for hidden in range(1, 17):
                architecture = Architecture.build((inputs, hidden, 1), degree)
                rank = undersampled_rank(architecture, architecture.ambient + 1, 2_147_483_647, rng)
                finite = rank == architecture.effective
                blocks += 1
                if block_finite(inputs, hidden, 1, degree).answer is not finite:
                    contradictions.append(f"block {architecture}, rank {rank}")
                wrong = block_finite(inputs, hidden, 1, degree, WRONG_EXCEPTIONS).answer
                counts["wrong exceptions contradicted"] += wrong is not finite
    controls = ("withdrawn contradicted", "undersampled wrong", "wrong exceptions contradicted")
    result: dict[str, Any] = {
        "architectures": given.count,
        "blocks": blocks,
        "contradictions": contradictions,
        "decided_monomial": counts["monomial decided"] / max(counts["monomial"], 1),
        "decided_biased": counts["biased decided"] / max(counts["biased"], 1),
        "tight_bounds": counts["tight"] / given.count,
        "controls_caught": {name: counts[name] for name in controls},
        "withdrawn_applies": counts["withdrawn applies"],
        "by_theorem": dict(by_theorem.most_common()),
        "wall_seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
        "seed": given.seed,
    }
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    caught = all(result["controls_caught"].values())
    sys.exit(0 if not contradictions and result["decided_monomial"] >= 0.9 and caught else 1)


if __name__ == "__main__":
    main()
