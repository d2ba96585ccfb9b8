"""One head behind relative noise: how often it comes back, and whether a second head can hide.

Every answer of the box is multiplied by ``1 + s N(0, 1)``. Models have one head, or a second one
whose values are a factor times as large; both are asked for with ``--heads 1``. An answer about two
heads is ``silent`` if the second is larger than what the result states to be visible: that must not
happen beyond the five in a hundred for which the statement does not hold.

    python benchmarks/recover_attention_noise.py --models 20
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fiberscope.queries import FunctionOracle, QuerySession, Request, recover_attention
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError


class Noisy:
    """Two heads of entries N(0, 1/d) and N(0, 1), the second's values times a factor."""

    def __init__(self, width: int, seed: int, factor: float, noise: float) -> None:
        rng = np.random.default_rng(seed)
        self.W = rng.standard_normal((2, width, width)) / np.sqrt(width)
        self.v = rng.standard_normal((2, width))
        # As large as the first times the factor, so that the statement can be checked.
        self.v[1] *= factor * np.linalg.norm(self.v[0]) / np.linalg.norm(self.v[1])
        self.noise, self.rng = noise, np.random.default_rng(seed + 10_000)

    def __call__(self, X: np.ndarray) -> float:
        """Answer one sequence."""
        total = 0.0
        for W, v in zip(self.W, self.v, strict=True):
            scores = X @ W @ X[-1]
            weights = np.exp(scores - scores.max())
            total += float(weights @ X @ v / weights.sum())
        return total * (1 + self.noise * self.rng.standard_normal())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.003, 0.01, 0.03])
    parser.add_argument("--factors", type=float, nargs="+", default=[0, 1, 0.3, 0.1, 0.03])
    chosen = parser.parse_args()
    print("| noise | second head | given | silent | bits, worst / median | below the truth by |")
    print("| stated visible, median / largest | queries, median / largest | CPU seconds |")
    for noise in chosen.noise:
        for factor in chosen.factors:
            bits, slack, visible, queries, silent = [], [], [], [], 0
            start = time.process_time()
            for seed in range(chosen.first_seed, chosen.first_seed + chosen.models):
                box = Noisy(chosen.width, seed, factor, noise)
                session = QuerySession(FunctionOracle(box, chosen.width))
                try:
                    found = recover_attention(session, Request(heads=1), seed)
                except (NotRecoveredError, NotOfThisFormError):
                    queries.append(session.asked)
                    continue
                queries.append(session.asked)
                stated = found.estimate.further_head
                visible.append(np.inf if stated is None else stated)
                silent += factor > visible[-1]
                error = np.linalg.norm(found.heads.W[0] - box.W[0]) / np.linalg.norm(box.W[0])
                bits.append(-np.log2(error))
                slack.append(bits[-1] - found.estimate.precision.W[0])
            row = [f"{noise:.1%}", f"{factor:g}" if factor else "none"]
            row += [f"{len(bits)}/{chosen.models}", str(silent) if factor else "-"]
            if bits:
                row += [f"{min(bits):.1f} / {np.median(bits):.1f}", f"{min(slack):.1f}"]
                row += [f"{np.median(visible):.2g} / {max(visible):.2g}"]
            else:
                row += ["-"] * 3
            row += [f"{np.median(queries):.0f} / {max(queries)}"]
            row += [f"{(time.process_time() - start) / chosen.models:.1f}"]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
