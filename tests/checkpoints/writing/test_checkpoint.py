"""Written checkpoints against the safetensors library, transformers, and what was there before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import fiberscope
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.opening import OpenModel, open_model
from fiberscope.checkpoints.writing import (
    RECORD,
    check_output,
    copy_checkpoint,
    norm_gains,
    write_checkpoint,
)
from fiberscope.errors import InputError
from tests.checkpoints.formats.writers import llama_tensors, write_llama
from tests.report.reports import TINY_GPT2, TINY_LLAMA, checkpoint, random_tensors


def pairs(model: OpenModel, factor: float = 1.0) -> Iterator[tuple[str, np.ndarray]]:
    assert model.source is not None and model.matching is not None
    for name, stored in model.matching.stored.items():
        yield name, model.source.read_float64(stored) * factor


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def nothing_but(folder: Path, *names: str) -> None:
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(names)


@pytest.fixture
def model(tmp_path: Path) -> OpenModel:
    folder = checkpoint(tmp_path / "in", TINY_LLAMA, random_tensors(TINY_LLAMA))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"the same weights")
    return open_model(folder)


def test_values_names_and_companions(model: OpenModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = tree(tmp_path / "in")
    written = write_checkpoint(model, out, pairs(model, 2.0), {"action": "doubled"})
    assert tree(tmp_path / "in") == before
    expected = load_file(tmp_path / "in" / "model.safetensors")
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], 2 * values)
    names = set(tree(out))
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        os.path.join("1_Pooling", "config.json"),
    }
    assert tree(out)["config.json"] == before["config.json"]
    assert written.dtypes == ("float32",)
    assert written.byte_count == sum(values.nbytes for values in expected.values())
    assert "'onnx/'" in written.notes[0] and "pytorch_model.bin" in written.notes[0]
    with safe_open(out / "model.safetensors", "np") as file:
        record = json.loads(file.metadata()[RECORD])
    assert record["action"] == "doubled"
    assert record["version"] == fiberscope.__version__
    assert oct(out.stat().st_mode & 0o777) == oct((tmp_path / "in").stat().st_mode & 0o777)
    nothing_but(tmp_path, "in", "out")


def test_records_of_earlier_runs_are_kept(model: OpenModel, tmp_path: Path) -> None:
    write_checkpoint(model, tmp_path / "a", pairs(model), {"action": "first"})
    again = open_model(tmp_path / "a")
    write_checkpoint(again, tmp_path / "b", pairs(again), {"action": "second"})
    last = open_model(tmp_path / "b")
    written = write_checkpoint(last, tmp_path / "c", pairs(last), {"action": "third"})
    assert written.record is not None
    assert [entry["action"] for entry in written.record["earlier"]] == ["first", "second"]
    assert all("earlier" not in entry for entry in written.record["earlier"])


def test_any_order_and_every_tensor_once(model: OpenModel, tmp_path: Path) -> None:
    backwards = list(pairs(model))[::-1]
    write_checkpoint(model, tmp_path / "out", backwards, {})
    found, expected = (load_file(tmp_path / d / "model.safetensors") for d in ("out", "in"))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    for wrong in (backwards[1:], backwards + backwards[:1]):
        with pytest.raises(ValueError, match=r"missing|twice"):
            write_checkpoint(model, tmp_path / "wrong", wrong, {})
    nothing_but(tmp_path, "in", "out")


def sharded(folder: Path, config: dict[str, Any], dtype: Any) -> Path:
    tensors = {name: value.astype(dtype) for name, value in random_tensors(config).items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_and_dtype(tmp_path: Path) -> None:
    config = {**TINY_LLAMA, "torch_dtype": "bfloat16"}
    source = sharded(tmp_path / "in", config, ml_dtypes.bfloat16)
    model = open_model(source)
    same = write_checkpoint(model, tmp_path / "same", pairs(model), {})
    assert same.dtypes == ("bfloat16",)
    before, after = tree(source), tree(tmp_path / "same")
    assert before.keys() == after.keys()
    for name in ("config.json", "model.safetensors.index.json"):
        assert before[name] == after[name]
    wide = write_checkpoint(model, tmp_path / "wide", pairs(model, 1 / 3), {}, dtype="float64")
    index = json.loads((tmp_path / "wide" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == wide.byte_count == 4 * same.byte_count
    assert json.loads((tmp_path / "wide" / "config.json").read_text())["torch_dtype"] == "float64"
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "np") as old, safe_open(tmp_path / "wide" / file.name, "np") as new:
            assert set(old.keys()) == set(new.keys())
            for name in old.keys():  # noqa: SIM118 - not a mapping
                expected = old.get_tensor(name).astype(np.float64) * (1 / 3)
                assert np.array_equal(new.get_tensor(name), expected)


def test_a_tied_tensor_stored_twice_stays_in_step(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_GPT2)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    tensors["transformer.h.0.attn.bias"] = np.tril(np.ones((1, 1, 6, 6), dtype=bool))
    model = open_model(checkpoint(tmp_path / "in", TINY_GPT2, tensors))
    write_checkpoint(model, tmp_path / "out", pairs(model, 3.0), {}, dtype="float16")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert np.array_equal(found["lm_head.weight"], found["transformer.wte.weight"])
    assert found["lm_head.weight"].dtype == np.float16
    assert np.array_equal(found["transformer.h.0.attn.bias"], tensors["transformer.h.0.attn.bias"])


def test_gguf_becomes_a_directory(tmp_path: Path) -> None:
    values = llama_tensors()
    file = write_llama(tmp_path / "m.gguf", values, gguf.GGMLQuantizationType.Q8_0)
    model = open_model(file)
    written = write_checkpoint(model, tmp_path / "out", pairs(model), {})
    again = open_model(tmp_path / "out")
    assert again.architecture.name == "LlamaForCausalLM"
    assert written.dtypes == ("float32",)
    for (name, before), (other, after) in zip(pairs(model), pairs(again), strict=True):
        assert name == other
        assert np.array_equal(before, after)


@pytest.mark.torch
def test_transformers_loads_it_unchanged(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    path = sharded(tmp_path / "in", {**TINY_LLAMA, "torch_dtype": "bfloat16"}, ml_dtypes.bfloat16)
    model = open_model(path)
    write_checkpoint(model, tmp_path / "out", pairs(model, 1 / 3), {}, dtype="float64")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    state = loaded.state_dict()
    for name, values in pairs(model, 1 / 3):
        assert state[name].dtype == torch.float64
        assert np.array_equal(state[name].numpy(), values)


def test_copies_are_byte_for_byte(model: OpenModel, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    copied = copy_checkpoint(
        model, tmp_path / "out", verify=lambda path: seen.append({*tree(path)})
    )
    before, after = tree(tmp_path / "in"), tree(tmp_path / "out")
    assert after == {name: before[name] for name in after}
    assert seen == [set(after)]
    assert copied.record is None
    path = sharded(tmp_path / "shards", TINY_LLAMA, np.float32)
    copy_checkpoint(open_model(path), tmp_path / "shards2")
    assert tree(path) == tree(tmp_path / "shards2")


# --- nothing is lost ---------------------------------------------------------------------------


def test_existing_targets_are_refused(model: OpenModel, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "precious.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to(taken)
    before = tree(tmp_path)
    for target in (taken, tmp_path / "file", tmp_path / "link", tmp_path / "in"):
        for overwrite in (False, True):
            with pytest.raises(InputError):
                write_checkpoint(model, target, pairs(model), {}, overwrite=overwrite)
    for target in (tmp_path, tmp_path / "in" / "out", tmp_path / "no" / "out"):
        with pytest.raises(InputError):
            check_output(model, target, overwrite=True)
    assert tree(tmp_path) == before


def test_an_earlier_output_is_replaced_only_when_asked(model: OpenModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_checkpoint(model, out, pairs(model, 2.0), {"action": "first"})
    with pytest.raises(InputError, match="--overwrite"):
        write_checkpoint(model, out, pairs(model), {})
    seen = []

    def verify(staging: Path) -> str:
        seen.append(load_file(out / "model.safetensors")["model.norm.weight"][0])
        return "fine"

    written = write_checkpoint(
        model, out, pairs(model, 4.0), {"action": "second"}, overwrite=True, verify=verify
    )
    first, second = 2.0, 4.0
    gain = load_file(tmp_path / "in" / "model.safetensors")["model.norm.weight"][0]
    assert written.verification == "fine"
    assert seen == [first * gain]
    assert load_file(out / "model.safetensors")["model.norm.weight"][0] == second * gain
    nothing_but(tmp_path, "in", "out")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, InputError, MemoryError])
@pytest.mark.parametrize("when", ["tensors", "verify"])
def test_whatever_interrupts_leaves_everything_as_it_was(
    model: OpenModel, tmp_path: Path, error: type[BaseException], when: str
) -> None:
    out = tmp_path / "out"
    write_checkpoint(model, out, pairs(model), {})
    before = tree(tmp_path)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for number, pair in enumerate(pairs(model, 5.0)):
            if when == "tensors" and number == 7:
                raise error("stop")
            yield pair

    def verify(path: Path) -> None:
        if when == "verify":
            raise error("stop")

    with pytest.raises(error, match="stop"):
        write_checkpoint(model, out, tensors(), {}, overwrite=True, verify=verify)
    assert tree(tmp_path) == before
    nothing_but(tmp_path, "in", "out")


def test_refused_values_leave_nothing(model: OpenModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="beyond the range of float16"):
        write_checkpoint(model, tmp_path / "out", pairs(model, 1e6), {}, dtype="float16")
    nothing_but(tmp_path, "in")


CHILD = """
import resource, sys, time
from pathlib import Path
import signal
from fiberscope.checkpoints.opening import open_model
from fiberscope.checkpoints.writing import write_checkpoint
source, target, mode = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
model = open_model(source)
def tensors():
    for number, (name, stored) in enumerate(model.matching.stored.items()):
        if mode == "wait" and number == 3:
            print("ready", flush=True)
            sys.stdin.read()  # closed once the signal is sent
            for _ in range(600):  # where another thread took the signal, it is seen between these
                time.sleep(0.1)
        yield name, model.source.read_float64(stored)
