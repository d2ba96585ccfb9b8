"""One attention layer of SmolLM2 behind a black box: heads from queries, compared with the file.

The weights are those of SmolLM2-135M-Instruct (nine heads of rank 64, width 576, three key and
value heads; no biases), de-quantised to float64. The box answers f(X), with rotary positions off,
read out along one random direction of the layer's output. The method is told that there are at most
24 heads of rank at most 64, and nothing else. The reference is 2 r d H, and r (2 d - r) H, which is
the number of parameters of H matrices of rank r.

    python benchmarks/recover_attention_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf --layer 12
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

from fiberscope.checkpoints.attention_layer import read_attention_layer
from fiberscope.queries.layer_oracle import AttentionLayer, LayerOracle, readout_vector
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.session import Purpose, QuerySession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layer", type=int, default=12)
    parser.add_argument("--rank", type=int, help="default: the width of queries and keys")
    parser.add_argument("--heads-at-most", type=int, default=24)
    parser.add_argument("--readout", default="0", help="seed, or an .npy file")
    parser.add_argument("--arithmetic", choices=["float64", "float32"], default="float64")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    layer = AttentionLayer.from_arrays(read_attention_layer(options.path, options.layer))
    readout = readout_vector(options.readout, layer.outputs)
    oracle = LayerOracle(layer, readout, Arithmetic(options.arithmetic))
    rank, started, shown = options.rank or layer.rank, time.process_time(), [0]

    def say(queries: int, purpose: Purpose) -> None:
        if queries >= shown[0] + 50_000:
            shown[0] = queries
            spent = time.process_time() - started
            print(
                f"{spent:5.0f} s  {queries} queries, {purpose.value}", file=sys.stderr, flush=True
            )

    session = QuerySession(oracle, progress=say)
    request = Request(heads_at_most=options.heads_at_most, rank=rank)
    found = recover_attention(session, request, options.seed)
    spent = time.process_time() - started
    heads, width, count = found.heads, oracle.width, found.heads.count
    for purpose, entry in session.counts.items():
        print(f"{purpose.value}: {entry.queries} queries of at most {entry.longest} tokens")
    total, product = session.queries, 2 * rank * width * count
    print(f"in all {total}; 2 r d H = {product}, ratio {total / product:.3f}")
    parameters = rank * (2 * width - rank) * count
    print(f"r (2 d - r) H = {parameters}, ratio {total / parameters:.3f}")
    print(f"4 H d^2 - 2 H + 1 = {4 * count * width**2 - 2 * count + 1}")
    check = found.final_check
    print(
        f"{check.queries} fresh sequences up to {check.longest} tokens: "
        f"deviation {check.deviation:.1e}, allowed {check.threshold:.1e}"
    )
    print(f"notes: {'; '.join(found.estimate.notes) or 'none'}")
    truth, used = oracle.true_heads(), set()
    print("head of the file | bits W | bits v | stated W | stated v")
    for h in range(truth.count):
        errors = np.linalg.norm(heads.W - truth.W[h], axis=(1, 2)) / np.linalg.norm(truth.W[h])
        near = int(np.argmin(errors))
        used.add(near)
        v_error = np.linalg.norm(heads.v[near] - truth.v[h]) / np.linalg.norm(truth.v[h])
        stated = found.estimate.precision
        print(
            f"{h} | {-np.log2(errors[near]):.1f} | {-np.log2(v_error):.1f} | "
            f"{stated.W[near]:.1f} | {stated.v[near]:.1f}"
        )
    print(f"{len(used)} of {truth.count} heads met, {count} found")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{spent:.0f} CPU seconds, {memory:.2f} GiB at most")


if __name__ == "__main__":
    main()
