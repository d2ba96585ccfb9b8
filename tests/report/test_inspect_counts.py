"""Counts of full-size configurations against arithmetic by hand, mechanism by mechanism.

d width, L layers, H heads, G key/value groups, r head width, f neurons, V vocabulary, P positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.architecture import published_shapes as shapes
from tests.report.reports import report_of

QK, VO = "query/key basis change", "value/output basis change"
KEY_BIAS, VALUE_BIAS = "key bias", "value bias"
GAIN, NORM_BIAS = "norm gain", "norm bias"
DIRECTION, ONES = "LayerNorm input direction", "residual write along 1"
ROTATION, GATED, RELU = "residual rotation", "gated MLP scaling", "ReLU scaling"

EXPECTED: dict[str, tuple[dict[str, Any], dict[str, int], int]] = {
    # d 768, L 12, H 12, r 64, f 3072, P 1024; tied, so the final norm and the tokens stay.
    "GPT-2 small": (
        shapes.GPT2_SMALL,
        {
            QK: 12 * 12 * 64**2,
            VO: 12 * 12 * 64**2,
            KEY_BIAS: 12 * 768,
            VALUE_BIAS: 12 * 768,
            GAIN: 2 * 12 * 768,
            NORM_BIAS: 2 * 12 * 768,
            DIRECTION: 12 * (3 * 768 + 3072),
            ONES: 1024 + 12 * (768 + 1 + 3072 + 1),
        },
        0,
    ),
    # d 4096, L 32, G 8, r 128 all rotated, f 14336, untied.
    "Llama-3-8B": (
        shapes.LLAMA_3_8B,
        {
            QK: 32 * 8 * 128,
            VO: 32 * 8 * 128**2,
            GAIN: (2 * 32 + 1) * 4096,
            GATED: 32 * 14336,
            ROTATION: 4096 * 4095 // 2,
        },
        0,
    ),
    # d 576, L 30, G 3, r 64, f 1536, tied.
    "SmolLM2-135M": (
        shapes.SMOLLM2_135M,
        {QK: 30 * 3 * 64, VO: 30 * 3 * 64**2, GAIN: 2 * 30 * 576, GATED: 30 * 1536},
        0,
    ),
    # d 896, L 24, G 2, r 64, f 4864, tied; no output bias and G s < d: the value bias is seen.
    "Qwen2-0.5B": (
        shapes.QWEN2_HALF_B,
        {QK: 24 * 2 * 64, VO: 24 * 2 * 64**2, GAIN: 2 * 24 * 896, GATED: 24 * 4864},
        0,
    ),
    # d 1024, L 28, G 8, r 128, f 3072, tied; r/2 gain products a layer.
    "Qwen3-0.6B": (
        shapes.QWEN3_06B,
        {
            "query/key gain product": 28 * 64,
            VO: 28 * 8 * 128**2,
            GAIN: 2 * 28 * 1024,
            GATED: 28 * 3072,
        },
        0,
    ),
    # d 2048, L 18, G 1, r 256, f 16384, tied.
    "Gemma-2B": (
        shapes.GEMMA_2B,
        {QK: 18 * 256, VO: 18 * 256**2, GAIN: 2 * 18 * 2048, GATED: 18 * 16384},
        0,
    ),
    # d 2560, L 32, H 32, r 80 of which 32 rotated, f 10240, V 51200, one norm a layer, head bias.
    "Phi-2": (
        shapes.PHI_2,
        {
            QK: 32 * 32 * (32 + 48**2),
            VO: 32 * 32 * 80**2,
            KEY_BIAS: 32 * 32 * 48,
            VALUE_BIAS: 32 * 2560,
            GAIN: 33 * 2560,
            NORM_BIAS: 33 * 2560,
            DIRECTION: 32 * (3 * 2560 + 10240) + 51200,
            ONES: 51200 + 32 * (2560 + 1 + 10240 + 1),
            "parallel output biases": 32 * 2560,
            ROTATION: 2559 * 2558 // 2,
        },
        32,
    ),
    # d 512, L 6, H 8, r 64 of which 16 rotated, f 2048, V 50304, two norms a layer, no head bias.
    "Pythia-70M": (
        shapes.PYTHIA_70M,
        {
            QK: 6 * 8 * (16 + 48**2),
            VO: 6 * 8 * 64**2,
            KEY_BIAS: 6 * 8 * 48,
            VALUE_BIAS: 6 * 512,
            GAIN: 13 * 512,
            NORM_BIAS: 13 * 512,
            DIRECTION: 6 * (3 * 512 + 2048),
            ONES: 50304 + 6 * (512 + 1 + 2048 + 1),
            "parallel output biases": 6 * 512,
            ROTATION: 511 * 510 // 2,
        },
        6,
    ),
    # d 768, L 12, H 12, r 64, f 3072, 2048 positions behind 2 that no input reaches.
    "OPT-125M": (
        shapes.OPT_125M,
        {
            QK: 12 * 12 * 64**2,
            VO: 12 * 12 * 64**2,
            KEY_BIAS: 12 * 768,
            VALUE_BIAS: 12 * 768,
            GAIN: 2 * 12 * 768,
            NORM_BIAS: 2 * 12 * 768,
            DIRECTION: 12 * (3 * 768 + 3072),
            RELU: 12 * 3072,
            ONES: 2048 + 12 * (768 + 1 + 3072 + 1),
            "unread parameters": 2 * 768,
        },
        0,
    ),
    # Post-norm, observed at the last norm: its bias stays; the pooler is not read.
    "BERT-base": (
        shapes.BERT_BASE,
        {
            QK: 12 * 12 * 64**2,
            VO: 12 * 12 * 64**2,
            KEY_BIAS: 12 * 768,
            VALUE_BIAS: 12 * 768,
            NORM_BIAS: (1 + 2 * 12 - 1) * 768,
            DIRECTION: 12 * (3 * 768 + 3072),
            ONES: 30522 + 512 + 2 + 12 * (768 + 1 + 3072 + 1),
            "embedding shift": 2 * 768,
            "unread parameters": 768**2 + 768,
        },
        2,
    ),
    # 18 attentions of 8 heads; 2 norms an encoder layer, 3 a decoder layer, the encoder's last.
    "T5-small": (
        shapes.T5_SMALL,
        {
            QK: 18 * 8 * 64**2,
            VO: 18 * 8 * 64**2,
            GAIN: (2 * 6 + 3 * 6 + 1) * 512,
            RELU: 12 * 2048,
            "relative position bias": 2 * 8,
            "unread parameters": 8,
        },
        0,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_by_hand(name: str, tmp_path: Path) -> None:
    config, mechanisms, overlap = EXPECTED[name]
    data = report_of(tmp_path, config).to_dict()
    found = {entry["name"]: entry["dimension"] for entry in data["mechanisms"]}
    assert found == mechanisms
    assert data["undetermined"] == sum(mechanisms.values()) - overlap
    assert data["parameters"] == shapes.PARAMETERS[name][1]
    assert data["identified_is"] == "exact"


def test_approximate_directions_of_normalised_queries(tmp_path: Path) -> None:
    data = report_of(tmp_path, shapes.QWEN3_06B).to_dict()
    found = {entry["name"]: (entry["dimension"], entry["epsilon"]) for entry in data["approximate"]}
    # One for the stream, and one for each of 16 query and 8 key heads in 28 layers.
    assert found == {
        "scale of a normalised sum": (1, 1e-6),
        "scale of normalised queries and keys": (28 * (16 + 8), 1e-6),
    }


def test_probabilities_hide_one_shift_of_all_rows(tmp_path: Path) -> None:
    logits = report_of(tmp_path, shapes.GPT2_SMALL, "logits").to_dict()
    probabilities = report_of(tmp_path, shapes.GPT2_SMALL, "probabilities").to_dict()
    # Tied with a position table that can take the shift back: d more.
    assert probabilities["undetermined"] - logits["undetermined"] == 768
