"""Multi-head attention declared by roles, for modules whose class has no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fiberscope.checkpoints.architecture.program import (
    Architecture,
    Attention,
    Branch,
    Embedding,
    Norm,
    NormKind,
    Observable,
    Residual,
    Rotary,
    Stream,
)
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.checkpoints.ledger.rules.constants import bias_items
from fiberscope.checkpoints.ledger.rules.heads import attention_items
from fiberscope.checkpoints.ledger.wiring import wire
from fiberscope.errors import InputError
from fiberscope.parameters import View


@dataclass(frozen=True)
class AttentionRoles:
    """Names of the parameters of one softmax attention, ``softmax(q k / c) v`` and its output map.

    Declared so, queries trade against keys and values against outputs in every head (GL, or the
    rotary commutant), key biases do nothing and value biases fold into the output bias. Everything
    else in the module counts as seen. Nothing may act between these maps and the products but
    rotary turns: no norm on queries or keys, no zero attention, no appended key.

    Attributes
    ----------
    query, key, value, output
        Names of the weights. One name for several of query, key and value means a fused tensor
        that holds them one after the other along its output axis, in this order.
    heads
        Number of query heads.
    groups
        Number of key and value heads; default: as many as query heads.
    query_bias, key_bias, value_bias, output_bias
        Names of the biases, where there are any; fused like the weights.
    input_first
        True where weights are stored ``(inputs, outputs)``, as in ``Conv1D``, and not as in
        ``torch.nn.Linear``.
    rotary
        Row pairs turned by position, and their frequencies.
    label
        What reports call it.
    """

    query: str
    key: str
    value: str
    output: str
    heads: int
    groups: int | None = None
    query_bias: str | None = None
    key_bias: str | None = None
    value_bias: str | None = None
    output_bias: str | None = None
    input_first: bool = False
    rotary: Rotary | None = None
    label: str = ""

    @classmethod
    def of(cls, module: Any, name: str = "") -> AttentionRoles:
        """Roles of a ``torch.nn.MultiheadAttention`` that is called ``name`` in the model.

        Raises
        ------
        InputError
            If the module is of another class, or appends keys or zeros.
        """
        if type(module).__name__ != "MultiheadAttention":
            raise InputError(
                f"the module {name!r} is a {type(module).__name__}, whose roles are not known; "
                "give the names of its weights"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise InputError(
                f"the attention {name!r} appends a key of its own, so its key bias has an effect "
                "and the declared symmetries do not hold; build it without add_bias_kv and "
                "add_zero_attn"
            )
        prefix = f"{name}." if name else ""
        fused = f"{prefix}in_proj_weight"
        apart = module.in_proj_weight is None
        query, key, value = (f"{prefix}{kind}_proj_weight" if apart else fused for kind in "qkv")
        biased = module.in_proj_bias is not None
        bias = f"{prefix}in_proj_bias" if biased else None
        return cls(
            query,
            key,
            value,
            f"{prefix}out_proj.weight",
            heads=module.num_heads,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=f"{prefix}out_proj.bias" if biased else None,
            label=name or "attention",
        )


def declared_ledger(
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    roles: Sequence[AttentionRoles],
    observable: Observable,
) -> Ledger:
    """The ledger of declared attention modules, by the rules for heads and their biases.

    Raises
    ------
    InputError
        If a name is no parameter, or a shape does not fit the number of heads.
    """
    # Only what heads do is known: a bare norm before and behind stands for the rest of the model.
    bare = Norm("input", NormKind.RMS, None, None, 0.0)
    streams = []
    for number, role in enumerate(roles):
        attention = _attention(role, number, shapes)
        step = Residual(number, (Branch(bare, (attention,)),))
        width = attention.output.shape[-1]
        streams.append(Stream(attention.label, width, Embedding((), ()), (step,), bare))
    laid_out = Architecture(
        name, "declared", dict(shapes), tuple(streams), None, False, None, Observable.HIDDEN
    )
    wiring = wire(laid_out, Observable.HIDDEN)
    items = tuple(i for i in (*attention_items(wiring), *bias_items(wiring)) if i.dimension > 0)
    undetermined = sum(item.dimension for item in items)
    return Ledger(laid_out, observable, items, (), (), laid_out.parameters - undetermined)


def _attention(
    role: AttentionRoles, number: int, shapes: Mapping[str, tuple[int, ...]]
) -> Attention:
    groups = role.heads if role.groups is None else role.groups
    label = role.label or f"attention {number}"
    if role.heads < 1 or groups < 1 or role.heads % groups:
        raise InputError(
            f"{label}: {role.heads} query heads are no multiple of {groups} key heads; correct "
            "heads or groups"
        )
    per_group = role.heads // groups
    output = _stored(role.output, shapes, role.input_first, label)
    value_width = _divided(output.shape[1], role.heads, role.output, label)
    key_width = _key_width(role, groups, value_width, shapes, label)
    rows = {"query": role.heads * key_width, "key": groups * key_width}
    rows["value"] = groups * value_width

    def part(kind: str, names: Mapping[str, str | None], *split: int) -> View | None:
        name = names[kind]
        if name is None:
            return None
        start = 0
        for earlier in rows:
            if earlier == kind:
                break
            start += rows[earlier] if names[earlier] == name else 0
        whole = _stored(name, shapes, role.input_first, label)
        fused = sum(rows[other] for other in rows if names[other] == name)
        if whole.shape[0] != fused:
            raise InputError(
                f"{label}: {name!r} has {whole.shape[0]} outputs, but its heads need {fused}; "
                "correct heads, groups or the names"
            )
        return whole.slice(0, start, start + rows[kind]).split(0, *split)

    weights = {"query": role.query, "key": role.key, "value": role.value}
    biases = {"query": role.query_bias, "key": role.key_bias, "value": role.value_bias}
    query = part("query", weights, groups, per_group, key_width)
    key = part("key", weights, groups, key_width)
    value = part("value", weights, groups, value_width)
    assert query is not None and key is not None and value is not None
    bias = role.output_bias
    return Attention(
        label,
        number,
        query=query,
        key=key,
        value=value,
        output=output.split(1, groups, per_group, value_width).permute(1, 2, 3, 0),
        query_bias=part("query", biases, groups, per_group, key_width),
        key_bias=part("key", biases, groups, key_width),
        value_bias=part("value", biases, groups, value_width),
        output_bias=None if bias is None else _stored(bias, shapes, False, label),
        rotary=role.rotary,
    )


def _stored(
    name: str, shapes: Mapping[str, tuple[int, ...]], input_first: bool, label: str
) -> View:
    """The whole tensor with its outputs first."""
    if name not in shapes:
        raise InputError(
            f"{label}: the model has no parameter {name!r} (of two tied names it knows the first); "
            "use a name that named_parameters lists"
        )
    view = View.whole(name, shapes[name])
    return view.permute(1, 0) if input_first and len(view.shape) == 2 else view


def _key_width(
    role: AttentionRoles,
    groups: int,
    value_width: int,
    shapes: Mapping[str, tuple[int, ...]],
    label: str,
) -> int:
    """Width of a query head: what is left of a fused tensor, in equal parts."""
    rows = _stored(role.query, shapes, role.input_first, label).shape[0]
    heads = role.heads
    if role.value in (role.query, role.key):
        rows -= groups * value_width
    if role.key == role.query:
        heads += groups
    return _divided(rows, heads, role.query, label)


def _divided(size: int, heads: int, name: str, label: str) -> int:
    if size < heads or size % heads:
        raise InputError(
            f"{label}: {size} rows of {name!r} are not divisible by {heads} heads; correct heads "
            "or groups"
        )
    return size // heads
