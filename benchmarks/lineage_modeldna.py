"""Exact changes of basis, as a lineage tool and `fiberscope compare` see them.

The published package modeldna (a lineage detector for language models) writes a synthetic Llama of
six layers; copies of it are changed so that the function stays the same, all in float64. Beside its
verdict on every pair stand ours and the change of the logits, computed in float64 on random tokens.
Two controls have another function: an independent seed, and the same weights with noise.

Run as ``python benchmarks/lineage_modeldna.py [--seed N] [--json FILE]`` with modeldna installed
(``pip install modeldna``). Ends with 1 if a verdict of ours is not the one that the change demands.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fiberscope.checkpoints.forward import deviation, outputs, probe_inputs, stored_numbers
from fiberscope.checkpoints.opening import open_model

LAYERS, WIDTH, HEADS, GROUPS, NEURONS, VOCABULARY = 6, 128, 8, 4, 256, 512
HEAD = WIDTH // HEADS
PER_GROUP = HEADS // GROUPS
Weights = dict[str, np.ndarray]
Move = Callable[[Weights, np.random.Generator], None]


def at(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{name}.weight"


def permute_neurons(w: Weights, rng: np.random.Generator) -> None:
    for layer in range(LAYERS):
        order = rng.permutation(NEURONS)
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            w[at(layer, name)] = w[at(layer, name)][order]
        w[at(layer, "mlp.down_proj")] = w[at(layer, "mlp.down_proj")][:, order]


def permute_heads(w: Weights, rng: np.random.Generator) -> None:
    """Groups among each other, and query heads inside each group."""
    for layer in range(LAYERS):
        groups = rng.permutation(GROUPS)
        heads = np.concatenate([g * PER_GROUP + rng.permutation(PER_GROUP) for g in groups])
        for name, order in (("q", heads), ("k", groups), ("v", groups)):
            stored = w[at(layer, f"self_attn.{name}_proj")]
            blocks = stored.reshape(len(order), HEAD, WIDTH)
            w[at(layer, f"self_attn.{name}_proj")] = blocks[order].reshape(stored.shape)
        stored = w[at(layer, "self_attn.o_proj")]
        blocks = stored.reshape(WIDTH, HEADS, HEAD)
        w[at(layer, "self_attn.o_proj")] = blocks[:, heads].reshape(stored.shape)


def change_bases(w: Weights, rng: np.random.Generator) -> None:
    """Per rotary plane a rotation and a scale, per group any basis of the values."""
    half = HEAD // 2
    for layer in range(LAYERS):
        q = w[at(layer, "self_attn.q_proj")].reshape(GROUPS, PER_GROUP, 2, half, WIDTH)
        k = w[at(layer, "self_attn.k_proj")].reshape(GROUPS, 2, half, WIDTH)
        size, angle = rng.normal(0, 0.5, (GROUPS, half, 1)), rng.uniform(-np.pi, np.pi, half)
        z = np.exp(size + 1j * angle[:, None])
        keys = z * (k[:, 0] + 1j * k[:, 1])
        queries = (q[:, :, 0] + 1j * q[:, :, 1]) / z.conj()[:, None]
        w[at(layer, "self_attn.k_proj")] = np.stack([keys.real, keys.imag], 1).reshape(-1, WIDTH)
        w[at(layer, "self_attn.q_proj")] = np.stack([queries.real, queries.imag], 2).reshape(
            -1, WIDTH
        )
        v = w[at(layer, "self_attn.v_proj")].reshape(GROUPS, HEAD, WIDTH)
        o = w[at(layer, "self_attn.o_proj")].reshape(WIDTH, GROUPS, PER_GROUP, HEAD)
        change = rng.standard_normal((GROUPS, HEAD, HEAD)) + 2 * np.eye(HEAD)
        w[at(layer, "self_attn.v_proj")] = (change @ v).reshape(-1, WIDTH)
        moved = np.einsum("dgms,gst->dgmt", o, np.linalg.inv(change))
        w[at(layer, "self_attn.o_proj")] = moved.reshape(WIDTH, -1)


def scale_neurons(w: Weights, rng: np.random.Generator) -> None:
    for layer in range(LAYERS):
        factor = np.exp(rng.normal(0, 0.5, NEURONS)) * rng.choice([-1.0, 1.0], NEURONS)
        w[at(layer, "mlp.up_proj")] *= factor[:, None]
        w[at(layer, "mlp.down_proj")] /= factor


READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def norms(w: Weights) -> list[tuple[str, list[str]]]:
    """Every gain with the matrices that read behind it."""
    found = [
        (at(layer, norm), [at(layer, name) for name in names])
        for layer in range(LAYERS)
        for norm, names in READERS.items()
    ]
    return [*found, ("model.norm.weight", ["lm_head.weight"])]


def rotate_stream(w: Weights, rng: np.random.Generator) -> None:
    """One rotation of the residual stream, and new gains everywhere."""
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    for gain, readers in norms(w):
        fresh = 1 + np.clip(0.3 * rng.standard_normal(WIDTH), -0.75, 0.75)
        for name in readers:
            w[name] = (w[name] * w[gain]) @ turn.T / fresh
        w[gain] = fresh
    w["model.embed_tokens.weight"] = w["model.embed_tokens.weight"] @ turn.T
    for layer in range(LAYERS):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            w[at(layer, name)] = turn @ w[at(layer, name)]


def scale_pairs(w: Weights, rng: np.random.Generator) -> None:
    """One number a layer for each pair whose product counts."""
    pairs = [("self_attn.q_proj", "self_attn.k_proj"), ("self_attn.v_proj", "self_attn.o_proj")]
    pairs.append(("mlp.up_proj", "mlp.down_proj"))
    for layer in range(LAYERS):
        for first, second in pairs:
            factor = np.exp(rng.normal(0, 0.7))
            w[at(layer, first)] *= factor
            w[at(layer, second)] /= factor
    for gain, readers in norms(w):
        factor = np.exp(rng.normal(0, 0.7))
        w[gain] *= factor
        for name in readers:
            w[name] = w[name] / factor


MOVES: dict[str, tuple[Move, ...]] = {
    "nothing": (),
    "permute neurons": (permute_neurons,),
    "permute heads within the grouping": (permute_heads,),
    "rotate and scale rotary planes, any basis of values": (change_bases,),
    "scale neurons, random signs": (scale_neurons,),
    "rotate the stream, redraw gains": (rotate_stream,),
    "one scalar a layer and pair": (scale_pairs,),
}
MOVES["all of these"] = tuple(move for moves in MOVES.values() for move in moves)


def write(directory: Path, source: Path, weights: Weights) -> Path:
    """A checkpoint in float64 beside the configuration and tokenizer of the original."""
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_bytes((source / name).read_bytes())
    contiguous = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    save_file(contiguous, directory / "model.safetensors")
    return directory


def ours(first: Path, second: Path) -> dict[str, Any]:
    """What `fiberscope compare` says; a refusal comes back as its sentence."""
    command = [sys.executable, "-m", "fiberscope", "compare", str(first), str(second), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2):
        return {"verdict": "NONE", "reason": done.stderr.strip().removeprefix("fiberscope: ")}
    return dict(json.loads(done.stdout))


def change_of_logits(first: Path, second: Path) -> float:
    """Largest change relative to the logits' spread, in float64."""
    results = []
    for directory in (first, second):
        model = open_model(directory)
        assert model.source is not None and model.matching is not None
        probe = probe_inputs(model.architecture, 0, 2, 32)
        read = stored_numbers(model.source, model.matching.stored)
        results.append(outputs(model.architecture, read, probe, model.observable))
    return deviation(results[1], results[0], VOCABULARY).relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        from modeldna import __version__ as version
        from modeldna.scan import compare_pair
        from modeldna.testing import make_tiny_llama
    except ImportError:
        sys.exit("this benchmark needs the package modeldna: pip install modeldna")
    sizes = {
        "n_layers": LAYERS,
        "hidden": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": GROUPS,
        "intermediate": NEURONS,
        "vocab": VOCABULARY,
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        drawn = make_tiny_llama(root / "drawn", seed=options.seed, **sizes)
        original = {name: array.astype(np.float64) for name, array in drawn.items()}
        other = make_tiny_llama(root / "other drawn", seed=options.seed + 1, **sizes)
        rng = np.random.default_rng(options.seed)
        pairs: list[tuple[str, str, Path, Weights]] = []
        for label, moves in MOVES.items():
            weights = {name: array.copy() for name, array in original.items()}
            for move in moves:
                move(weights, rng)
            pairs.append((label, "SAME", root / "drawn", weights))
        unrelated = {name: array.astype(np.float64) for name, array in other.items()}
        noisy = {
            name: array + 0.005 * array.std() * rng.standard_normal(array.shape)
            for name, array in original.items()
        }
        pairs.append(("another seed", "DIFFERENT", root / "other drawn", unrelated))
        pairs.append(("noise of 0.5 % on every tensor", "DIFFERENT", root / "drawn", noisy))
        first = write(root / "original", root / "drawn", original)
        for number, (label, expected, source, weights) in enumerate(pairs):
            second = write(root / f"copy {number}", source, weights)
            verdict = compare_pair(str(second), str(first), mode="full")[-1]
            found = ours(first, second)
            rows.append(
                {
                    "change": label,
                    "modeldna": verdict.verdict.value,
                    "modeldna_probability": verdict.probability,
                    "fiberscope": found["verdict"],
                    "expected": expected,
                    "reason": found.get("reason", ""),
                    "distance": found.get("distance"),
                    "change_of_logits": change_of_logits(first, second),
                }
            )
    print(f"modeldna {version}, full mode; synthetic Llama of {LAYERS} layers, seed {options.seed}")
    print(f"{'change':52} {'modeldna':24} {'p':>6}  {'fiberscope':10} {'logits':>8}")
    for row in rows:
        print(
            f"{row['change']:52} {row['modeldna']:24} {row['modeldna_probability'] or 0:6.3f}  "
            f"{row['fiberscope']:10} {row['change_of_logits']:8.1e}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps({"modeldna": version, "rows": rows}, indent=1))
    wrong = [row for row in rows if row["fiberscope"] != row["expected"]]
    for row in wrong:
        print(f"fiberscope on {row['change']}: {row['reason']}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