if mode == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_checkpoint(model, Path(target), tensors(), {}, overwrite=True)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_file_system_that_refuses(model: OpenModel, tmp_path: Path) -> None:
    write_checkpoint(model, tmp_path / "out", pairs(model), {})
    before = tree(tmp_path)
    finished = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "in", tmp_path / "out", "full"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.startswith("InputError"), finished
    assert "file too large" in finished.stdout
    assert tree(tmp_path) == before
    nothing_but(tmp_path, "in", "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(model: OpenModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def full(self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        stream = real(self, mode, *rest, **named)
        if mode == "xb":
            target = os.open("/dev/full", os.O_WRONLY)
            os.dup2(target, stream.fileno())
            os.close(target)
        return stream

    monkeypatch.setattr(Path, "open", full)
    # A device cannot be cut to a size; an ordinary file on a full disk can.
    monkeypatch.setattr(
        "fiberscope.checkpoints.writing.safetensors_file.SafetensorsFile._reserve",
        lambda self: None,
    )
    with pytest.raises(InputError, match="no space left on device"):
        write_checkpoint(model, tmp_path / "out", pairs(model), {})
    monkeypatch.undo()
    nothing_but(tmp_path, "in")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(model: OpenModel, tmp_path: Path, number: int) -> None:
    before = tree(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path / "in", tmp_path / "out", "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 2
        child.send_signal(number)
        child.stdin.close()
        child.wait(timeout=300)  # a signal without effect lets it end by itself before
    assert child.returncode != 0
    assert tree(tmp_path) == before
    nothing_but(tmp_path, "in")


def test_gains_are_known() -> None:
    gains = norm_gains(architecture({**TINY_LLAMA}))
    assert {name for name in gains if "norm" in name} == set(gains)
    assert len(gains) == 5
    assert gains["model.norm.weight"] == frozenset(range(8))
    gemma = {**TINY_LLAMA, "model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
    assert norm_gains(architecture({**gemma, "head_dim": 2})) == {}


PEAK = """
import sys
from pathlib import Path
from fiberscope.checkpoints.opening import open_model
from fiberscope.checkpoints.writing import write_checkpoint
model = open_model(sys.argv[1])
pairs = ((n, model.source.read_float64(s)) for n, s in model.matching.stored.items())
write_checkpoint(model, Path(sys.argv[2]), pairs, {})
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    config = {**TINY_LLAMA, "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 12}
    tensors = {n: v.astype(np.float16) for n, v in random_tensors(config).items()}
    path = checkpoint(tmp_path / "in", config, tensors)
    total = sum(value.nbytes for value in tensors.values())
    finished = subprocess.run(
        [sys.executable, "-c", PEAK, path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    base = 110_000_000
    assert 4 * total > 500_000_000  # in float64
    assert int(finished.stdout) < base + 8 * 8 * 512 * 4096
