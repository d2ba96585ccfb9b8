"""The training script at a toy size."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.examples import EXAMPLES, example_path

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

TOY_SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1, "n_embd": 8, "n_head": 2},
    "llama-a": {
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "intermediate_size": 12,
    },
}


def train_toy(script: ModuleType, name: str, out: Path, seed: int = 5) -> dict[str, bytes]:
    example = script.Example(script.EXAMPLES[name].architecture, seed, TOY_SHAPES[name], 3)
    script.train_example(name, out, script.Recipe(example.steps, batch_windows=2), example)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize("name", sorted(TOY_SHAPES))
def test_two_runs_write_identical_bytes(
    name: str, train_examples: ModuleType, tmp_path: Path
) -> None:
    first = train_toy(train_examples, name, tmp_path / "first")
    torch.rand(7)  # the state of the process's own generator must not matter
    second = train_toy(train_examples, name, tmp_path / "second")
    assert set(first) == {"README.md", "config.json", "model.safetensors", "training.json"}
    assert first == second
    other = train_toy(train_examples, name, tmp_path / "other", seed=6)
    assert other["model.safetensors"] != first["model.safetensors"]


def test_training_leaves_the_state_of_torch_as_it_was(
    train_examples: ModuleType, tmp_path: Path
) -> None:
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().numpy().tobytes(),
    )
    train_toy(train_examples, "gpt2", tmp_path / "out")
    after = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().numpy().tobytes(),
    )
    assert before == after


def test_existing_directory_is_refused_and_left_alone(
    train_examples: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept").write_text("kept")
    with pytest.raises(InputError, match="exists already"):
        train_examples.train_example("gpt2", out, train_examples.Recipe(1))
    assert train_examples.main(["--model", "gpt2", "--out", str(out)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "exists already" in captured.err
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "kept"]


def test_command_line_refuses_zero_steps(train_examples: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert train_examples.main(["--model", "gpt2", "--out", str(out), "--steps", "0"]) == 3
    assert not out.exists()


def test_failed_save_leaves_nothing(train_examples: ModuleType, tmp_path: Path) -> None:
    class Unwritable:
        def save_pretrained(self, directory: Path) -> None:
            (directory / "model.safetensors").write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        train_examples.save(Unwritable(), {}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_characters_map_to_ascii_codes_or_to_one_other_id(train_examples: ModuleType) -> None:
    ids = train_examples.token_ids("Az\n~é→😀")
    assert ids.tolist() == [65, 122, 10, 126, 26, 26, 26]


def test_learning_rate_warms_up_and_ends_at_the_final_rate(train_examples: ModuleType) -> None:
    recipe = train_examples.Recipe(2100)
    rates = [train_examples.learning_rate(step, recipe) for step in range(recipe.steps + 1)]
    assert rates[0] == pytest.approx(recipe.learning_rate / recipe.warmup_steps)
    assert int(np.argmax(rates)) in (recipe.warmup_steps - 1, recipe.warmup_steps)
    assert max(rates) == pytest.approx(recipe.learning_rate)
    assert rates[-1] == pytest.approx(recipe.final_learning_rate)
    assert all(np.diff(rates[recipe.warmup_steps :]) < 0)


def test_held_out_paragraphs_do_not_occur_in_the_training_text(train_examples: ModuleType) -> None:
    corpus = train_examples.documentation_corpus()
    training = " ".join(corpus.training.split())
    paragraphs = [" ".join(p.split()) for p in corpus.validation.split("\n\n")]
    long = [p for p in paragraphs if len(p) >= 200]
    assert len(long) > 20
    assert not [p for p in long if p in training]
    held_out_share = len(corpus.validation) / len(corpus.training + corpus.validation)
    assert 0.08 < held_out_share < 0.12


def test_uniform_model_costs_log_of_the_vocabulary(train_examples: ModuleType) -> None:
    class Uniform:
        def __call__(self, input_ids: Any, use_cache: bool) -> Any:
            class Output:
                logits = torch.zeros(*input_ids.shape, 128)

            return Output

    ids = np.arange(1000) % 128
    assert train_examples.evaluation_loss(Uniform(), ids) == pytest.approx(np.log(128), rel=1e-12)


@pytest.mark.parametrize("name", EXAMPLES)
def test_shipped_files_are_what_the_script_describes(name: str, train_examples: ModuleType) -> None:
    record = json.loads((example_path(name) / "training.json").read_text())
    example = train_examples.EXAMPLES[name]
    assert (record["architecture"], record["seed"]) == (example.architecture, example.seed)
    recipe = json.loads(json.dumps(train_examples.asdict(train_examples.Recipe(example.steps))))
    assert {key: record["recipe"][key] for key in recipe} == recipe
    readme = (example_path(name) / "README.md").read_text()
    assert readme == train_examples.readme_text(record)
