"""A copy moved by every exact symmetry is SAME, in every format, for every table."""

from __future__ import annotations

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.equality import loops
from fiberscope.checkpoints.equality.noisy import rounding_variance
from fiberscope.verdict import Outcome
from tests.checkpoints.equality.pairs import FORMATS, compared, drawn, laid_out, moved, stored
from tests.checkpoints.ledger.toys import CASES


@pytest.fixture(params=["compiled loops", "NumPy"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys are too small for compiled loops, unless these are made to pay."""
    if request.param == "compiled loops":
        assert loops.is_installed()
        monkeypatch.setattr(loops, "LEAST", 0)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_same_with_a_witness_that_arrives(number: int) -> None:
    config, name = CASES[number]
    model, observable = laid_out(config), Observable(name)
    source = drawn(model, number)
    copy = moved(model, source, number + 1, observable)
    for form in FORMATS:
        found = compared(model, source, stored(copy, form), observable)
        assert found.outcome is Outcome.SAME, (form, found.reason)
        assert found.witness is not None
        assert any("arrives at every stored number" in note for note in found.notes), found.notes


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("number", range(0, len(CASES), 3))
def test_other_weights_are_different(number: int) -> None:
    config, name = CASES[number]
    model, observable = laid_out(config), Observable(name)
    first, second = drawn(model, 1), drawn(model, 2)
    for form in ("float64", "bfloat16"):
        found = compared(model, stored(first, form), stored(second, form), observable)
        assert found.outcome is Outcome.DIFFERENT
        assert found.first_difference
        assert found.distance is not None
        assert 0.1 < found.distance.relative < 3


@pytest.mark.parametrize("number", range(0, len(CASES), 2))
def test_compiled_loops_find_what_numpy_finds(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config, name = CASES[number]
    model, observable = laid_out(config), Observable(name)
    source = drawn(model, number)
    copy = moved(model, source, number + 1, observable)
    tensor = max(copy, key=lambda key: copy[key].size)
    changed = {**copy, tensor: copy[tensor] * np.where(np.arange(copy[tensor].shape[-1]), 1, 1.01)}
    for form in ("float32", "float16", "bfloat16"):
        for other in (copy, changed):
            ways = []
            for least in (0, 1 << 62):
                monkeypatch.setattr(loops, "LEAST", least)
                ways.append(compared(model, source, stored(other, form), observable))
            assert ways[0].outcome is ways[1].outcome
            assert ways[0].first_difference == ways[1].first_difference
            for one, two in zip(ways[0].statistics, ways[1].statistics, strict=True):
                assert (one.name, one.count) == (two.name, two.count)
                assert one.rms == pytest.approx(two.rms, rel=1e-3, abs=1e-9)
                assert one.largest == pytest.approx(two.largest, rel=1e-3, abs=1e-9)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_the_statistic_is_calibrated(form: str) -> None:
    """Rounding alone leaves an rms of 1, within a tenth for thousands of numbers."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "tie_word_embeddings": False,
    }
    model = laid_out(config)
    for seed in range(3):
        source = drawn(model, seed)
        found = compared(model, source, stored(moved(model, source, seed), form))
        assert found.outcome is Outcome.SAME
        for part in found.statistics:
            if part.count > 1000:
                assert 0.8 < part.rms < 1.2, part


@pytest.mark.parametrize("form", list(FORMATS))
def test_variance_of_rounding(form: str) -> None:
    """The stated variance is the mean square of what rounding does to random numbers."""
    rng = np.random.default_rng(0)
    exact = np.longdouble(rng.standard_normal(200_000)) * (1 + np.longdouble(1e-17))
    if form == "float64":
        noise = np.longdouble(rng.uniform(-0.5, 0.5, exact.shape)) * np.spacing(np.float64(exact))
        exact = np.longdouble(np.float64(exact)) + noise
    rounded = np.asarray(exact).astype(np.float64).astype(FORMATS[form])
    error = np.float64(np.longdouble(rounded.astype(np.float64)) - exact)
    ratio = (error**2).mean() / rounding_variance(rounded).mean()
    assert 0.95 < ratio < 1.05


def test_moved_copies_of_a_copy_in_bfloat16() -> None:
    """Both are copies of a third: the rounding of either counts."""
    config, _ = CASES[6]
    model = laid_out(config)
    source = drawn(model, 3)
    first, second = (stored(moved(model, source, seed), "bfloat16") for seed in (4, 5))
    assert compared(model, first, second).outcome is Outcome.SAME
