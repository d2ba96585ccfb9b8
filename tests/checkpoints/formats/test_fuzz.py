"""Any damage to a file gives an InputError of one sentence, or a read of the file as it stands."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401 - gives numpy the names of narrow formats
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.errors import InputError
from tests.checkpoints.formats.writers import (
    llama_tensors,
    one_sentence,
    tensors,
    write_directory,
    write_llama,
    write_sharded,
)

BUDGET = settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
INDEX = "model.safetensors.index.json"


def _contents() -> tuple[dict[str, bytes], dict[str, bytes], bytes]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        single = write_directory(root / "single", tensors(), {"alias": "a.weight"})
        names = list(tensors())
        sharded = write_sharded(
            root / "sharded",
            [{name: tensors()[name] for name in part} for part in (names[:3], names[3:])],
        )
        quantised = write_llama(
            root / "m.gguf", llama_tensors(), gguf.GGMLQuantizationType.Q4_1
        ).read_bytes()
        return (
            {path.name: path.read_bytes() for path in single.iterdir()},
            {path.name: path.read_bytes() for path in sharded.iterdir()},
            quantised,
        )


SINGLE, SHARDED, GGUF = _contents()
SAFETENSORS_HEADER = 8 + int.from_bytes(SINGLE["model.safetensors"][:8], "little")
GGUF_HEADER = 2048  # metadata and tensor table; the rest are values


@st.composite
def damage(draw: st.DrawFn, content: bytes, header: int) -> bytes:
    """Cut, flip, overwrite and insert, mostly in the header."""
    result = bytearray(content)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        reach = header if draw(st.integers(0, 2)) else len(result)
        at = draw(st.integers(0, max(min(reach, len(result)) - 1, 0)))
        kind = draw(
            st.sampled_from(["flip", "flip", "byte", "byte", "number", "insert", "remove", "cut"])
        )
        if not result:
            break
        if kind == "flip":
            result[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte":
            result[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            result[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "remove":
            del result[at : at + draw(st.integers(1, 9))]
        elif kind == "number":
            number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]))
            result[at : at + 8] = number.to_bytes(8, "little")
        else:
            del result[at:]
    return bytes(result)


def outcome(location: Path) -> dict[str, np.ndarray] | None:
    """Every tensor, or None after an InputError; anything else propagates and fails the test."""
    try:
        weights = open_checkpoint(location).weights
        if weights is None:
            return {}
        values = {}
        for name, info in weights.tensors.items():
            values[name] = weights.read(name)
            assert values[name].shape == info.shape
            wide = weights.read_float64(name, check_finite=False)
            if not np.isfinite(wide).all():
                with pytest.raises(InputError, match="NaN or infinite"):
                    weights.read_float64(name)
        return values
    except InputError as error:
        one_sentence(error)
        return None


def placed(files: dict[str, bytes], folder: str) -> Path:
    for name, content in files.items():
        (Path(folder) / name).write_bytes(content)
    return Path(folder)


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


@BUDGET
@given(damage(SINGLE["model.safetensors"], SAFETENSORS_HEADER))
def test_safetensors(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = placed(SINGLE | {"model.safetensors": content}, folder)
        values = outcome(path)
        if values is None:
            return
        # What is accepted here, the format's own library accepts with the same values.
        with safetensors.safe_open(path / "model.safetensors", "np") as expected:
            assert set(expected.keys()) == set(values)
            for name, value in values.items():
                if value.dtype != np.bool_ and value.dtype.itemsize > 1:
                    assert same_bytes(value, expected.get_tensor(name))


@BUDGET
@given(damage(SHARDED[INDEX], 10_000))
def test_index(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        values = outcome(placed(SHARDED | {INDEX: content}, folder))
        if values is not None:
            # The index only says where a tensor is: whatever is accepted is the undamaged model.
            assert set(values) == set(tensors())
            for name, value in tensors().items():
                assert same_bytes(values[name], value)


@BUDGET
@given(damage(SINGLE["config.json"], 10_000))
def test_configuration(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = placed(SINGLE | {"config.json": content}, folder)
        for location in (path, path / "config.json"):
            if outcome(location) is not None:
                config = open_checkpoint(location).config
                assert config == json.loads(content)


@BUDGET
@given(damage(GGUF, GGUF_HEADER))
def test_gguf(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = placed({"m.gguf": content}, folder) / "m.gguf"
        values = outcome(path)
        if values is None:
            return
        # What is accepted here, the gguf package reads with the same shapes.
        expected = gguf.GGUFReader(path).tensors
        assert len(expected) == len(values)
        for value, tensor in zip(values.values(), expected, strict=True):
            assert value.shape == tuple(reversed(tensor.shape.tolist()))
            with np.errstate(all="ignore"):  # damaged scales overflow
                other = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            # The rows of queries and keys come back in another order: compare as multisets.
            np.testing.assert_array_equal(np.sort(value, axis=None), np.sort(other, axis=None))


def test_the_undamaged_files_are_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert set(outcome(placed(SINGLE, folder)) or {}) == set(tensors())
    with tempfile.TemporaryDirectory() as folder:
        assert set(outcome(placed(SHARDED, folder)) or {}) == set(tensors())
    with tempfile.TemporaryDirectory() as folder:
        path = placed({"m.gguf": GGUF}, folder) / "m.gguf"
        assert set(outcome(path) or {}) == set(llama_tensors())
