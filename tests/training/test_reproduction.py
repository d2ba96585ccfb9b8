"""The reproduction script: its formulas against other routes, and the package against them."""

from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from scripts import training_reproduction as reproduction  # noqa: E402

from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY  # noqa: E402
from fiberscope.checkpoints.twins import float64_evaluation  # noqa: E402
from fiberscope.training import SymmetryMonitor, rebalance_  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("width", "heads", "expected"),
    [(768, 12, 1064), (512, 8, 702), (1024, 16, 1426), (96, 4, 127), (77, 1, 77)],
)
def test_single_head_width_is_the_smallest_with_as_many_identified_weights(width, heads, expected):
    found = reproduction.single_head_width(width, heads)
    assert found == expected
    # 3 E_0^2 weights less E_0^2 unidentified, against 4 E^2 less 2 E^2 / H.
    wanted = 4 * width**2 - Fraction(2 * width**2, heads)
    assert 2 * found**2 >= wanted > 2 * (found - 1) ** 2


@pytest.mark.parametrize("style", ["GPT-2", "Llama"])
def test_overlap_by_sylvester_equations_is_the_share_of_the_monitor(style):
    """Head by head (plane by plane) from the class's weights, against the ledger's tangents."""
    with float64_evaluation():
        model = reproduction.toy(style, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        monitor = SymmetryMonitor(model, optimizer, every=1)
        tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 39, (4, 16)))
        for _ in range(3):
            before = reproduction.query_key_factors(model, style)
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            after = reproduction.query_key_factors(model, style)
            along = 0.0
            for old, new in zip(before, after, strict=True):
                moved = sum(np.linalg.norm(b - a) ** 2 for a, b in zip(old, new, strict=True))
                along += reproduction.overlap(old, new) * moved
            measured = monitor.measurements[-1]
            share = sum(
                share
                for item, share in zip(monitor.start.items, measured.item_shares, strict=True)
                if item.mechanism == QUERY_KEY
            )
            assert share * measured.update.norm**2 == pytest.approx(along, rel=1e-6)
        monitor.close()


@pytest.mark.parametrize("style", ["GPT-2", "Llama"])
def test_a_rebalanced_toy_has_no_gap(style):
    with float64_evaluation():
        model = reproduction.toy(style, 4)
        rebalance_(model)
    for gap in reproduction.query_key_gap(model, style):
        assert np.abs(gap).max() < 1e-14
