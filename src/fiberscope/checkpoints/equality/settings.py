"""Whether two architectures compute the same function of the same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from fiberscope.checkpoints.architecture.program import Architecture, Attention, Mlp, Rotary
from fiberscope.checkpoints.equality.rotary_order import ordered_rotary
from fiberscope.parameters import View

# What says nothing about the function: names, storage, and what is compared by its numbers.
_IGNORED = {
    "label",
    "name",
    "family",
    "tensors",
    "optional",
    "optional_copies",
    "aliases",
    "prefix",
    "buffers",
    "assumptions",
    "sizes",
    "siblings",
    "tied",
    "unread",
    "unread_without_head",
    "unread_with_head",
    "default_observable",
    "longest_input",
    "score_scale",
    "interleaved",
    "head",
    "sums",
}


def differences(first: Architecture, second: Architecture, *, with_head: bool = True) -> list[str]:
    """Settings that differ, each in words; empty when the parameters mean the same in both.

    A head is left out when only the hidden state is observed.
    """
    found = list(_differences(first, second, first.name))
    if not with_head:
        return found
    heads = first.head, second.head
    if (heads[0] is None) != (heads[1] is None):
        found.append("one of the two has a head, the other has none")
    elif heads[0] is not None:
        found += _differences(heads[0], heads[1], "head")
    return found


def _differences(a: Any, b: Any, where: str) -> Iterator[str]:
    if isinstance(a, View) and isinstance(b, View):
        if a.shape[-1:] != b.shape[-1:]:
            yield f"{where}: widths {a.shape[-1:]} and {b.shape[-1:]}"
        return
    if isinstance(a, Attention) and isinstance(b, Attention):
        yield from _attention(a, b, where)
        return
    if isinstance(a, Mlp) and isinstance(b, Mlp):
        for name in ("activation", "activation_name"):
            if getattr(a, name) != getattr(b, name):
                yield f"{a.label}: {name.replace('_', ' ')} differs"
        if (a.gate is None) != (b.gate is None):
            yield f"{a.label}: one is gated, the other is not"
        return
    if type(a) is not type(b):
        # A bias that one of the two lacks is a zero: compared by its numbers.
        if not (isinstance(a, View) or isinstance(b, View)):
            yield f"{where}: {_short(a)} and {_short(b)}"
        return
    if is_dataclass(a):
        label = getattr(a, "label", "") or where
        for field in fields(a):
            if field.name not in _IGNORED:
                yield from _differences(
                    getattr(a, field.name),
                    getattr(b, field.name),
                    f"{label} {field.name.replace('_', ' ')}",
                )
        return
    if isinstance(a, tuple):
        if len(a) != len(b):
            what = "the depths differ" if where.endswith(" steps") else where
            yield f"{what}: {len(a)} and {len(b)} of them"
            return
        for one, other in zip(a, b, strict=True):
            yield from _differences(one, other, where)
        return
    if isinstance(a, Mapping) or callable(a):
        return
    if a != b:
        yield f"{where}: {_short(a)} and {_short(b)}"


def _attention(a: Attention, b: Attention, where: str) -> Iterator[str]:
    for name in ("causal", "window", "relative_positions", "memory"):
        if getattr(a, name) != getattr(b, name):
            yield f"{a.label}: {name.replace('_', ' ')} differs"
    for name in ("query_norm", "key_norm"):
        one, other = getattr(a, name), getattr(b, name)
        if (one is None) != (other is None) or (
            one is not None and (one.kind, one.epsilon) != (other.kind, other.epsilon)
        ):
            yield f"{a.label}: {name.replace('_', ' ')} differs"
    turned: tuple[Rotary | None, Rotary | None] = ordered_rotary(a), ordered_rotary(b)
    if turned[0] != turned[1]:
        yield f"{a.label}: the rotary frequencies differ"
    for name in ("key_width", "heads_per_group"):
        if getattr(a, name) != getattr(b, name):
            yield f"{a.label}: {name.replace('_', ' ')} {getattr(a, name)} and {getattr(b, name)}"


def _short(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__ if is_dataclass(value) else repr(value)
