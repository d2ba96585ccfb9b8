"""Complete lists of minimal filling architectures (2, ..., 1) with squares.

Limits: seven layers, widths up to 7, in under 2 minutes; eight layers in under 30 minutes.
Run: python benchmarks/polynomial_filling.py --layers 7 [--largest 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from fiberscope.families.polynomial.filling import minimal_filling

LIMITS = {7: 120.0, 8: 1800.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2)
    parser.add_argument("--outputs", type=int, default=1)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--largest", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    start, processor = time.perf_counter(), time.process_time()
    found = minimal_filling(
        given.inputs,
        given.outputs,
        given.layers,
        given.degree,
        given.largest,
        given.seed,
        progress=lambda unknown: print(f"{unknown} undecided", file=sys.stderr),
    )
    seconds, used = time.perf_counter() - start, time.process_time() - processor
    limit = LIMITS.get(given.layers)
    for widths, prime in zip(found.minimal, found.certificates, strict=True):
        note = "" if widths not in found.non_unimodal else "  not unimodal"
        print(",".join(map(str, widths)), f"rank {found.ambient} modulo {prime}{note}")
    print(
        f"{len(found.minimal)} minimal, {len(found.non_unimodal)} not unimodal; "
        f"{found.examined} architectures, {found.ranks} ranks, {seconds:.1f} s wall, "
        f"{used:.1f} s processor; incomplete with probability at most "
        f"{found.error_probability:.1e}"
        + (f"; {seconds / limit:.2f} of the limit" if limit else "")
    )
    if given.json:
        result = {
            "inputs": given.inputs,
            "outputs": given.outputs,
            "layers": given.layers,
            "degree": given.degree,
            "largest_width": given.largest,
            "minimal": found.minimal,
            "certificates": found.certificates,
            "non_unimodal": found.non_unimodal,
            "ambient": found.ambient,
            "examined": found.examined,
            "ranks": found.ranks,
            "error_probability": found.error_probability,
            "wall_seconds": seconds,
            "processor_seconds": used,
            "limit_seconds": limit,
        }
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
