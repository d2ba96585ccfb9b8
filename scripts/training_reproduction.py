"""Reproduce the numerical examples of Morrow (arXiv 2609.01231) and go a little further.

    python scripts/training_reproduction.py --part counts
    python scripts/training_reproduction.py --part updates [--steps N] [--seeds N] [--json FILE]
    python scripts/training_reproduction.py --part rebalance [--steps N] [--seeds N] [--json FILE]
    python scripts/training_reproduction.py --part recipe [--steps N] [--seeds N] [--runs DIR]

Prints tables in Markdown: means over seeds, with the standard deviation over seeds. ``counts``
needs no torch. ``updates`` and ``rebalance`` train toys (5,360 and 5,168 parameters, float64) on
Python's own documentation; ``recipe`` the first steps of the shipped example checkpoints' training.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import solve_sylvester

sys.path.insert(0, str(Path(__file__).parents[1]))

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789\n"
OTHER = len(ALPHABET)
CONTEXT, BATCH = 16, 16
WINDOW = 50  # steps over which a loss is averaged
MEASURED = (1, 50, 100, 200, 400)
REBALANCE_EVERY = 200


# ---------------------------------------------------------------- counts


def identified_share(heads: int) -> float:
    """Identified share of an attention layer's ``4 E^2`` weights, heads of width ``E / H``."""
    return 1 - 1 / (2 * heads)


