"""What is read, in which number format, and how much of it at a time."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Attention, Mlp, Observable, Residual
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.forward import outputs, probe_inputs
from tests.checkpoints.architecture import toy_configurations as toys
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name


def draw(laid_out, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(dtype) for name, shape in laid_out.tensors.items()
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_narrow_numbers_are_widened_before_anything_is_computed(config, dtype):
    laid_out = architecture(config)
    narrow = draw(laid_out, dtype)
    wide = {name: array.astype(np.float64) for name, array in narrow.items()}
    probe = probe_inputs(laid_out, 1, 2, 4)
    observable = laid_out.default_observable
    found = outputs(laid_out, lambda view: view.read(narrow), probe, observable)
    expected = outputs(laid_out, lambda view: view.read(wide), probe, observable)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


class Counting:
    """Reads fresh arrays and knows how many of their bytes are alive."""

    def __init__(self, weights):
        self.weights, self.alive, self.most = weights, 0, 0
        self.reads: list[str] = []

    def __call__(self, view):
        assert view.offset == 0.0
        array = view.read(self.weights).copy()
        self.reads.append(view.tensor)
        self.alive += array.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(array, self._gone, array.nbytes)
        return array

    def _gone(self, size):
        self.alive -= size


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
@pytest.mark.parametrize("rows", [None, 3])
def test_tensors_of_one_sublayer_are_held_at_a_time(config, rows):
    laid_out = architecture(config)
    read = Counting(draw(laid_out))
    observable = laid_out.default_observable
    outputs(laid_out, read, probe_inputs(laid_out, 1, 2, 4, vocabulary_rows=rows), observable)
    assert read.alive == 0

    def size(names):
        return 8 * sum(int(np.prod(laid_out.tensors[name])) for name in names)

    # A sublayer, its norm, and T5's shared table; or what starts a stream; or the head.
    parts = [
        {table.rows.tensor for table in stream.embedding.tables} for stream in laid_out.streams
    ]
    for stream in laid_out.streams:
        tables = set()
        for step in stream.steps:
            for branch in step.branches if isinstance(step, Residual) else ():
                for sublayer in branch.sublayers:
                    names = _tensors(sublayer) | tables
                    if isinstance(sublayer, Attention) and sublayer.position_table is not None:
                        tables = {sublayer.position_table.tensor}
                    parts.append(names | _tensors(branch.norm))
    if laid_out.head is not None:
        parts.append(_tensors(laid_out.head))
    # A post-norm before a sublayer is still held.
    norm = 2 * 8 * max(stream.width for stream in laid_out.streams)
    assert read.most <= max(size(names) for names in parts) + norm


def _tensors(part):
    """Names of the tensors that a part of the program views."""
    if part is None:
        return set()
    found = set()
    for value in vars(part).values():
        if hasattr(value, "tensor"):
            found.add(value.tensor)
        elif hasattr(value, "label"):
            found |= _tensors(value)
    return found


def test_a_tied_table_is_read_once_when_few_logits_are_observed():
    laid_out = architecture({**toys.GPT2, "architectures": ["GPT2LMHeadModel"]})
    read = Counting(draw(laid_out))
    probe = probe_inputs(laid_out, 1, 2, 4, vocabulary_rows=3)
    outputs(laid_out, read, probe, Observable.LOGITS)
    assert len(read.reads) == len(set(read.reads)) == len(laid_out.tensors)


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_tensor_is_read_but_the_unread_ones(config):
    """Read means that another value changes the outputs; what is called unread changes nothing."""
    laid_out = architecture(config)
    weights = draw(laid_out)
    observable = laid_out.default_observable
    if laid_out.head is not None:
        observable = Observable.LOGITS
    probe = probe_inputs(laid_out, 1, 3, min(5, laid_out.longest_input or 5))
    before = outputs(laid_out, lambda view: view.read(weights), probe, observable)
    parts = laid_out.unread
    parts += laid_out.unread_with_head if laid_out.head else laid_out.unread_without_head
    for part in parts:
        if "bucket" not in part.label:
            part.view.write(weights, np.full(part.view.shape, 7.0))
    after = outputs(laid_out, lambda view: view.read(weights), probe, observable)
    np.testing.assert_array_equal(after, before)
    whole = {part.view.tensor for part in parts}
    for stream in laid_out.streams:
        for step in stream.steps:
            for branch in step.branches if isinstance(step, Residual) else ():
                for sublayer in branch.sublayers:
                    assert isinstance(sublayer, Attention | Mlp)
                    for name in _tensors(sublayer) - whole:
                        changed = {**weights, name: 1.5 * weights[name] + 0.1}
                        now = outputs(laid_out, lambda v, c=changed: v.read(c), probe, observable)
                        if not name.endswith(("k_proj.bias", "key.bias", "k_lin.bias")):
                            assert np.abs(now - before).max() > 1e-9, name
