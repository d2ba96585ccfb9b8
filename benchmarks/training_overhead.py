"""What monitoring costs in training time: the example recipe with and without a monitor.

    python benchmarks/training_overhead.py [--models gpt2 llama-a] [--rounds N] [--json FILE]

Two equal models are trained on the recipe of ``scripts/train_examples.py`` (batch 32, sequence
length 128, AdamW in float32, one thread), one with a monitor and one without, step by step in turn.
Every step of the monitored model is measured, with the joint projection to a share error of 1e-6,
and the overhead is that of measuring one step in fifty:

    (median cost of a measured step - median cost of a plain step) / (50 * median plain step).

Both processor time and elapsed time are given; the limit is 3 %. Further batches show how the
overhead depends on the step that it is a ratio to: the projection does not depend on the batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from fiberscope.training import SymmetryMonitor
from train_examples import (
    CONTEXT,
    EXAMPLES,
    Recipe,
    build_model,
    deterministic_torch,
    documentation_corpus,
    token_ids,
)

LIMIT = 0.03
EVERY = 50
BATCHES = (16, 32)


class Run:
    """One model with the recipe's optimizer."""

    def __init__(self, name: str, batch: int, *, monitored: bool) -> None:
        import torch

        recipe = Recipe(steps=1000, batch_windows=batch)
        torch.manual_seed(EXAMPLES[name].seed)
        self.model = build_model(EXAMPLES[name], recipe)
        self.model.train()
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
        )
        self.clip, self.batch = recipe.gradient_clip, batch
        self.monitor = SymmetryMonitor(self.model, self.optimizer, every=1) if monitored else None

    def step(self, text: Any, rng: np.random.Generator) -> tuple[float, float]:
        """Take one step; processor and elapsed seconds."""
        import torch
        from torch.nn.functional import cross_entropy

        cpu, wall = time.process_time(), time.perf_counter()
        starts = torch.from_numpy(rng.integers(0, len(text) - CONTEXT, size=self.batch))
        windows = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        logits = self.model(input_ids=windows[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        loss.item()
        return time.process_time() - cpu, time.perf_counter() - wall


def overhead(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Train both models side by side."""
    import torch

    text = torch.from_numpy(token_ids(documentation_corpus().training))
    plain, watched = (Run(name, batch, monitored=m) for m in (False, True))
    streams = [np.random.default_rng(0) for _ in range(2)]
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "measured": []}
    for number in range(rounds + 2):
        pair = [("plain", plain, streams[0]), ("measured", watched, streams[1])]
        for label, run, rng in pair if number % 2 else pair[::-1]:
            spent = run.step(text, rng)
            if number >= 2:  # the first rounds warm up
                times[label].append(spent)
    assert watched.monitor is not None
    cpu, wall = (
        {label: np.array([entry[clock] for entry in entries]) for label, entries in times.items()}
        for clock in (0, 1)
    )

    def ratio(seconds: dict[str, Any]) -> float:
        median = {label: float(np.median(values)) for label, values in seconds.items()}
        return (median["measured"] - median["plain"]) / (EVERY * median["plain"])

    last = watched.monitor.measurements[-1]
    return {
        "model": name,
        "batch": batch,
        "length": CONTEXT,
        "parameters": watched.monitor.start.parameters,
        "invisible": watched.monitor.start.invisible,
        "rounds": rounds,
        "step_seconds": float(np.median(cpu["plain"])),
        "measurement_seconds": float(np.median(cpu["measured"]) - np.median(cpu["plain"])),
        "iterations": last.iterations,
        "overhead_processor": ratio(cpu),
        "overhead_elapsed": ratio(wall),
        "limit": LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama-a"], choices=EXAMPLES)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    with deterministic_torch(0):
        for name in options.models:
            for batch in options.batches:
                found = overhead(name, batch, options.rounds)
                results.append(found)
                print(
                    f"{name}, batch {batch} x {CONTEXT}: step {found['step_seconds']:.3f} s, "
                    f"measurement {found['measurement_seconds']:.3f} s "
                    f"({found['iterations']} iterations), overhead at every={EVERY}: "
                    f"{found['overhead_processor']:.2%} of processor time, "
                    f"{found['overhead_elapsed']:.2%} elapsed (limit {LIMIT:.0%})",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    recipe = [found for found in results if found["batch"] == Recipe(1).batch_windows]
    return int(any(found["overhead_processor"] > LIMIT for found in recipe))


if __name__ == "__main__":
    sys.exit(main())