def single_head_width(width: int, heads: int) -> int:
    """``ceil(E sqrt(2 - 1/H))`` in exact integers: the least n with ``n^2 H >= E^2 (2H - 1)``."""
    found = math.isqrt(width**2 * (2 * heads - 1) // heads)
    while found**2 * heads < width**2 * (2 * heads - 1):
        found += 1
    return found


def counts() -> None:
    from fiberscope.analysis import dimension
    from fiberscope.families.attention import MultiHeadAttention

    print("| width E | heads H | identified 1 - 1/(2H) | single-head width E_0 |")
    print("|---|---|---|---|")
    for width, heads in ((96, 4), (512, 8), (768, 12), (1024, 16), (768, 1)):
        print(
            f"| {width} | {heads} | {identified_share(heads):.5g} | "
            f"{single_head_width(width, heads)} |"
        )
    print()
    print("| E | H | weights | numerical rank | predicted |")
    print("|---|---|---|---|---|")
    for width, heads in ((4, 1), (4, 2), (4, 4), (6, 2), (6, 3)):
        d = width // heads
        family = MultiHeadAttention(
            input_width=width, heads=heads, query_width=d, value_width=d, tokens=3
        )
        found = dimension(family, seed=0)
        predicted = round(4 * width**2 * identified_share(heads))
        print(f"| {width} | {heads} | {4 * width**2} | {found.value} | {predicted} |")


# ---------------------------------------------------------------- toys


def corpus() -> np.ndarray:
    """Python's documentation as symbols: lower-case letters, digits, space, line feed, other."""
    from scripts.train_examples import documentation_corpus

    table = {letter: number for number, letter in enumerate(ALPHABET)}
    text = documentation_corpus().training.lower()
    return np.array([table.get(letter, OTHER) for letter in text])


def toy(style: str, seed: int) -> Any:
    """A toy in float64; build and use it inside `float64_evaluation`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": OTHER + 1,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    if style == "GPT-2":
        sizes = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_inner": 32, "n_positions": CONTEXT}
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**sizes, **rates, **common)).double()
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
            **common,
        )
    ).double()


@dataclass(frozen=True)
class Rule:
    """An optimizer and what happens to it on the way."""

    name: str
    build: Callable[[Any], Any]
    every: Callable[[Any, Any], None] | None = None


def rules() -> list[Rule]:
    import torch

    def sgd(**options: float) -> Callable[[Any], Any]:
        return lambda p: torch.optim.SGD(p, lr=0.25, **options)

    def momentum(p: Any) -> Any:
        return torch.optim.SGD(p, lr=0.05, momentum=0.9)

    def adam(decay: float | None = None) -> Callable[[Any], Any]:
        if decay is None:
            return lambda p: torch.optim.Adam(p, lr=3e-3)
        return lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=decay)

    return [
        Rule("SGD", sgd()),
        Rule("SGD, decay 4e-4", sgd(weight_decay=4e-4)),
        Rule("momentum 0.9", momentum),
        Rule("Adam", adam()),
        Rule("AdamW, decay 0.1", adam(0.1)),
    ]


def run(
    style: str, rule: Rule, seed: int, steps: int, text: np.ndarray, every: int = 50
) -> dict[str, Any]:
    """Train one toy; the losses, the records, and Morrow's quantities at the measured steps."""
    import torch

    from fiberscope.checkpoints.twins import float64_evaluation
    from fiberscope.training import SymmetryMonitor
    from fiberscope.training.record import to_line

    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, 7])
    losses: list[float] = []
    extra: dict[int, dict[str, float]] = {}
    with float64_evaluation():
        model = toy(style, seed)
        optimizer = rule.build(model.parameters())
        monitor = SymmetryMonitor(model, optimizer, every=every)
        start = query_key_gap(model, style)
        for step in range(1, steps + 1):
            starts = rng.integers(0, len(text) - CONTEXT - 1, BATCH)
            windows = torch.from_numpy(text[starts[:, None] + np.arange(CONTEXT + 1)])
            optimizer.zero_grad()
            logits = model(input_ids=windows[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            losses.append(float(loss.detach()))
            monitor.loss = losses[-1]
            due = step == 1 or step % every == 0
            before = query_key_factors(model, style) if due else []
            optimizer.step()
            if due:
                after = query_key_factors(model, style)
                gap = query_key_gap(model, style)
                extra[step] = {
                    "rho": float(
                        np.mean([overlap(*pair) for pair in zip(before, after, strict=True)])
                    ),
                    "beta": float(np.linalg.norm(gap) / np.linalg.norm(start)),
                    "tau": float(np.mean([abs(np.trace(g)) for g in gap])),
                }
            if rule.every is not None and step % REBALANCE_EVERY == 0 and step < steps:
                rule.every(model, optimizer)
        monitor.close()
    return {
        "losses": losses,
        "shares": {m.step: m.update.share for m in monitor.measurements},
        "gradient": max(m.gradient.share for m in monitor.measurements if m.gradient),
        "decay": {m.step: m.decay.share for m in monitor.measurements if m.decay},
        "expected": monitor.start.expected_share,
        "deviation": monitor.start.standard_deviation,
        "extra": extra,
        "records": [to_line(monitor.start), *map(to_line, monitor.measurements)],
    }


def query_key_factors(model: Any, style: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Queries and keys ``(r, inputs)`` of every head (key group), read from the class itself."""
    found = []
    if style == "GPT-2":
        for block in model.transformer.h:
            weight = block.attn.c_attn.weight.detach().numpy()
            rows = np.vstack([weight, block.attn.c_attn.bias.detach().numpy()]).T.copy()
            width = weight.shape[0]
            r = width // block.attn.num_heads
            for h in range(block.attn.num_heads):
                heads = slice(h * r, (h + 1) * r), slice(width + h * r, width + (h + 1) * r)
                found.append((rows[heads[0]], rows[heads[1]]))
        return found
    for layer in model.model.layers:
        a = layer.self_attn
        query, key = a.q_proj.weight.detach().numpy(), a.k_proj.weight.detach().numpy()
        r = a.head_dim
        groups = len(key) // r
        grouped = query.reshape(groups, -1, r, query.shape[1])
        for g in range(groups):
            stacked = np.concatenate(list(grouped[g]), axis=1)
            for j in range(r // 2):  # what rotations and scalings of a plane can move
                planes = [
                    (f[j] + 1j * f[j + r // 2])[None] for f in (stacked, key[g * r : (g + 1) * r])
                ]
                found.append((planes[0].copy(), planes[1].copy()))
    return found


def query_key_gap(model: Any, style: str) -> list[np.ndarray]:
    """``W_Q W_Q^T - W_K W_K^T`` of every head (plane)."""
    return [q @ q.conj().T - k @ k.conj().T for q, k in query_key_factors(model, style)]


def overlap(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> float:
    """Morrow's rho: the share of a head's query/key update along its change of basis.

    The direction is ``(S W_Q, -S^H W_K)`` with ``S G_Q + G_K S = dW_Q W_Q^H - W_K dW_K^H``.
    """
    query, key = before
    dq, dk = after[0] - query, after[1] - key
    whole = np.linalg.norm(dq) ** 2 + np.linalg.norm(dk) ** 2
    if whole == 0:
        return 0.0
    right = dq @ query.conj().T - key @ dk.conj().T
    s = solve_sylvester(key @ key.conj().T, query @ query.conj().T, right)
    along = np.linalg.norm(s @ query) ** 2 + np.linalg.norm(s.conj().T @ key) ** 2
    return float(along / whole)


# ---------------------------------------------------------------- tables


def spread(values: Iterable[float], scale: float = 1.0, digits: int = 2) -> str:
    """Mean and standard deviation over seeds."""
    found = scale * np.array(list(values), dtype=float)
    deviation = found.std(ddof=1) if len(found) > 1 else 0.0
    mean = found.mean()
    if mean != 0 and abs(mean) < 10.0**-digits:
        return f"{mean:.0e}"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def updates(steps: int, seeds: int, out: Path | None) -> None:
    text = corpus()
    shown = [step for step in MEASURED if step <= steps]
    kept: dict[str, Any] = {}
    for style in ("GPT-2", "Llama"):
        results = {}
        for rule in rules():
            results[rule.name] = [run(style, rule, seed, steps, text) for seed in range(seeds)]
            print(f"{style}, {rule.name}: done", file=sys.stderr, flush=True)
        first = next(iter(results.values()))[0]
        print(
            f"\n{style}-style toy, {seeds} seeds; a random direction: "
            f"{100 * first['expected']:.2f} ± {100 * first['deviation']:.2f} %\n"
        )
        heads = " | ".join(f"step {step}" for step in shown)
        print(f"| optimizer | {heads} | rho, step {shown[-1]} | beta | loss |")
        print("|---" * (len(shown) + 4) + "|")
        for name, found in results.items():
            cells = [spread((r["shares"][step] for r in found), 100) for step in shown]
            cells.append(spread((r["extra"][shown[-1]]["rho"] for r in found), 100))
            cells.append(spread((r["extra"][shown[-1]]["beta"] for r in found), digits=3))
            cells.append(spread((np.mean(r["losses"][-WINDOW:]) for r in found), digits=3))
            print(f"| {name} | {' | '.join(cells)} |")
        worst = max(r["gradient"] for found in results.values() for r in found)
        print(f"\nlargest invisible share of a gradient: {worst:.0e}")
        kept[style] = results
    write(out, kept)


def clear_moved_state(model: Any, optimizer: Any) -> None:
    """The control: forget the optimizer's state of the tensors that rebalancing would move."""
    from fiberscope.training.balance import balanced
    from fiberscope.training.rebalance import described

    laid_out, named = described(model)
    arrays = {name: p.detach().numpy() for name, p in named.items()}
    for name in balanced(laid_out, arrays).touched:
        optimizer.state.pop(named[name], None)


def rebalancing(steps: int, seeds: int, out: Path | None) -> None:
    import torch

    from fiberscope.training import rebalance_

    text = corpus()

    def build(p: Any) -> Any:
        return torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1)

    cases = [
        Rule("plain", build),
        Rule(
            "rebalanced, second moments reset",
            build,
            lambda m, o: void(rebalance_(m, o, second_moments="reset")),
        ),
        Rule(
            "rebalanced, second moments kept",
            build,
            lambda m, o: void(rebalance_(m, o, second_moments="keep")),
        ),
        Rule("control: state cleared, nothing moved", build, clear_moved_state),
    ]
    kept: dict[str, Any] = {}
    moments = list(range(REBALANCE_EVERY, steps, REBALANCE_EVERY))
    for style in ("GPT-2", "Llama"):
        results = {}
        for rule in cases:
            results[rule.name] = [run(style, rule, seed, steps, text) for seed in range(seeds)]
            print(f"{style}, {rule.name}: done", file=sys.stderr, flush=True)
        plain = results["plain"]
        print(f"\n{style}-style toy, AdamW with decay 0.1, {seeds} seeds, at steps {moments}\n")
        print(
            "| case | loss 10 steps after, minus plain | last 50 steps, minus plain | "
            "invisible share, last | rho, last | beta, last |"
        )
        print("|---|---|---|---|---|---|")
        for name, found in results.items():
            soon = [
                np.mean([np.mean(_after(a, at) - _after(b, at)) for at in moments])
                for a, b in zip(found, plain, strict=True)
            ]
            late = [
                np.mean(a["losses"][-WINDOW:]) - np.mean(b["losses"][-WINDOW:])
                for a, b in zip(found, plain, strict=True)
            ]
            cells = [
                spread(soon, digits=4),
                spread(late, digits=4),
                spread((r["shares"][steps] for r in found), 100),
                spread((r["extra"][steps]["rho"] for r in found), 100),
                spread((r["extra"][steps]["beta"] for r in found), digits=3),
            ]
            print(f"| {name} | {' | '.join(cells)} |")
        kept[style] = results
    write(out, kept)


def void(_: object) -> None:
    return None


def _after(result: dict[str, Any], step: int) -> np.ndarray:
    return np.array(result["losses"][step : step + 10])


def recipe(steps: int, seeds: int, folder: Path | None) -> None:
    """The first steps of the shipped examples' training, as they were trained (float32)."""
    import torch
    from scripts import train_examples as examples

    from fiberscope.training import SymmetryMonitor

    torch.set_num_threads(1)
    documents = examples.documentation_corpus()
    text = torch.from_numpy(examples.token_ids(documents.training))
    within = torch.arange(examples.CONTEXT + 1)
    for name in ("gpt2", "llama-a"):
        example = examples.EXAMPLES[name]
        schedule = examples.Recipe(steps=example.steps)
        runs = []
        for seed in range(seeds):
            with examples.deterministic_torch(seed):
                model = examples.build_model(example, schedule)
                matrices = [p for p in model.parameters() if p.ndim >= 2]
                vectors = [p for p in model.parameters() if p.ndim < 2]
                optimizer = torch.optim.AdamW(
                    [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
                    lr=schedule.learning_rate,
                    betas=schedule.betas,
                    weight_decay=schedule.weight_decay,
                )
                path = None if folder is None else folder / f"{name}-{seed}.jsonl"
                rng = np.random.default_rng(seed)
                with SymmetryMonitor(model, optimizer, every=50, path=path) as monitor:
                    for step in range(steps):
                        for group in optimizer.param_groups:
                            group["lr"] = examples.learning_rate(step, schedule)
                        starts = rng.integers(
                            0, len(text) - examples.CONTEXT, size=schedule.batch_windows
                        )
                        windows = text[torch.from_numpy(starts)[:, None] + within]
                        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
                        loss = torch.nn.functional.cross_entropy(
                            logits.flatten(0, 1), windows[:, 1:].flatten()
                        )
                        optimizer.zero_grad()
                        loss.backward()
                        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.gradient_clip)
                        monitor.loss = float(loss.detach())
                        optimizer.step()
                    runs.append((monitor.start, tuple(monitor.measurements)))
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
        start = runs[0][0]
        print(
            f"\n{name}: {start.parameters:,} parameters, {start.invisible:,} invisible, {seeds} "
            f"seeds; a random direction: {100 * start.expected_share:.2f} ± "
            f"{100 * start.standard_deviation:.3f} %\n"
        )
        print("| step | update | weight decay | the rest | gradient, largest | loss |")
        print("|---|---|---|---|---|---|")
        for at in zip(*(measured for _, measured in runs), strict=True):
            parts = [[getattr(m, part) for m in at] for part in ("update", "decay", "adaptive")]
            cells = [spread((d.share for d in part), 100) for part in parts]
            cells.append(f"{max(m.gradient.share for m in at):.0e}")
            cells.append(spread((m.loss for m in at), digits=3))
            print(f"| {at[0].step} | {' | '.join(cells)} |")


def write(out: Path | None, kept: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part", choices=("counts", "updates", "rebalance", "recipe"), required=True
    )
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every run's losses and records")
    parser.add_argument("--runs", type=Path, help="folder for the records of the recipe's runs")
    given = parser.parse_args()
    if given.part == "counts":
        counts()
    elif given.part == "updates":
        updates(given.steps or 400, given.seeds, given.json)
    elif given.part == "rebalance":
        rebalancing(given.steps or 600, given.seeds, given.json)
    else:
        recipe(given.steps or 150, given.seeds, given.runs)


if __name__ == "__main__":
    main()
