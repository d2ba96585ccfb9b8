"""Witnesses: exceptional steps against the published classes, files, refusals."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.moves import (
    Catalogue,
    Key,
    RandomMove,
    Step,
    Witness,
    load_witness,
    save_witness,
)
from fiberscope.checkpoints.moves.exceptional import (
    EQUAL_GAINS,
    GROUP_MIXING,
    HEAD_SHIFT,
    NEURON_MIXING,
    NEURON_SHIFT,
)
from fiberscope.errors import InputError
from tests.checkpoints.ledger.toys import gpt2, llama

Arrays = dict[str, np.ndarray]
ATTENTION = "model.layers.0.self_attn."


def random_parameters(config: dict[str, Any], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.4, shape)
        for name, shape in architecture(dict(config)).tensors.items()
    }


def random_witness(config: dict[str, Any], seed: int = 0) -> tuple[Witness, Arrays]:
    parameters = random_parameters(config)
    move = RandomMove(Catalogue(architecture(dict(config)), Observable.LOGITS), seed)
    moved = dict(move.tensors(lambda name: parameters[name].copy()))
    return move.witness, moved


def one_step(config: dict[str, Any], step: Step) -> Witness:
    return Witness(architecture(dict(config)), Observable.LOGITS, (step,))


GROUPED = llama(num_attention_heads=6, num_key_value_heads=3, head_dim=4)


def equal_heads() -> Arrays:
    """Six heads in three groups of four rows: two groups alike, and two heads of the third."""
    parameters = random_parameters(GROUPED)
    query = parameters[ATTENTION + "q_proj.weight"].reshape(3, 2, 4, 6)
    key = parameters[ATTENTION + "k_proj.weight"].reshape(3, 4, 6)
    query[2], key[2] = query[0], key[0]
    query[1, 1] = query[1, 0]
    return parameters


def equal_neurons() -> Arrays:
    parameters = random_parameters(GROUPED)
    for name in ("gate_proj", "up_proj"):
        rows = parameters[f"model.layers.0.mlp.{name}.weight"]
        rows[[2, 4]] = rows[0]
    return parameters


CASES = [
    (GROUP_MIXING, "heads", {"groups": [0, 2]}, (8, 8)),
    (HEAD_SHIFT, "heads", {"group": 1, "heads": [0, 1]}, (1, 4, 6)),
    (NEURON_SHIFT, "neurons", {"neurons": [0, 2, 4]}, (2, 6)),
    (NEURON_MIXING, "neurons", {"neurons": [0, 2, 4]}, (3, 3)),
]


@pytest.mark.torch
@pytest.mark.parametrize(("mechanism", "kind", "data", "shape"), CASES)
def test_exceptional_steps_keep_the_published_function(
    mechanism: str, kind: str, data: dict[str, Any], shape: tuple[int, ...]
) -> None:
    pytest.importorskip("torch").set_num_threads(1)
    pytest.importorskip("transformers")
    from fiberscope.checkpoints.twins import build_twin

    parameters = equal_heads() if kind == "heads" else equal_neurons()
    twin = build_twin(GROUPED, "logits", 0, inputs=4)
    catalogue = Catalogue(architecture(GROUPED), Observable.LOGITS)
    wiring = catalogue.wiring
    where = (wiring.attentions if kind == "heads" else wiring.mlps)[0].label
    element = np.random.default_rng(0).standard_normal(shape)
    integers = {name: np.array(value) for name, value in data.items()}
    witness = one_step(GROUPED, Step(Key(mechanism, 0, where), element, integers))
    moved = witness.apply(parameters)
    changed = max(float(np.abs(moved[n] - parameters[n]).max()) for n in parameters)
    assert changed > 0.1
    before = twin.observe(parameters)
    change = np.abs(twin.observe(moved) - before).max() / np.abs(before).max()
    assert change < 1e-13 * max(d.condition for d in witness.describe())
    back = witness.inverse().apply(moved)
    assert all(np.allclose(back[n], parameters[n], atol=1e-10) for n in parameters)
    # What is not equal is refused.
    with pytest.raises(InputError, match="needs numbers to be equal"):
        witness.apply(random_parameters(GROUPED))


def test_compose_and_describe() -> None:
    config = llama()
    first, _moved = random_witness(config, 1)
    both = first.compose(first.inverse())
    parameters = random_parameters(config)
    back = both.apply(parameters)
    assert all(np.allclose(back[n], parameters[n], atol=1e-12) for n in parameters)
    gathered = {d.mechanism: d for d in first.mechanisms()}
    assert gathered["value/output basis change"].places == 1
    assert 1 < gathered["value/output basis change"].condition <= 4.0001
    assert gathered["residual rotation"].condition == pytest.approx(1.0)
    with pytest.raises(InputError, match="cannot be composed"):
        first.compose(random_witness(gpt2())[0])


@pytest.mark.parametrize("config", [gpt2(), llama(tie_word_embeddings=True), llama()])
def test_files_keep_every_bit(config: dict[str, Any], tmp_path: Path) -> None:
    witness, moved = random_witness(config)
    save_witness(witness, tmp_path / "w.npz")
    loaded = load_witness(tmp_path / "w.npz", architecture(dict(config)))
    assert loaded.observable is witness.observable
    again = loaded.apply(random_parameters(config))
    assert all(np.array_equal(again[name], moved[name]) for name in moved)
    with np.load(tmp_path / "w.npz", allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
    assert header["schema"] == "fiberscope/witness/1"
    assert header["architecture"] == witness.architecture.name
    with pytest.raises(InputError, match="exists"):
        save_witness(witness, tmp_path / "w.npz")
    save_witness(witness, tmp_path / "w.npz", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["w.npz"]


def rewritten(path: Path, change: Any) -> Path:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path.with_name("changed.npz"), **arrays)
    return path.with_name("changed.npz")


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    config = llama()
    witness, _ = random_witness(config)
    path = tmp_path / "w.npz"
    save_witness(witness, path)
    other = [
        (gpt2(), "is a witness of LlamaForCausalLM"),
        (llama(vocab_size=20), "embed_tokens"),
        (llama(tie_word_embeddings=True), "lm_head"),
    ]
    for wrong, words in other:
        with pytest.raises(InputError, match=words) as caught:
            load_witness(path, architecture(dict(wrong)))
        assert "\n" not in str(caught.value)

    def schema(header: Any, arrays: Any) -> None:
        header["schema"] = "fiberscope/witness/9"

    def mechanism(header: Any, arrays: Any) -> None:
        header["steps"][0]["mechanism"] = "magic"

    def shape(header: Any, arrays: Any) -> None:
        arrays["0/element/0"] = arrays["0/element/0"][:-1]

    def infinite(header: Any, arrays: Any) -> None:
        arrays["0/element/0"] = np.full_like(arrays["0/element/0"], np.inf)

    def incomplete(header: Any, arrays: Any) -> None:
        del arrays["0/element/0"]

    def exceptional(header: Any, arrays: Any) -> None:
        header["steps"][0].update(mechanism=EQUAL_GAINS, data=[])

    def text(header: Any, arrays: Any) -> None:
        arrays["0/element/0"] = np.array("x")

    for change in (schema, mechanism, shape, infinite, incomplete, exceptional, text):
        with pytest.raises(InputError) as caught:
            load_witness(rewritten(path, change), architecture(config))
        assert "\n" not in str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    for content in (b"", b"not a zip", b"PK\x03\x04 broken"):
        path.write_bytes(content)
        with pytest.raises(InputError):
            load_witness(path, architecture(llama()))
    np.save(tmp_path / "w.npy", np.zeros(3))
    np.savez(tmp_path / "empty.npz", a=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "pickle.npz", "w") as archive:
        archive.writestr("header.npy", b"\x80\x04N.")
    for name in ("w.npy", "empty.npz", "pickle.npz", "missing.npz"):
        with pytest.raises(InputError):
            load_witness(tmp_path / name, architecture(llama()))
