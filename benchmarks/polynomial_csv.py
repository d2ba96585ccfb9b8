"""The published sample of 1,500 dimensions: all reproduced, how many proved, how fast.

Limits: no mismatch, at least 95 % proved, every rank saturated, 60 s of processor time on one
thread; and one architecture with 110 parameters in a second, start-up included.

Run: OMP_NUM_THREADS=1 python benchmarks/polynomial_csv.py [CSV] [--every N] [--json FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.dimension import DimensionStatus, dimension

SAMPLE = Path(__file__).parents[1] / "tests/families/polynomial/data/neurovariety_r2_sample.csv"
LIMIT = 60.0


ONE = ["dimension", "polynomial", "--widths", "2,3,4,5,4,6,4,1", "--degree", "2", "--json"]
"""One architecture with 110 parameters; limit one second, start-up included."""


def one_architecture(runs: int = 5) -> tuple[float, float]:
    """Best wall and processor seconds of a fresh process."""
    wall, used = [], []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fiberscope", *ONE], check=True, stdout=subprocess.DEVNULL
        )
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(wall), min(used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--every", type=int, default=1, help="take every N-th row")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with given.csv.open() as stream:
        rows = list(csv.DictReader(stream))[:: given.every]
    mismatches, proved, saturated, odds = [], 0, 0, 0.0
    times = []
    for number, row in enumerate(rows):
        start = time.process_time()
        architecture = Architecture.build(
            [int(d) for d in row["widths"].split()], int(row["degree"])
        )
        found = dimension(architecture, (0, number))
        times.append(time.process_time() - start)
        if found.dimension != int(row["dimension"]):
            mismatches.append(row["widths"])
        proved += found.status is DimensionStatus.PROVED
        saturated += all(trial.saturated for trial in found.trials)
        odds += found.error_probability
    used = time.process_time()
    times.sort()
    wall, processor = one_architecture()
    result = {
        "rows": len(rows),
        "mismatches": mismatches,
        "proved": proved,
        "proved_share": proved / len(rows),
        "saturated": saturated,
        "sum_of_error_probabilities": odds,
        "processor_seconds_with_start": used,
        "limit_seconds": LIMIT,
        "share_of_limit": used / LIMIT,
        "median_milliseconds": 1e3 * times[len(times) // 2],
        "slowest_milliseconds": 1e3 * times[-1],
        "one_architecture_wall_seconds": wall,
        "one_architecture_processor_seconds": processor,
    }
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    good = not mismatches and saturated == len(rows) and proved >= 0.95 * len(rows)
    sys.exit(0 if good and used * len(rows) / 1500 <= LIMIT else 1)


if __name__ == "__main__":
    main()
