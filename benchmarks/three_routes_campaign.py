"""A randomised campaign: three routes to the undetermined dimension, over classes, sizes and flags.

For every drawn toy the union of the symmetries (by the ledger's count and by the rank of the
tangents), the effective coordinates and the nullity of the twin's Jacobian are compared; every
symmetry also acts once with a random element. A disagreement is explained only by a stated
condition that fails. Run as
``python benchmarks/three_routes_campaign.py --draws 200 --seed 1 [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.checkpoints.ledger import toys
from tests.checkpoints.ledger.routes import three_routes

Config = dict[str, Any]
Rng = np.random.Generator


def pick(rng: Rng, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def gpt2(rng: Rng) -> Config:
    heads, width = pick(rng, 1, 2), pick(rng, 2, 3)
    d = max(4, heads * width)
    d += d % heads
    return toys.gpt2(
        pick(rng, "GPT2LMHeadModel", "GPT2LMHeadModel", "GPT2Model"),
        n_embd=d,
        n_head=heads,
        n_layer=pick(rng, 1, 2),
        n_inner=pick(rng, 3, 5),
        n_positions=pick(rng, 4, 5),
        vocab_size=2 * d + 6,
        tie_word_embeddings=pick(rng, True, False),
        activation_function=pick(rng, "gelu_new", "relu", "tanh", "silu"),
    )


def llama(rng: Rng) -> Config:
    kind = pick(rng, "llama", "llama", "mistral", "qwen2", "qwen3", "gemma")
    stem = {"llama": "Llama", "mistral": "Mistral", "gemma": "Gemma"}.get(kind, kind.title())
    groups, per_group, width = pick(rng, 1, 2), pick(rng, 1, 2), pick(rng, 2, 4)
    heads = groups * per_group
    d = heads * -(-pick(rng, 5, 6) // heads)  # the classes want a multiple of the heads
    changes: Config = {
        "hidden_size": d,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": width,
        "num_hidden_layers": pick(rng, 1, 2),
        "intermediate_size": pick(rng, 3, 5),
        "vocab_size": 4 * d + 2 if kind == "qwen3" else 2 * d + 6,
        "tie_word_embeddings": pick(rng, True, False),
        "hidden_act": pick(rng, "silu", "gelu_pytorch_tanh", "relu"),
    }
    if kind == "qwen2":
        # The class derives the head width, which must be even.
        changes["hidden_size"] = max(4, heads * width)
        changes["head_dim"] = None
        changes["vocab_size"] = 2 * changes["hidden_size"] + 6
    if kind == "llama":
        changes["attention_bias"] = pick(rng, True, False)
        changes["mlp_bias"] = pick(rng, True, False)
    if kind == "qwen3":
        changes["attention_bias"] = pick(rng, True, False)
        changes["head_dim"] = 4
    head = pick(rng, f"{stem}ForCausalLM", f"{stem}ForCausalLM", f"{stem}Model")
    return toys.llama(kind, head, **changes)


def opt(rng: Rng) -> Config:
    d = pick(rng, 4, 6)
    return toys.opt(
        pick(rng, "OPTForCausalLM", "OPTForCausalLM", "OPTModel"),
        hidden_size=d,
        word_embed_proj_dim=d,
        num_attention_heads=2,
        num_hidden_layers=pick(rng, 1, 2),
        ffn_dim=pick(rng, 4, 5),
        vocab_size=2 * d + 6,
        max_position_embeddings=5,
        tie_word_embeddings=pick(rng, True, False),
        enable_bias=pick(rng, True, True, False),
        activation_function=pick(rng, "relu", "gelu"),
    )


def neox(rng: Rng) -> Config:
    return toys.neox(
        intermediate_size=pick(rng, 2, 3),
        num_hidden_layers=1,
        rotary_pct=pick(rng, 0.5, 1.0),
        use_parallel_residual=pick(rng, True, False),
        tie_word_embeddings=pick(rng, True, False),
        attention_bias=pick(rng, True, True, False),
    )


def phi(rng: Rng) -> Config:
    return toys.phi(
        intermediate_size=pick(rng, 2, 3),
        partial_rotary_factor=pick(rng, 0.5, 1.0),
        hidden_act=pick(rng, "gelu_new", "relu"),
    )


def bert(rng: Rng) -> Config:
    kind = pick(rng, "bert", "roberta")
    stem = kind.title()
    cls = stem + pick(rng, "Model", "ForMaskedLM", "ForSequenceClassification")
    return toys.bert(
        kind,
        cls,
        num_hidden_layers=pick(rng, 1, 2),
        intermediate_size=pick(rng, 3, 5),
        type_vocab_size=pick(rng, 1, 2),
        max_position_embeddings=7 if kind == "bert" else 8,
        hidden_act=pick(rng, "gelu", "relu"),
        tie_word_embeddings=pick(rng, True, True, False),
        **({"num_labels": 6} if "Sequence" in cls else {}),
    )


def distilbert(rng: Rng) -> Config:
    return toys.distilbert(
        pick(rng, "DistilBertModel", "DistilBertForMaskedLM"),
        n_layers=pick(rng, 1, 2),
        hidden_dim=pick(rng, 3, 5),
        activation=pick(rng, "gelu", "relu"),
    )


def vit(rng: Rng) -> Config:
    cls = pick(rng, "ViTModel", "ViTForImageClassification")
    labelled = {"num_labels": 6} if "Image" in cls else {}
    return toys.vit(
        cls,
        num_hidden_layers=2 if labelled else pick(rng, 1, 2),
        intermediate_size=pick(rng, 3, 5),
        qkv_bias=pick(rng, True, False),
        hidden_act=pick(rng, "gelu", "relu"),
        **labelled,
    )


def t5(rng: Rng) -> Config:
    return toys.t5(
        pick(rng, "T5ForConditionalGeneration", "T5Model", "T5EncoderModel"),
        d_kv=pick(rng, 2, 3),
        d_ff=pick(rng, 3, 5),
        num_heads=pick(rng, 1, 2),
        feed_forward_proj=pick(rng, "relu", "gated-gelu", "gated-relu"),
        tie_word_embeddings=pick(rng, True, False),
    )


FAMILIES = (gpt2, llama, llama, llama, opt, neox, phi, bert, bert, distilbert, vit, t5)


def observable_for(config: Config, rng: Rng) -> str:
    name = config["architectures"][0]
    if "For" not in name and "LMHead" not in name:
        return "hidden"
    return str(pick(rng, "logits", "probabilities", "hidden"))


def describe(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "model_type"}, sort_keys=True)


def run(draws: int, seed: int) -> dict[str, Any]:
    """Follow all routes for every draw; a disagreement must have a failing condition."""
    rng = np.random.default_rng(seed)
    tally: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    problems = []
    start = time.perf_counter()
    for number in range(draws):
        config = FAMILIES[int(rng.integers(len(FAMILIES)))](rng)
        observable = observable_for(config, rng)
        routes = three_routes(config, observable, int(rng.integers(1 << 30)))
        found = routes.ledger
        effective = found.parameters - found.effective
        numbers = (found.undetermined, routes.union, effective, routes.nullity)
        acting = routes.worst_action < 1e-9 and routes.worst_tangent < 1e-10
        # A mechanism may move more directions than it adds to the others, never fewer.
        acting &= all(rank >= dimension for _, rank, dimension in routes.wrong_dimensions)
        if len(set(numbers)) == 1 and acting:
            outcome = "agree"
        elif not found.is_exact and found.undetermined <= routes.nullity and acting:
            outcome = "explained by a failing condition"
        else:
            outcome = "DISAGREE"
            print(f"DISAGREE: {observable} {describe(config)} {numbers}", file=sys.stderr)
            problems.append(
                f"{observable} {describe(config)}: ledger, tangents, effective, twin = {numbers}; "
                f"action {routes.worst_action:.1e}, {routes.wrong_dimensions}"
            )
        tally[outcome] += 1
        classes[config["architectures"][0]] += 1
        if (number + 1) % 10 == 0:
            print(f"{number + 1}/{draws} {dict(tally)}", file=sys.stderr)
    return {
        "draws": draws,
        "seed": seed,
        "outcomes": dict(tally),
        "classes": dict(classes),
        "problems": problems,
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = run(options.draws, options.seed)
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
