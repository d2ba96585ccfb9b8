"""Designed input banks for the matrix case, at Frobenius norm 2.4 per input, against random ones.

For known parameters the certified smallest singular value at t = 0.06 is printed. For unknown
parameters a bank is designed on twelve random parameter draws and judged on forty others. Usage:

    python benchmarks/deep_attention_banks.py [--sizes 16,24,48] [--steps 800]
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction

import numpy as np

from fiberscope.analysis.spectrum import enclosed_spectrum
from fiberscope.families.deep_attention import DeepAttention
from fiberscope.families.deep_attention.bank_design import designed_bank, last_band_constant
from fiberscope.families.deep_attention.banks import smallest_bank
from fiberscope.families.deep_attention.family import InputBank
from fiberscope.families.deep_attention.paths import matrix_case, random_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="16,24,48")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    path, published = matrix_case()
    family, point = DeepAttention(path.architecture), path.at(Fraction("0.06"))
    print(f"smallest separating generic bank: {smallest_bank(path.architecture).size} inputs")
    norms = np.sqrt((published.inputs**2).sum(axis=(1, 2)))
    rms = np.sqrt((norms**2).mean())
    print(f"published 48 inputs: norms {rms:.2f} (rms) to {norms.max():.2f}, "
          f"constant {last_band_constant(path, published):.3e}")  # fmt: skip
    print("| inputs | random constants: worst / median / best of 200 | designed | gain | "
          "sigma_52(0.06), certified | s |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    known = {}
    for size in map(int, options.sizes.split(",")):
        start = time.process_time()
        rng = np.random.default_rng([options.seed, size])
        found = designed_bank([path], size, rng, steps=options.steps, random_banks=200)
        seconds = time.process_time() - start
        known[size] = found.bank
        spectrum = enclosed_spectrum(family, point, found.bank, digits=20, start_bits=292)
        random = found.random_constants
        shown = f"{random[0]:.2e} / {np.median(random):.2e} / {random[-1]:.2e}"
        smallest = spectrum.decimals(4)[-1]
        print(f"| {size} | {shown} | {found.constant:.2e} | {found.gain:.2e} | {smallest} | "
              f"{seconds:.1f} |", flush=True)  # fmt: skip
    print()
    print("| inputs | median gain over random banks on 40 unseen draws: bank for one known path | "
          "bank designed on 12 other draws | s |")  # fmt: skip
    print("|---|---|---|---|")
    rng = np.random.default_rng([options.seed, 1])
    training = [random_path(path.architecture, rng) for _ in range(12)]
    unseen = [random_path(path.architecture, rng) for _ in range(40)]
    for size, bank in known.items():
        start = time.process_time()
        steps = max(60, 3 * options.steps // 8)
        found = designed_bank(training, size, rng, steps=steps, starts=1, random_banks=5)
        seconds = time.process_time() - start
        gains = [median_gain(b, unseen, size, rng) for b in (bank, found.bank)]
        print(f"| {size} | {gains[0]:.1f} | {gains[1]:.1f} | {seconds:.1f} |", flush=True)


def median_gain(bank: InputBank, paths: list, size: int, rng: np.random.Generator) -> float:
    ratios = []
    for path in paths:
        drawn = rng.standard_normal(bank.inputs.shape)
        drawn *= 2.4 / np.sqrt((drawn**2).sum(axis=(1, 2), keepdims=True))
        random = last_band_constant(path, InputBank.of(drawn))
        ratios.append(last_band_constant(path, bank) / random)
    return float(np.median(ratios))


if __name__ == "__main__":
    main()
