"""`inspect` on a GPT-2-small-shaped file against the unavoidable part done directly in numpy.

The reference loads the file with the safetensors library and computes thin QR factorisations of
the head factors and the r x r SVDs of their products: what any tool must do to know the spectra.
Run as ``python benchmarks/inspect_gpt2_small.py [--repeats N] [--json FILE]``; prints both minima
and their ratio, measured alternately in one process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from fiberscope.checkpoints.inspection import inspect

LIMIT = 3.0
LAYERS, WIDTH, HEADS, NEURONS, VOCABULARY, POSITIONS = 12, 768, 12, 3072, 50257, 1024


def write_checkpoint(directory: Path) -> Path:
    """A random checkpoint with GPT-2 small's shapes in float32."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return 0.02 * rng.standard_normal(shape, dtype=np.float32)

    tensors = {
        "transformer.wte.weight": normal(VOCABULARY, WIDTH),
        "transformer.wpe.weight": normal(POSITIONS, WIDTH),
    }
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}"
        for norm in ("ln_1", "ln_2"):
            tensors[f"{at}.{norm}.weight"] = 1 + normal(WIDTH)
            tensors[f"{at}.{norm}.bias"] = normal(WIDTH)
        for name, rows, columns in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, NEURONS),
            ("mlp.c_proj", NEURONS, WIDTH),
        ):
            tensors[f"{at}.{name}.weight"] = normal(rows, columns)
            tensors[f"{at}.{name}.bias"] = normal(columns)
    tensors["transformer.ln_f.weight"] = 1 + normal(WIDTH)
    tensors["transformer.ln_f.bias"] = normal(WIDTH)
    save_file(tensors, directory / "model.safetensors")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def reference(directory: Path) -> float:
    """Load everything; spectra of all head products from thin QR and r x r SVD, in float64."""
    tensors = load_file(directory / "model.safetensors")
    smallest = np.inf
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}.attn"
        fused = tensors[f"{at}.c_attn.weight"].astype(np.float64)
        heads = fused.reshape(WIDTH, 3, HEADS, -1).transpose(1, 2, 0, 3)
        out = tensors[f"{at}.c_proj.weight"].astype(np.float64)
        written = out.reshape(HEADS, -1, WIDTH).transpose(0, 2, 1)
        for left, right in ((heads[0], heads[1]), (heads[2], written)):
            first = np.linalg.qr(left, mode="reduced")[1]
            second = np.linalg.qr(right, mode="reduced")[1]
            values = np.linalg.svd(first @ second.swapaxes(1, 2), compute_uv=False)
            smallest = min(smallest, float(values.min()))
    return smallest


def timed(call: object, *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_checkpoint(Path(folder))
        ours, theirs = [], []
        for _ in range(options.repeats):
            theirs.append(timed(reference, directory))
            ours.append(timed(inspect, directory))
    result = {
        "inspect_seconds": min(ours),
        "reference_seconds": min(theirs),
        "ratio": min(ours) / min(theirs),
        "limit": LIMIT,
        "repeats": options.repeats,
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
