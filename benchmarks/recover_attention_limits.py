"""Limits of recovering many heads: bits, queries and seconds over heads, width, dtype and noise.

Random models: entries of W are N(0, 1/d), of v N(0, 1). Truth are the weights as rounded to the
oracle's dtype. Bits are those of the worst head, the smaller of W and v. The named limits are the
unit roundoff of the oracle (53, 24 bits) and the published count 4 H d^2 - 2 H + 1.

    python benchmarks/recover_attention_limits.py --seeds 20 --table float64 --markdown
    python benchmarks/recover_attention_limits.py --table balls
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.many_heads.balls import recover_heads_in_balls
from fiberscope.queries.many_heads.floats import recover_heads_in_floats
from fiberscope.queries.many_heads.refusal import RecoveryRefusedError
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.result import NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle

SHAPES = ((1, 4), (2, 4), (4, 4), (6, 4), (8, 8), (12, 8), (4, 16), (8, 16), (8, 32))
NOISES = (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3)


@dataclass
class Run:
    """One model: bits of the worst head, the stated bound, and the cost; bits None if refused."""

    bits: float | None
    stated: float | None
    queries: int
    retries: int
    seconds: float
    reason: str = ""


class NoisyOracle:
    """Adds Gaussian noise relative to the Frobenius norm of the sequence."""

    def __init__(self, oracle: HeadsOracle, sigma: float, rng: np.random.Generator) -> None:
        self.oracle, self.sigma, self.rng = oracle, sigma, rng
        self.width, self.arithmetic = oracle.width, oracle.arithmetic
        self.identity = f"{oracle.identity} with noise {sigma}"

    def answer(self, sequences: Any, bits: int = 128) -> NDArray[np.float64]:
        """Answers with noise, shape ``(n,)``."""
        answers = np.asarray(self.oracle.answer(sequences, bits))
        sizes = np.array([np.linalg.norm(each) for each in sequences])
        return answers + self.sigma * sizes * self.rng.standard_normal(len(answers))


def random_heads(heads: int, width: int, rng: np.random.Generator) -> AttentionHeads:
    weights = rng.normal(size=(heads, width, width)) / np.sqrt(width)
    return AttentionHeads(weights, rng.normal(size=(heads, width)))


def true_bits(found: AttentionHeads, truth: AttentionHeads) -> float:
    """Worst head against its nearest true one; minus infinity for a wrong set."""
    if found.count != truth.count:
        return -np.inf
    bits, used = [], set()
    for W, v in zip(found.W, found.v, strict=True):
        near = min(range(truth.count), key=lambda k: float(np.linalg.norm(W - truth.W[k])))
        used.add(near)
        error = max(
            np.linalg.norm(W - truth.W[near]) / np.linalg.norm(truth.W[near]),
            np.linalg.norm(v - truth.v[near]) / np.linalg.norm(truth.v[near]),
        )
        bits.append(-np.log2(max(float(error), 1e-300)))
    return float(min(bits)) if len(used) == truth.count else -np.inf


def one_run(heads: int, width: int, arithmetic: Arithmetic, noise: float, seed: int) -> Run:
    rng = np.random.default_rng([seed, heads, width])
    oracle = HeadsOracle(random_heads(heads, width, rng), arithmetic)
    asked: Any = NoisyOracle(oracle, noise, rng) if noise else oracle
    session = QuerySession(asked)
    level = NoiseLevel(max(4 * noise, arithmetic.unit))
    started = time.process_time()
    try:
        found = recover_heads_in_floats(session, rng=np.random.default_rng(seed), noise=level)
    except NotRecoveredError as refused:
        kind = refused.kind.name if isinstance(refused, RecoveryRefusedError) else "other"
        return Run(None, None, session.queries, 0, time.process_time() - started, kind)
    seconds = time.process_time() - started
    counts = session.counts
    return Run(
        true_bits(found.heads, oracle.heads),
        found.precision.bits,
        counts[Purpose.RECOVERY].queries,
        counts[Purpose.RETRIES].queries,
        seconds,
    )


def row(name: str, heads: int, width: int, runs: list[Run]) -> list[str]:
    done = [run for run in runs if run.bits is not None]
    published = 4 * heads * width**2 - 2 * heads + 1
    if not done:
        reasons = sorted({run.reason for run in runs})
        return [name, f"0/{len(runs)}", "-", "-", "-", "-", "-", ", ".join(reasons).lower()]
    bits = np.array([run.bits for run in done])
    slack = np.array([run.bits - run.stated for run in done if run.stated is not None])
    queries = np.array([run.queries for run in done])
    retries = np.array([run.retries for run in done])
    seconds = np.array([run.seconds for run in done])
    return [
        name,
        f"{len(done)}/{len(runs)}",
        f"{bits.min():.1f} / {np.median(bits):.1f}",
        f"{slack.min():.1f}",
        f"{np.median(queries):.0f}",
        f"{np.median(queries) / published:.2f}",
        f"{np.median(retries):.0f} / {retries.max():.0f}",
        f"{np.median(seconds):.1f} / {seconds.max():.1f}",
    ]


HEADER = [
    "model",
    "recovered",
    "bits worst / median",
    "least true minus stated",
    "queries",
    "of published",
    "retries median / max",
    "CPU seconds median / max",
]


def show(header: list[str], rows: list[list[str]], markdown: bool) -> None:
    if markdown:
        print("| " + " | ".join(header) + " |")
        print("|" + "---|" * len(header))
        for each in rows:
            print("| " + " | ".join(each) + " |")
        return
    for each in [header, *rows]:
        print("  ".join(cell.ljust(20) for cell in each))


def balls_table(seed: int) -> tuple[list[str], list[list[str]]]:
    """The whole grid H <= 6, d <= 8: counts, lengths and certified bits of both algorithms."""
    rows = []
    for heads in range(1, 7):
        for width in (1, 2, 3, 4, 6, 8):
            cells = [f"H={heads}, d={width}"]
            for shorter in (False, True):
                rng = np.random.default_rng([seed, heads, width])
                truth = random_heads(heads, width, rng)
                session = QuerySession(HeadsOracle(truth, Arithmetic.BALLS))
                started = time.process_time()
                found = recover_heads_in_balls(session, heads=heads, shorter=shorter, rng=rng)
                seconds = time.process_time() - started
                count = session.counts[Purpose.RECOVERY]
                expected = (
                    2 * heads * (width**2 + width - 1) + 1
                    if shorter
                    else 4 * heads * width**2 - 2 * heads + 1
                )
                if count.queries != expected or count.longest != 2 * heads + 1:
                    raise SystemExit(f"{cells}: {count}, formula {expected}, {2 * heads + 1}")
                # The midpoints only: containment is tested with exact comparisons in the tests.
                if true_bits(found.heads.middle(), truth) < 40:
                    raise SystemExit(f"{cells}: wrong heads")
                cells += [str(count.queries), f"{found.precision.bits:.0f}", f"{seconds:.2f}"]
            rows.append(cells)
            print(cells, file=sys.stderr)
    header = ["model", "queries", "bits", "seconds", "shorter: queries", "bits", "seconds"]
    return header, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = ("float64", "float32", "bfloat16", "noise", "balls")
    parser.add_argument("--table", choices=tables, default="float64")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--shapes", nargs="*", help="for example 4x16 8x32")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.table == "balls":
        show(*balls_table(0), options.markdown)
        return
    chosen = [tuple(map(int, text.split("x"))) for text in options.shapes or []]
    rows = []
    if options.table == "noise":
        for noise in NOISES:
            for heads, width in chosen or ((1, 8), (4, 16)):
                runs = [
                    one_run(heads, width, Arithmetic.FLOAT64, noise, seed)
                    for seed in range(options.seeds)
                ]
                rows.append(row(f"{noise:g}, H={heads}, d={width}", heads, width, runs))
                print(rows[-1], file=sys.stderr)
    else:
        arithmetic = Arithmetic(options.table)
        for heads, width in chosen or SHAPES:
            runs = [one_run(heads, width, arithmetic, 0.0, seed) for seed in range(options.seeds)]
            rows.append(row(f"H={heads}, d={width}", heads, width, runs))
            print(rows[-1], file=sys.stderr)
    show(HEADER, rows, options.markdown)


if __name__ == "__main__":
    main()
