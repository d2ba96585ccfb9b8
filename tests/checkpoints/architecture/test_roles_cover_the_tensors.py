"""Every stored entry has a role, and one role only unless it is tied or shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.parameters import View
from tests.checkpoints.architecture.toy_configurations import TOYS, toy_name


def views(part: object) -> Iterator[View]:
    """All views below a part of an architecture."""
    if isinstance(part, View):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            if field.name != "sums":  # parts of the tables
                yield from views(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from views(item)
    else:
        assert part is None or isinstance(part, Mapping | str | int | float) or part.name


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_every_entry_has_one_role(config):
    laid_out = architecture(config)
    roles = {name: np.zeros(shape, dtype=int) for name, shape in laid_out.tensors.items()}
    for view in views((laid_out.streams, laid_out.head)):
        view.window(roles[view.tensor])[...] += 1
    unread = {name: np.zeros(shape, dtype=int) for name, shape in laid_out.tensors.items()}
    for view in views(laid_out.unread):
        view.window(unread[view.tensor])[...] += 1
    for name, counts in roles.items():
        dead = unread[name]
        assert dead.max(initial=0) <= 1, name
        if name.endswith("relative_attention_bias.weight"):
            assert (counts == 1).all()  # its dead buckets are rows of the table
            continue
        assert (counts[dead == 1] == 0).all(), name
        if "word_embeddings" in name or "wte" in name or "embed" in name or name == "shared.weight":
            # Written by one stream or two, and read by a tied head.
            assert (counts[dead == 0] >= 1).all(), name
        else:
            assert (counts[dead == 0] == 1).all(), name


@pytest.mark.parametrize("config", TOYS, ids=toy_name)
def test_what_is_written_through_a_view_is_read_back(config):
    laid_out = architecture(config)
    rng = np.random.default_rng(3)
    weights = {name: np.zeros(shape) for name, shape in laid_out.tensors.items()}
    for view in views((laid_out.streams, laid_out.head, laid_out.unread)):
        value = rng.standard_normal(view.shape)
        view.write(weights, value)
        np.testing.assert_allclose(view.read(weights), value, rtol=0, atol=1e-15)


def test_sums_are_parts_of_the_tables():
    for config in TOYS:
        laid_out = architecture(config)
        for stream in laid_out.streams:
            stored = {table.rows.tensor for table in stream.embedding.tables}
            for summands in stream.embedding.sums:
                assert {view.tensor for view in summands} <= stored
                assert all(view.shape[-1] == stream.width for view in summands)
