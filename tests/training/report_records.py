"""Records of a made-up run, with numbers that can be added up by hand."""

import math

from fiberscope.training.record import (
    Balance,
    Direction,
    ItemRecord,
    Measurement,
    Start,
    to_line,
)

ITEMS = (
    ItemRecord("query/key basis change", 0, "layer 0 attention", 8),
    ItemRecord("query/key basis change", 1, "layer 1 attention", 8),
    ItemRecord("key bias", 0, "layer 0 attention", 4),
    ItemRecord("residual rotation", None, "residual stream", 6),
)


def start(**changes):
    values = {
        "model": "LlamaForCausalLM",
        "observable": "probabilities",
        "optimizer": "AdamW",
        "parameters": 400,
        "frozen": 0,
        "invisible": 26,
        "expected_share": 0.065,
        "standard_deviation": 0.017,
        "tolerance": 1e-6,
        "every": 50,
        "project": False,
        "items": ITEMS,
        "balances": (0, 1),
        "dead_biases": (2,),
        "notes": ("a note <about> & the run",),
    }
    return Start(**(values | changes))


def measurement(step, **changes):
    share = 0.04 / math.sqrt(step)
    values = {
        "step": step,
        "update": Direction(2.0, share),
        "decay": Direction(0.1, 0.25),
        "adaptive": Direction(1.9, share / 2),
        "gradient": Direction(3.0, 1e-16),
        "item_shares": (share / 2, share / 4, share / 8, share / 8),
        "balances": (Balance(0.5 / step, 1.0, 0.0), Balance(0.25, 1.0, 0.0)),
        "dead_bias_drifts": (1e-6 * step,),
        "learning_rates": (1e-3,),
        "loss": 4.0 - 0.01 * step,
        "seconds": 0.1,
        "iterations": 7,
        "projected": False,
    }
    return Measurement(**(values | changes))


def file_of(path, records):
    path.write_text("".join(f"{to_line(record)}\n" for record in records), encoding="utf-8")
    return path
