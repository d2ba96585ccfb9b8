"""When the symmetries are the whole fiber: conditions that a report must state."""

from __future__ import annotations

from dataclasses import dataclass

from fiberscope.checkpoints.architecture.program import Residual
from fiberscope.checkpoints.ledger.rules.heads import (
    key_inputs,
    query_inputs,
    unrotated_rows,
)
from fiberscope.checkpoints.ledger.wiring import Role, Wiring


@dataclass(frozen=True)
class Condition:
    """A statement with its numbers, and whether it holds here."""

    statement: str
    holds: bool


def conditions(wiring: Wiring) -> tuple[Condition, ...]:
    """All conditions under which ``identified`` is exact; one that fails makes it a bound."""
    found = [_width_condition(wiring)]
    if wiring.architecture.tokens is not None:
        found += _vocabulary(wiring, wiring.architecture.tokens)
    else:
        found += _patches(wiring)
    found += _frequencies(wiring)
    found += _narrow(wiring)
    found += [Condition(statement, True) for statement in wiring.architecture.assumptions]
    return tuple(found)


def excess(width: int, left: int, right: int) -> int:
    """What the fiber of a product has beyond the GL(width)-orbit (widths between the inputs)."""
    low, high = min(left, right), max(left, right)
    return max(0, width - low) * max(0, high - width)


def _width_condition(wiring: Wiring) -> Condition:
    """Heads no wider than what they read, or the fiber is larger than the group's orbit."""
    beyond = 0
    widths = (0, 0)
    smallest = None
    for a in wiring.attentions:
        query, key = wiring.point_of(a, Role.QUERY), wiring.point_of(a, Role.KEY)
        value, segment = wiring.point_of(a, Role.VALUE), wiring.segment_of(a)
        if a.query_norm is None:
            left = a.heads_per_group * query_inputs(query, a)
            beyond += a.groups * excess(unrotated_rows(a), left, key_inputs(key, a, rotated=False))
        into = value.width - value.blind
        out = a.heads_per_group * (segment.width - segment.blind)
        beyond += a.groups * excess(a.value_width, into, out)
        widths = (max(widths[0], a.key_width), max(widths[1], a.value_width))
        limit = min(key.width - key.blind, into, segment.width - segment.blind)
        smallest = limit if smallest is None else min(smallest, limit)
    text = (
        f"head widths (query/key {widths[0]}, value {widths[1]}) at most the effective input "
        f"width ({smallest})"
    )
    if beyond:
        text += f": the fiber is larger by {beyond:,}"
    return Condition(text, beyond == 0)


def _vocabulary(wiring: Wiring, tokens: int) -> list[Condition]:
    width = max(segment.width for segment in wiring.segments)
    found = [
        Condition(
            f"vocabulary ({tokens:,}) larger than the width ({width:,}), so that the embedding "
            "spans the stream",
            tokens > width,
        )
    ]
    for a in wiring.attentions:
        if a.query_norm is not None:
            r = a.key_width
            found.append(
                Condition(
                    f"vocabulary x (r - 1) = {tokens * (r - 1):,} at least r (d + 1) = "
                    f"{r * (width + 1):,} for normalised queries and keys",
                    tokens * (r - 1) >= r * (width + 1),
                )
            )
            break
    parallel = [
        step
        for stream in wiring.architecture.streams
        for step in stream.steps
        if isinstance(step, Residual) and sum(len(b.sublayers) for b in step.branches) > 1
    ]
    if parallel:
        f = max(mlp.neurons for mlp in wiring.mlps)
        # Fitted on twins and confirmed on unseen ones, not proved.
        extra = f * (2 * width - 1) + width**2 - 1 - (width - 1) * tokens
        text = (
            f"parallel residual: (d - 1) x vocabulary = {(width - 1) * tokens:,} at least "
            f"f (2d - 1) + d^2 - 1 = {f * (2 * width - 1) + width**2 - 1:,}, so that the first "
            "MLP sees enough points"
        )
        if extra > 0:
            text += f": about {extra:,} more are undetermined (fitted on small models)"
        found.append(Condition(text, extra <= 0))
    return found


def _patches(wiring: Wiring) -> list[Condition]:
    size = wiring.architecture.input_dimension or 0
    positions = wiring.architecture.longest_input or 0
    width = max(segment.width for segment in wiring.segments)
    spans = Condition(
        f"entries of a patch ({size:,}) and positions ({positions:,}) together at least the "
        f"width ({width:,}), so that the embedding spans the stream",
        size + positions >= width,
    )
    if wiring.head is None:
        return [spans]
    layers = len({attention.layer for attention in wiring.attentions})
    return [
        spans,
        Condition(
            f"at least two layers ({layers}): the head reads the class token alone, whose query "
            "in the first layer is one fixed vector",
            layers > 1,
        ),
    ]


def _narrow(wiring: Wiring) -> list[Condition]:
    """A tied table behind a LayerNorm of three features keeps one more direction."""
    point = wiring.tied_point
    if point is None or not point.blind or point.width >= 4:
        return []
    return [Condition(f"width ({point.width}) at least 4 for tied embeddings", False)]


def _frequencies(wiring: Wiring) -> list[Condition]:
    for a in wiring.attentions:
        if a.rotary is not None:
            distinct = len(set(a.rotary.frequencies)) == len(a.rotary.frequencies)
            return [
                Condition(
                    f"the {len(a.rotary.planes)} rotary frequencies are distinct and nonzero",
                    distinct and all(a.rotary.frequencies),
                )
            ]
    return []
