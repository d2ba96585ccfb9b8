"""How the time for one enclosed spectrum grows with depth, width and bank size.

Times are CPU seconds for all singular values at t = 0.1 to 20 proved digits. Usage:

    python benchmarks/deep_attention_scaling.py [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from fiberscope.analysis.spectrum import spectrum_along
from fiberscope.families.deep_attention import DeepAttention, deep_attention_architecture
from fiberscope.families.deep_attention.banks import theorem_orders
from fiberscope.families.deep_attention.paths import random_bank, random_path

GRID = {
    "depth": [(depth, 4, 2, 48) for depth in (1, 2, 3, 4)],
    "width": [(3, width, width // 2, 48) for width in (2, 4, 6, 8)],
    "inputs": [(3, 4, 2, inputs) for inputs in (24, 48, 96, 192)],
}
"""What varies -> (depth, width, rank, inputs); four tokens."""


def one(depth: int, width: int, rank: int, inputs: int) -> tuple[int, int, float, int]:
    architecture = deep_attention_architecture(widths=[width] * (depth + 1), ranks=rank, tokens=4)
    path = random_path(architecture, np.random.default_rng(0))
    bank = random_bank(architecture, inputs, np.random.default_rng(1))
    t = Fraction(1, 10)
    start = time.process_time()
    found = spectrum_along(
        DeepAttention(architecture), {t: path.at(t)}, bank, orders=theorem_orders(architecture)
    )
    seconds = time.process_time() - start
    spectrum = found.spectra[t]
    return architecture.space.size, len(spectrum.values), seconds, spectrum.bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    print("| varies | depth | width | rank | inputs | parameters | values | bits | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    times: dict[str, list[tuple[int, float]]] = {}
    for name, cases in GRID.items():
        for case in cases:
            parameters, values, seconds, bits = one(*case)
            shown = " | ".join(map(str, case))
            print(f"| {name} | {shown} | {parameters} | {values} | {bits} | {seconds:.2f} |",
                  flush=True)  # fmt: skip
            varied = case[{"depth": 0, "width": 1, "inputs": 3}[name]]
            times.setdefault(name, []).append((varied, seconds))
    if options.plot:
        plot(times, options.plot)


def plot(times: dict[str, list[tuple[int, float]]], target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(1, 3, sharey=True), times.items(), strict=True):
        axes.loglog(*zip(*points, strict=True), "o-")
        axes.set_xlabel(name)
        axes.set_xticks([x for x, _ in points], [str(x) for x, _ in points])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("CPU seconds")
    figure.savefig(target)


if __name__ == "__main__":
    main()
