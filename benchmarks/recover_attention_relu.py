"""Attention with a bias-free ReLU network on top: kinks, agreement and cost over shapes.

The named limit is the number of unknown numbers, H d^2 of the scores and m H d of the kinks.

    python benchmarks/recover_attention_relu.py --seeds 5 --markdown
    python benchmarks/recover_attention_relu.py --seeds 40 --markdown --single
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.relu_network import recover_attention_with_relu
from fiberscope.queries.result import NotRecoveredError
from fiberscope.queries.session import Purpose, QuerySession

SHAPES = ((1, 8, 6), (1, 8, 32), (2, 8, 32), (3, 8, 12), (4, 16, 24), (4, 16, 64))
SINGLE_SHAPES = ((1, 8, 6), (1, 8, 8), (2, 8, 8), (1, 8, 12), (1, 16, 16), (2, 16, 12))


class ReluOracle:
    """Random heads, values, inner and outer weights; float64 or float32."""

    def __init__(
        self,
        heads: int,
        width: int,
        neurons: int,
        rng: np.random.Generator,
        arithmetic: Arithmetic = Arithmetic.FLOAT64,
    ) -> None:
        W = rng.normal(size=(heads, width, width)) / np.sqrt(width)
        V = rng.normal(size=(heads, width, width)) / np.sqrt(width)
        U, w = rng.normal(size=(neurons, width)), rng.normal(size=neurons)
        kind = np.float32 if arithmetic is Arithmetic.FLOAT32 else np.float64
        self.W, self.V, self.U, self.w = (each.astype(kind) for each in (W, V, U, w))
        self.width, self.arithmetic = width, arithmetic
        self.identity = f"relu {heads} {width} {neurons}"

    def answer(self, sequences: Any, bits: int = 128) -> NDArray[np.float64]:
        """Answers, shape ``(n,)``."""
        if not isinstance(sequences, np.ndarray):
            return np.concatenate([self.answer(np.asarray(each)[None]) for each in sequences])
        sequences = sequences.astype(self.w.dtype)
        total = np.zeros((len(sequences), self.width), self.w.dtype)
        for W, V in zip(self.W, self.V, strict=True):
            scores = (sequences @ (sequences[:, -1] @ W.T)[:, :, None])[:, :, 0]
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            total += np.einsum("ni,nid->nd", weights, sequences) @ V.T
        return np.asarray(np.maximum(total @ self.U.T, 0) @ self.w, dtype=np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--single", action="store_true", help="float32, and smaller networks")
    options = parser.parse_args()
    header = ["H, d, neurons", "recovered", "all kinks", "agreement bits, worst / median"]
    header += ["queries, median", "unknowns", "CPU seconds, median"]
    if options.markdown:
        print("| " + " | ".join(header) + " |")
        print("|" + "---|" * len(header))
    arithmetic = Arithmetic.FLOAT32 if options.single else Arithmetic.FLOAT64
    for heads, width, neurons in SINGLE_SHAPES if options.single else SHAPES:
        bits, queries, seconds, complete = [], [], [], 0
        for seed in range(options.seeds):
            rng = np.random.default_rng([seed, neurons])
            oracle = ReluOracle(heads, width, neurons, rng, arithmetic)
            session = QuerySession(oracle)
            started = time.process_time()
            try:
                found = recover_attention_with_relu(session, rng=np.random.default_rng(seed))
            except NotRecoveredError as refused:
                print(heads, width, neurons, seed, refused, file=sys.stderr)
                continue
            seconds.append(time.process_time() - started)
            bits.append(found.agreement_bits)
            queries.append(session.queries - session.counts[Purpose.FINAL_CHECK].queries)
            complete += len(found.kinks) == neurons
        cells = [f"{heads}, {width}, {neurons}", f"{len(bits)}/{options.seeds}", str(complete)]
        if bits:
            cells += [f"{min(bits):.0f} / {np.median(bits):.0f}", f"{np.median(queries):.0f}"]
            cells += [str(heads * width**2 + neurons * heads * width)]
            cells += [f"{np.median(seconds):.1f}"]
        print("| " + " | ".join(cells) + " |" if options.markdown else "  ".join(cells))


if __name__ == "__main__":
    main()
