"""One safetensors file: values, laziness of the header, and every way a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from fiberscope.checkpoints.formats import TensorInfo, open_checkpoint
from fiberscope.errors import InputError
from tests.checkpoints.formats.writers import (
    one_sentence,
    raw_safetensors,
    refusal,
    tensors,
    write_directory,
)

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def opened(path: Path):
    weights = open_checkpoint(path).weights
    assert weights is not None
    return weights


def broken(tmp_path: Path, header: object, data: bytes = bytes(8)) -> str:
    write_directory(tmp_path, {})
    path = raw_safetensors(tmp_path / "model.safetensors", header, data)
    message = refusal(tmp_path)
    assert str(path) in message
    return message


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    written = tensors()
    weights = opened(write_directory(tmp_path, written))
    assert weights.format == "safetensors"
    assert weights.path == tmp_path / "model.safetensors"
    assert set(weights.tensors) == set(written)
    for name, value in written.items():
        info = TensorInfo(name, value.shape, value.dtype.name, tmp_path / "model.safetensors")
        assert weights.tensors[name] == info
        read = weights.read(name)
        assert read.dtype == value.dtype
        np.testing.assert_array_equal(read, value)
        mapped = weights.mapped(name)
        assert mapped.dtype == value.dtype
        np.testing.assert_array_equal(mapped, value)
        if value.dtype == np.float32 and value.size:
            assert not mapped.flags.writeable
        wide = weights.read_float64(name)
        assert wide.dtype == np.float64
        np.testing.assert_array_equal(wide, value.astype(np.float64))


@pytest.mark.parametrize(
    ("label", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F64", np.float64),
        ("F16", np.float16),
        ("I32", np.int32),
        ("I16", np.int16),
        ("I8", np.int8),
        ("U8", np.uint8),
        ("U16", np.uint16),
        ("U32", np.uint32),
        ("U64", np.uint64),
    ],
)
def test_number_formats(tmp_path: Path, label: str, dtype: type) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    write_directory(tmp_path, {})
    entry = {"dtype": label, "shape": [2, 3], "data_offsets": [0, value.nbytes]}
    raw_safetensors(tmp_path / "model.safetensors", {"x": entry}, value.tobytes())
    weights = opened(tmp_path)
    assert weights.tensors["x"].dtype == np.dtype(dtype).name
    assert weights.read("x").dtype == np.dtype(dtype)
    np.testing.assert_array_equal(weights.read_float64("x"), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(weights.mapped("x"), weights.read("x"))


def test_numbers_that_lie_between_their_places(tmp_path: Path) -> None:
    """A byte before them, so that no array can be laid over the file."""
    value = np.arange(5, dtype=np.float32)
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [5], "data_offsets": [1, 21]},
        "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [21, 21]},
    }
    write_directory(tmp_path, {})
    raw_safetensors(tmp_path / "model.safetensors", header, b"\x07" + value.tobytes())
    weights = opened(tmp_path)
    np.testing.assert_array_equal(weights.mapped("x"), value)
    assert weights.mapped("x").flags.aligned
    assert weights.mapped("none").shape == (0, 3)


def test_bytes_of_booleans_other_than_zero_and_one_are_true(tmp_path: Path) -> None:
    entry = {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}
    write_directory(tmp_path, {})
    raw_safetensors(tmp_path / "model.safetensors", {"x": entry}, bytes([0, 1, 7]))
    np.testing.assert_array_equal(opened(tmp_path).read_float64("x"), [0, 1, 1])


def test_alias_table(tmp_path: Path) -> None:
    written = {"wte.weight": np.ones((2, 2), np.float32), "b": np.ones(1, np.float32)}
    metadata = {"format": "pt", "lm_head.weight": "wte.weight", "b": "wte.weight"}
    weights = opened(write_directory(tmp_path, written, metadata))
    # "pt" is no tensor, and "b" is stored under its own name: neither is an alias.
    assert weights.aliases == {"lm_head.weight": "wte.weight"}
    np.testing.assert_array_equal(weights.read("lm_head.weight"), written["wte.weight"])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_that_are_not_finite_are_counted(tmp_path: Path, dtype: type) -> None:
    value = np.array([1.0, np.nan, np.inf, -np.inf]).astype(dtype)
    write_directory(tmp_path, {"x": value})
    weights = opened(tmp_path)
    with pytest.raises(InputError) as caught:
        weights.read_float64("x")
    message = one_sentence(caught.value)
    assert "'x' has 3 NaN or infinite values out of 4" in message
    assert str(tmp_path / "model.safetensors") in message
    assert np.isnan(weights.read_float64("x", check_finite=False)[1])


def test_a_name_that_is_not_stored(tmp_path: Path) -> None:
    with (
        opened(write_directory(tmp_path, tensors())) as weights,
        pytest.raises(InputError) as caught,
    ):
        weights.read("c.weight")
    assert "has no tensor 'c.weight'" in one_sentence(caught.value)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    weights = opened(write_directory(tmp_path, {"x": np.ones(100, np.float32)}))
    (tmp_path / "model.safetensors").write_bytes(bytes(50))
    for read in (weights.read, weights.mapped):
        with pytest.raises(InputError) as caught:
            read("x")
        assert "'x'" in one_sentence(caught.value)
    (tmp_path / "model.safetensors").unlink()
    for read in (weights.read, weights.mapped):
        with pytest.raises(InputError) as caught:
            read("x")
        assert "does not exist" in one_sentence(caught.value)


def test_every_truncation_and_any_trailing_byte_is_an_error(tmp_path: Path) -> None:
    write_directory(tmp_path, tensors())
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert str(path) in refusal(tmp_path)
    path.write_bytes(content + b"\0")
    assert f"and the file has {len(content) + 1} bytes" in refusal(tmp_path)


def test_an_empty_file_and_a_pointer(tmp_path: Path) -> None:
    write_directory(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is empty" in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    assert "git lfs pull" in refusal(tmp_path)


def test_header_lengths_that_cannot_be(tmp_path: Path) -> None:
    write_directory(tmp_path, {})
    for length in (2**63, 100_000_001, 50, 2**64 - 1):
        path = tmp_path / "model.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        assert str(path) in refusal(tmp_path)


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ([], "no JSON header"),
        (b"{\n'x': 1}", "line 2, column 1"),
        (b'{"x": "\xff"}', "not UTF-8"),
        (b'{"x": {}, "x": {}}', "the key 'x' twice"),
        (b'{"__metadata__": {"a": "\\ud800"}}', "surrogate"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "far too long"),
        (b'{"x": NaN}', "NaN"),
        (b'{"x": 1e999}', "beyond float64"),
        ({"__metadata__": []}, "__metadata__ is not an object"),
        ({"__metadata__": {"a": 1}, "x": F32}, "not text"),
        ({"x": 3}, "must have dtype, shape and data_offsets"),
        ({"x": {"dtype": "F32", "shape": [2]}}, "must have dtype, shape and data_offsets"),
        ({"x": F32 | {"more": 1}}, "must have dtype, shape and data_offsets"),
        ({"x": F32 | {"dtype": "F4"}}, "'x' has the unknown dtype 'F4'"),
        ({"x": F32 | {"dtype": ["F32"]}}, "unknown dtype"),
        ({"x": F32 | {"shape": 2}}, "malformed shape"),
        ({"x": F32 | {"shape": [-2]}}, "malformed shape"),
        ({"x": F32 | {"shape": [2.0]}}, "malformed shape"),
        ({"x": F32 | {"shape": [True, 2]}}, "malformed shape"),
        ({"x": F32 | {"shape": [2**70]}}, "malformed shape"),
        ({"x": F32 | {"shape": [3]}}, "takes 12 bytes and the header gives it 8"),
        ({"x": F32 | {"shape": [2**40]}}, "takes 4398046511104 bytes"),
        ({"x": F32 | {"shape": [0, 2**62, 2**62]}}, "impossible shape"),
        ({"x": F32 | {"shape": [1] * 33}}, "impossible shape"),
        ({"x": F32 | {"data_offsets": [8, 0]}}, "truncated or corrupt"),
        ({"x": F32 | {"data_offsets": [0, 8, 16]}}, "malformed"),
        ({"x": F32 | {"data_offsets": [8, 16]}}, "truncated"),
        ({"x": F32, "y": F32}, "overlaps"),
        ({"x": F32 | {"shape": [1], "data_offsets": [4, 8]}}, "follows a gap"),
        ({"x": F32 | {"shape": [1], "data_offsets": [0, 4]}}, "its tensors end at"),
        ({}, "its tensors end at"),
    ],
)
def test_malformed_headers(tmp_path: Path, header: object, part: str) -> None:
    assert part in broken(tmp_path, header)


def test_names_are_quoted_on_one_line_and_cut(tmp_path: Path) -> None:
    message = broken(tmp_path, {"a\nb" * 500: 3})
    assert "'a\\nb" in message
    assert len(message) < 500


def test_the_library_agrees_about_order_and_offsets(tmp_path: Path) -> None:
    """The header in another order than the data, as other writers leave it."""
    first, second = np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float64)
    header = {
        "second": {"dtype": "F64", "shape": [3], "data_offsets": [8, 32]},
        "first": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    write_directory(tmp_path, {})
    path = raw_safetensors(
        tmp_path / "model.safetensors",
        json.dumps(header).encode() + b"   ",
        first.tobytes() + second.tobytes(),
    )
    expected = safetensors.numpy.load_file(path)
    weights = opened(tmp_path)
    for name, value in expected.items():
        np.testing.assert_array_equal(weights.read(name), value)
