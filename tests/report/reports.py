"""Reports for the tests: of configurations, and of configurations with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.report.inspection_report import InspectionReport, inspect

TINY_GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 2,
    "n_inner": 12,
    "n_positions": 6,
    "vocab_size": 20,
}
TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 10,
    "vocab_size": 20,
    "rope_theta": 100.0,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}


def report_of(
    folder: Path, config: dict[str, Any], observable: str | None = None
) -> InspectionReport:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return inspect(path, observable)


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in architecture(config).tensors.items()
    }


def checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
