"""`canonicalize` and `compare` on a GPT-2-small-shaped file, against loading and saving it.

Three ratios, all parts measured in turn in one process, the minimum of several rounds each:

- canonicalize, verification included, against loading and saving the file with the safetensors
  library (limit 8), and compare of the file with a moved copy against the same (limit 4);
- balanced factors of all 288 head products (query-key and value-output of 144 heads) against
  singular value decompositions of the d x d products (at least 10 times faster; a few are timed
  and counted up) and against the batched factored way: decompose both factors, then the small
  product between (no slower than twice, by the faster of numpy and torch).

Run as ``python benchmarks/compare_gpt2_small.py [--repeats N] [--dense N] [--json FILE]``. Parts
that this version does not have are named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from fiberscope.cli.main import main as fiberscope
from inspect_gpt2_small import HEADS, LAYERS, WIDTH, write_checkpoint

CANONICALIZE, COMPARE, DENSE, FACTORED = 8.0, 4.0, 0.1, 2.0
Pairs = list[tuple[np.ndarray, np.ndarray]]


class UnavailableError(Exception):
    """A part that this version of the package does not have."""


def command(*arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run the command line in this process, without its output."""
    printed, problems = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(problems):
        try:
            fiberscope(list(arguments))
        except SystemExit as end:
            code = end.code or 0
    if code not in allowed:
        # Progress comes before the sentence that says what was wrong.
        last = problems.getvalue().strip().splitlines()[-1:] or ["no message"]
        raise UnavailableError(f"{arguments[0]} ended with {code}: {last[0]}")


def load_and_save(directory: Path, target: Path) -> None:
    save_file(load_file(directory / "model.safetensors"), target / "copy.safetensors")


def head_factors(directory: Path) -> Pairs:
    """Left and right factors of every layer's products, (heads, r, d) each, in float64."""
    tensors = load_file(directory / "model.safetensors")
    pairs = []
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}.attn"
        fused = tensors[f"{at}.c_attn.weight"].astype(np.float64)
        query, key, value = np.ascontiguousarray(
            fused.reshape(WIDTH, 3, HEADS, -1).transpose(1, 2, 3, 0)
        )
        output = tensors[f"{at}.c_proj.weight"].astype(np.float64).reshape(HEADS, -1, WIDTH)
        pairs += [(query, key), (value, output)]
    return pairs


def balanced(pairs: Pairs) -> None:
    """What canonicalize does with the heads."""
    try:
        from fiberscope.checkpoints.canonical.balancing import balance
    except ImportError as error:
        raise UnavailableError(f"balanced factors: {error}") from None
    for left, right in pairs:
        balance(left, right, 2.0**-23)


def factored_numpy(pairs: Pairs) -> None:
    for left, right in pairs:
        first, one, _ = np.linalg.svd(left, full_matrices=False)
        second, two, _ = np.linalg.svd(right, full_matrices=False)
        middle = one[:, :, None] * (first.transpose(0, 2, 1) @ second) * two[:, None, :]
        np.linalg.svd(middle)


def factored_torch(pairs: Pairs) -> None:
    import torch

    for left, right in pairs:
        first, one, _ = torch.linalg.svd(torch.from_numpy(left), full_matrices=False)
        second, two, _ = torch.linalg.svd(torch.from_numpy(right), full_matrices=False)
        middle = one[:, :, None] * (first.mT @ second) * two[:, None, :]
        torch.linalg.svd(middle)


def dense(pairs: Pairs, count: int) -> float:
    """Seconds for the d x d decompositions of all heads, counted up from a few."""
    start = time.perf_counter()
    for left, right in pairs[:count]:
        np.linalg.svd(left[0].T @ right[0])
    return (time.perf_counter() - start) / count * len(pairs) * HEADS


def timed(call: Callable[..., None], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dense", type=int, default=4, help="d x d decompositions to time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        first, second, scratch = root / "first", root / "second", root / "scratch"
        first.mkdir()
        write_checkpoint(first)
        # One round outside the clock: imports, page cache.
        try:
            command("transform", str(first), "--random", "--seed", "1", "-o", str(second))
        except UnavailableError as reason:
            missing["compare"] = str(reason)

        def canonicalize() -> None:
            command("canonicalize", str(first), "-o", str(scratch / "canonical"))

        def compare() -> None:
            command("compare", str(first), str(second), "--json")

        pairs = head_factors(first)
        parts: dict[str, Callable[[], None]] = {
            "load and save": lambda: load_and_save(first, scratch),
            "canonicalize": canonicalize,
            "compare": compare,
            "balanced factors": lambda: balanced(pairs),
            "factored, numpy": lambda: factored_numpy(pairs),
            "factored, torch": lambda: factored_torch(pairs),
        }
        if "compare" not in missing:
            compare()  # outside the clock, too: loops are compiled once
        for _ in range(options.repeats):
            for name, part in parts.items():
                if name in missing:
                    continue
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                try:
                    found = timed(part)
                except (UnavailableError, ImportError) as reason:
                    missing[name] = str(reason)
                    continue
                print(f"{name}: {found:.2f} s", file=sys.stderr)
                seconds.setdefault(name, []).append(found)
        if options.dense:
            seconds["dense products"] = [dense(pairs, options.dense)]
    least = {name: min(values) for name, values in seconds.items() if values}
    factored = min(value for name, value in least.items() if name.startswith("factored"))
    ratios = {}
    for name, reference, limit in (
        ("canonicalize", least["load and save"], CANONICALIZE),
        ("compare", least["load and save"], COMPARE),
        ("balanced factors", least.get("dense products"), DENSE),
        ("balanced factors", factored, FACTORED),
    ):
        if name in least and name not in missing and reference is not None:
            against = {DENSE: "d x d products", FACTORED: "factored"}.get(limit, "load and save")
            ratio = least[name] / reference
            ratios[f"{name} / {against}"] = {
                "ratio": ratio,
                "limit": limit,
                "holds": ratio <= limit,
            }
    result = {"seconds": least, "ratios": ratios, "missing": missing, "repeats": options.repeats}
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result))
    sys.exit(0 if not missing and all(ratio["holds"] for ratio in ratios.values()) else 1)


if __name__ == "__main__":
    main()
