"""A sharded Llama-shaped checkpoint of 1.1 billion parameters within 4 GB of memory.

Draws the weights shard by shard in bfloat16 (22 layers, width 2,048, 32 heads in 4 groups, 5,632
neurons, 32,000 tokens, untied), moves them with a random element of the symmetry group, writes the
canonical form, and compares the moved copy with the original. Each command runs in a process of its
own. Its memory is what it and the processes that it starts hold together (shared pages count once),
looked at five times a second on Linux, or the peak of that one process if it is larger.

Run as ``python benchmarks/llama_1b_memory.py [--directory DIR] [--layers N] [--json FILE]``; needs
about 7 GB of disk. Ends with 1 if a command fails, needs more than 4 GB, or compare does not say
SAME.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

LIMIT = 4.0
WIDTH, HEADS, GROUPS, NEURONS, VOCABULARY = 2048, 32, 4, 5632, 32000
LAYERS_A_SHARD = 4


def write_checkpoint(directory: Path, layers: int) -> None:
    """Random weights at the scale at which training starts, a few layers in memory at a time."""
    directory.mkdir()
    rng = np.random.default_rng(0)

    def normal(*shape: int, mean: float = 0.0, scale: float = 0.02) -> np.ndarray:
        drawn = rng.standard_normal(shape, dtype=np.float32)
        drawn *= scale
        drawn += mean
        return drawn.astype(ml_dtypes.bfloat16)

    head = WIDTH // HEADS
    matrices = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (GROUPS * head, WIDTH),
        "self_attn.v_proj": (GROUPS * head, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (NEURONS, WIDTH),
        "mlp.up_proj": (NEURONS, WIDTH),
        "mlp.down_proj": (WIDTH, NEURONS),
    }
    shards: list[tuple[str, dict[str, tuple[int, ...]]]] = []
    for first in range(0, layers, LAYERS_A_SHARD):
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(first, min(first + LAYERS_A_SHARD, layers)):
            at = f"model.layers.{layer}"
            shapes |= {f"{at}.{name}.weight": shape for name, shape in matrices.items()}
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{at}.{norm}.weight"] = (WIDTH,)
        shards.append((f"layers {first} on", shapes))
    ends = {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}
    shards.append(("ends", {"model.embed_tokens.weight": (VOCABULARY, WIDTH), **ends}))
    places = {}
    total = 0
    for number, (_, shapes) in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {
            name: normal(*shape) if len(shape) == 2 else normal(*shape, mean=1.0, scale=0.2)
            for name, shape in shapes.items()
        }
        save_file(tensors, directory / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": NEURONS,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))


def held_together(process: int) -> int:
    """Bytes of memory of a process and its descendants; 0 where the system does not tell."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (OSError, ValueError):
        return total
    return total + sum(held_together(int(child)) for child in children)


def measured(*arguments: str) -> dict[str, object]:
    """Run one command; its exit code, seconds, peak memory in GB, and what it printed as JSON."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        # Progress goes to the terminal.
        process = subprocess.Popen([sys.executable, *arguments], stdout=printed)
        together = 0
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            together = max(together, held_together(process.pid))
            time.sleep(0.2)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read().strip()
    scale = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return {
        "exit_code": process.returncode,
        "seconds": time.perf_counter() - start,
        "peak_gigabytes": max(usage.ru_maxrss * scale, together) / 2**30,
        "printed": json.loads(text) if text.startswith("{") else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where to put the files (default: /tmp)")
    parser.add_argument("--layers", type=int, default=22, help="fewer for a trial")
    parser.add_argument("--condition", default="10", help="of the random change of basis")
    parser.add_argument(
        "--canonical-copy",
        action="store_true",
        help="compare with the canonical form, without moving the checkpoint first",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write_checkpoint(options.write, options.layers)
        return
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        first, second, third = (
            str(Path(folder) / name) for name in ("first", "moved", "canonical")
        )
        # In a process of its own, too: a child starts with its parent's peak.
        subprocess.run(
            [sys.executable, __file__, "--write", first, "--layers", str(options.layers)],
            check=True,
        )
        tool = ("-m", "fiberscope")
        steps = {
            "transform": (
                "--random",
                "--seed",
                "1",
                "--condition",
                options.condition,
                "-o",
                second,
            ),
            "canonicalize": ("-o", third),
            "compare": (third if options.canonical_copy else second,),
        }
        if options.canonical_copy:
            del steps["transform"]
        for name, arguments in steps.items():
            if name == "compare" and any(done["exit_code"] != 0 for done in results.values()):
                continue  # nothing to compare with
            found = results[name] = measured(*tool, name, first, *arguments, "--json")
            print(
                f"{name}: exit code {found['exit_code']}, {found['seconds']:.0f} s, "
                f"peak {found['peak_gigabytes']:.2f} GB",
                file=sys.stderr,
            )
    verdict = results.get("compare", {}).get("exit_code")
    summary = {"limit_gigabytes": LIMIT, "layers": options.layers, "commands": results}
    print(json.dumps(summary, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(summary))
    failed = verdict != 0 or any(result["exit_code"] != 0 for result in results.values())
    large = any(float(str(result["peak_gigabytes"])) > LIMIT for result in results.values())
    sys.exit(1 if failed or large else 0)


if __name__ == "__main__":
    main()
