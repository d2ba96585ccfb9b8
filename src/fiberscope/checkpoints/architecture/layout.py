"""Layouts that many tables share: one matrix per projection, stored (out, in)."""

from __future__ import annotations

from dataclasses import dataclass

from fiberscope.checkpoints.architecture.book import TensorBook
from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.program import (
    Activation,
    Attention,
    Mlp,
    Norm,
    RelativePositions,
    Rotary,
)
from fiberscope.parameters import View


@dataclass(frozen=True)
class Heads:
    """G key/value groups of m query heads of width r (values have the same width)."""

    groups: int
    per_group: int
    width: int

    @property
    def total(self) -> int:
        """Number of query heads."""
        return self.groups * self.per_group


def even_heads(
    config: ConfigReader, width: int, heads: int, width_key: str, heads_key: str
) -> Heads:
    """Heads that share the model width evenly, each with keys and values of its own.

    Raises
    ------
    InputError
        If the width is no multiple of the number of heads.
    """
    if width % heads:
        raise config.fail(f"{width_key!r} {width} is not divisible by {heads_key!r} {heads}")
    return Heads(heads, 1, width // heads)


def attention(
    book: TensorBook,
    label: str,
    layer: int,
    query: str,
    key: str,
    value: str,
    output: str,
    *,
    width: int,
    heads: Heads,
    input_bias: bool,
    output_bias: bool,
    causal: bool,
    rotary: Rotary | None = None,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
    position_table: View | None = None,
    memory: str | None = None,
    window: int | None = None,
    score_scale: float | None = None,
    relative_positions: RelativePositions | None = None,
) -> Attention:
    """Attention whose four projections are separate ``nn.Linear`` modules of the given names."""
    groups, per_group, r = heads.groups, heads.per_group, heads.width

    def weight(name: str, rows: int) -> View:
        return book.tensor(f"{name}.weight", rows, width)

    def bias(name: str, rows: int) -> View | None:
        return book.optional(input_bias, f"{name}.bias", rows)

    query_weight, query_bias = weight(query, heads.total * r), bias(query, heads.total * r)
    key_weight, key_bias = weight(key, groups * r), bias(key, groups * r)
    value_weight, value_bias = weight(value, groups * r), bias(value, groups * r)
    output_weight = book.tensor(f"{output}.weight", width, heads.total * r)
    return Attention(
        label,
        layer,
        query=query_weight.split(0, groups, per_group, r),
        key=key_weight.split(0, groups, r),
        value=value_weight.split(0, groups, r),
        output=output_weight.split(1, groups, per_group, r).permute(1, 2, 3, 0),
        query_bias=query_bias.split(0, groups, per_group, r) if query_bias else None,
        key_bias=key_bias.split(0, groups, r) if key_bias else None,
        value_bias=value_bias.split(0, groups, r) if value_bias else None,
        output_bias=book.optional(output_bias, f"{output}.bias", width),
        rotary=rotary,
        query_norm=query_norm,
        key_norm=key_norm,
        position_table=position_table,
        memory=memory,
        causal=causal,
        window=window,
        score_scale=score_scale,
        relative_positions=relative_positions,
    )


def mlp(
    book: TensorBook,
    label: str,
    layer: int,
    up: str,
    down: str,
    *,
    width: int,
    neurons: int,
    bias: bool,
    activation: tuple[Activation, str],
    gate: str | None = None,
) -> Mlp:
    """Multilayer perceptron of two ``nn.Linear`` modules, or three when gated."""
    gate_weight = book.tensor(f"{gate}.weight", neurons, width) if gate else None
    gate_bias = book.optional(bias, f"{gate}.bias", neurons) if gate else None
    return Mlp(
        label,
        layer,
        gate=gate_weight,
        gate_bias=gate_bias,
        up=book.tensor(f"{up}.weight", neurons, width),
        up_bias=book.optional(bias, f"{up}.bias", neurons),
        down=book.tensor(f"{down}.weight", width, neurons),
        down_bias=book.optional(bias, f"{down}.bias", width),
        activation=activation[0],
        activation_name=activation[1],
    )
